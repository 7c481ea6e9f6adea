"""One database of a finished run, and a browser where the machine has one."""

import shutil
from importlib.util import find_spec

import pytest

from tests.dashboard.campaigns import create, fill

MISSING = [name for name in ("dash", "playwright") if find_spec(name) is None]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
collect_ignore = (["test_server.py"] if "dash" in MISSING else []) + (["test_browser.py"] if MISSING else [])


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/evokernel.db"


@pytest.fixture
def campaign(url):
    """A finished run: its store, its id, and the numbers of its candidates."""
    store, run_id = create(url)
    return store, run_id, fill(store, run_id)


def pytest_terminal_summary(terminalreporter):
    if why := MISSING or ([] if CHROMIUM else ["chromium"]):
        terminalreporter.write_line(
            f"The browser suite, tests/dashboard/test_browser.py, did not run: this machine has no {', '.join(why)}."
        )
