"""Listen on an address and serve the dashboard there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import waitress

from evokernel.dashboard.app import LOOPBACK, make
from evokernel.errors import EvokernelError

THREADS = 8


@dataclass(frozen=True)
class Listening:
    """A server that has its port; `address` is what to open, the token included."""

    server: Any
    address: str

    def serve(self) -> None:
        """Answer until interrupted or closed."""
        self.server.run()

    def close(self) -> None:
        self.server.close()


def listen(url: str, host: str, port: int, token: str | None) -> Listening:
    """Bind the port (0 for any free one); EvokernelError in one line when it is taken or the address is not ours."""
    app = make(url, token)
    try:
        server = waitress.create_server(app.server, host=host, port=port, threads=THREADS, ident=None)
    except (OSError, ValueError) as error:
        raise EvokernelError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from None
    shown = f"[{host}]" if ":" in host else host
    effective = getattr(server, "effective_port", port)
    return Listening(server, f"http://{shown}:{effective}/{'?token=' + token if token else ''}")


__all__ = ["LOOPBACK", "Listening", "listen"]
