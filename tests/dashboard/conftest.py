"""One database of a finished run, and a browser where the machine has one."""

import shutil

import pytest

from tests.dashboard.campaigns import create, fill

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/evokernel.db"


@pytest.fixture
def campaign(url):
    """A finished run: its store, its id, and the numbers of its candidates."""
    store, run_id = create(url)
    return store, run_id, fill(store, run_id)


def pytest_terminal_summary(terminalreporter):
    if CHROMIUM is None:
        terminalreporter.write_line(
            "The browser suite, tests/dashboard/test_browser.py, did not run: there is no chromium on this machine."
        )
