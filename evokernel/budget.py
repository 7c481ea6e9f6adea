"""Hard caps on what a campaign may spend, with a share kept back so that it always ends with verified champions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

MODELS = ("usd", "tokens")  # what only models spend


@dataclass(frozen=True)
class Spent:
    """What a run has used so far, over all its sittings."""

    wall_s: float = 0.0
    evaluations: int = 0
    gpu_s: float = 0.0
    usd: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Budget:
    """Caps; None is unlimited. `verify_share` of wall and GPU time is kept for verification."""

    wall_s: float | None = None
    evaluations: int | None = None
    gpu_s: float | None = None
    usd: float | None = None
    tokens: int | None = None
    verify_share: float = 0.15

    def caps(self) -> Mapping[str, float]:
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "verify_share"}
        return {name: cap for name, cap in named.items() if cap is not None}

    def used(self, spent: Spent, *, verifying: bool) -> dict[str, float]:
        """Return the used fraction of each cap; time caps shrink by the kept-back share while searching."""
        result = {}
        for name, cap in self.caps().items():
            if not verifying and name in ("wall_s", "gpu_s"):
                cap *= 1 - self.verify_share
            result[name] = getattr(spent, name) / cap if cap else 1.0
        return result

    def exhausted(self, spent: Spent, *, verifying: bool = False) -> str | None:
        """Return the name of a cap that is reached, or None. Verification is not bound by the evaluation cap.

        Caps on tokens and USD bind the models (llm/ledger.py): without them the samplers go on.
        """
        used = self.used(spent, verifying=verifying)
        for name in MODELS:
            used.pop(name, None)
        if verifying:
            used.pop("evaluations", None)
        return next((name for name, share in used.items() if share >= 1), None)

    def left_s(self, spent: Spent) -> float | None:
        """Estimate the seconds until the first cap is reached at the pace so far."""
        used = self.used(spent, verifying=False)
        shares = [share for name, share in used.items() if share > 0 and name not in MODELS]
        if not shares or not spent.wall_s:
            return self.wall_s
        return max(0.0, spent.wall_s * (1 / max(shares) - 1))
