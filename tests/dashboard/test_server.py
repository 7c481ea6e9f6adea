"""Who is let in, what a browser is told to refuse, and how the commands fail."""

import importlib.util
import re

import pytest
from typer.testing import CliRunner

from evokernel.cli import app
from evokernel.dashboard.app import PAGES, make
from evokernel.dashboard.report import report
from evokernel.dashboard.server import listen
from evokernel.errors import EvokernelError, StoreError
from evokernel.store import Store
from tests.dashboard.campaigns import HOSTILE, hostile


def test_without_a_token_only_loopback_names_are_answered(campaign, url):
    client = make(url).server.test_client()
    for host in ("localhost:8050", "127.0.0.1:8050", "[::1]:8050", "localhost"):
        assert client.get("/", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example:8050", "10.0.0.1", "[::2]"):
        assert client.get("/", headers={"Host": host}).status_code == 403


def test_a_token_is_asked_for_once_and_kept_in_a_cookie(campaign, url):
    client = make(url, "secret").server.test_client()
    assert client.get("/").status_code == 401
    assert client.get("/?token=guess").status_code == 401
    assert client.post("/_dash-update-component", json={}).status_code == 401
    entered = client.get("/run?token=secret&run=first")
    assert (entered.status_code, entered.location) == (302, "/run?run=first")
    assert "HttpOnly" in entered.headers["Set-Cookie"]
    assert client.get("/run?run=first").status_code == 200


def test_pages_fetch_nothing_from_elsewhere_and_run_no_foreign_script(campaign, url):
    answer = make(url).server.test_client().get("/", headers={"Host": "localhost"})
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert not re.search(r"script-src[^;]*unsafe", policy)
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", answer.text)


def test_a_taken_port_is_refused_in_one_line(campaign, url):
    first = listen(url, "127.0.0.1", 0, None)
    port = int(first.address.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(EvokernelError, match=f"cannot listen on 127.0.0.1:{port}"):
        listen(url, "127.0.0.1", port, None)
    first.close()


def test_an_address_beyond_loopback_gets_a_token_in_its_address(campaign, url):
    listening = listen(url, "0.0.0.0", 0, "secret")
    assert listening.address.endswith("/?token=secret")
    listening.close()


def test_a_missing_database_is_one_line(tmp_path):
    done = CliRunner().invoke(app, ["dashboard", f"sqlite:///{tmp_path}/none.db"])
    assert isinstance(done.exception, StoreError)
    assert "no database" in str(done.exception)


def test_the_dashboard_cannot_write(campaign, url):
    store = Store.open(url, read_only=True)
    with pytest.raises(Exception, match="readonly"):
        store.set_status(1, "stopped")


@pytest.mark.parametrize("command", ["dashboard", "report"])
def test_a_missing_extra_is_one_line_that_tells_how_to_get_it(command, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name.startswith("dash") else found(name, *a)
    )
    done = CliRunner().invoke(app, [command])
    assert str(done.exception) == (
        "the dashboard needs dash, dash_ag_grid, dash_cytoscape; install it: pip install 'evokernel-attention[dashboard]'"
    )


def test_a_report_is_one_file_that_needs_no_other(campaign, url, tmp_path):
    path = tmp_path / "r.html"
    done = CliRunner().invoke(app, ["report", "-o", str(path), "--db", url])
    assert done.exit_code == 0
    text = path.read_text()
    shell = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", shell)
    for words in ("Run first", "Leaderboard of", "twice the rows", "go faster", "roofline", "Measure it again"):
        assert words in text


def test_a_report_of_an_unknown_run_names_those_there_are(campaign, url):
    with pytest.raises(StoreError, match="no run named 'other'; runs: first"):
        report(url, "other")


def test_hostile_text_is_escaped_in_a_report(url):
    hostile(url)
    _, text = report(url, None)
    assert HOSTILE not in text
    assert "&lt;img src=x onerror=window.pwned=1&gt;" in text


def test_every_page_has_a_path_of_its_own():
    assert list(PAGES) == ["/", "/run", "/leaderboard", "/candidate", "/lineage", "/landscape", "/compare", "/ask"]
