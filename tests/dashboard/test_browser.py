"""A real browser opens every page: light and dark, with the keyboard, in every state, and whatever a candidate wrote."""

import re
import threading
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

from evokernel.dashboard.app import PAGES
from evokernel.dashboard.report import report
from evokernel.dashboard.server import listen
from evokernel.store import Store
from tests.dashboard.campaigns import CAUSAL_CLASS, HOSTILE, create, fill, hostile, passed, propose
from tests.dashboard.conftest import CHROMIUM

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
WIDTH = 1280
NOISE = "custom wheel sensitivity"  # of the graph's library, whatever it is given


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@contextmanager
def serving(url):
    listening = listen(url, "127.0.0.1", 0, None)
    thread = threading.Thread(target=listening.serve, daemon=True)
    thread.start()
    yield listening.address.rstrip("/")
    listening.close()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Runs in every state: finished, running, failed before its first candidate, and one whose texts are mark-up."""
    url = f"sqlite:///{tmp_path_factory.mktemp('browser')}/evokernel.db"
    hostile(url)
    for name, status in (("first", "finished"), ("second", "running")):
        fill(*create(url, name, status))
    create(url, "broken", "failed")
    return url


@pytest.fixture(scope="module")
def address(database):
    with serving(database) as found:
        yield found


@contextmanager
def looking(browser, scheme="light"):
    """Open a page that notes every complaint of the browser's."""
    context = browser.new_context(viewport={"width": WIDTH, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.complaints = []
    page.on(
        "console",
        lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") and NOISE not in m.text else None,
    )
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "request",
        lambda r: (
            page.complaints.append(r.url) if not re.match(r"https?://127\.0\.0\.1|data:|blob:|file:", r.url) else None
        ),
    )
    page.set_default_timeout(20_000)
    yield page
    context.close()


def settled(page):
    page.wait_for_selector("#main section")
    page.wait_for_function("() => !document.querySelector('[data-dash-is-loading=true]')")


def open_page(page, url):
    page.goto(url)
    settled(page)


def visit(page, title):
    """Follow a page's link."""
    page.click(f"#pages >> text='{title}'")
    page.wait_for_selector(f"#pages .chosen >> text='{title}'")
    settled(page)


def width(page):
    return page.evaluate("document.documentElement.scrollWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_by_its_link_without_complaint_and_fits(browser, address, scheme):
    with looking(browser, scheme) as page:
        open_page(page, f"{address}/?run=first")
        for found in PAGES.values():
            visit(page, found.TITLE)
            assert width(page) <= WIDTH, found.TITLE
            assert page.locator("#main h2").first.is_visible()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"
        assert dark == (scheme == "dark")
        assert page.complaints == []


@pytest.mark.parametrize("run", ["first", "second", "broken"])
def test_pages_of_a_run_in_any_state_draw(browser, address, run):
    with looking(browser) as page:
        open_page(page, f"{address}/run?run={run}")
        for title in ("Run", "Leaderboard", "Lineage", "Landscape"):
            visit(page, title)
            assert ("yet" in page.inner_text("#main")) == (run == "broken"), title
        assert page.complaints == []


def test_an_empty_database_says_how_to_fill_it(browser, url):
    Store.open(url)
    with serving(url) as address, looking(browser) as page:
        open_page(page, address)
        assert "evokernel run" in page.inner_text("#main")
        for found in PAGES.values():
            visit(page, found.TITLE)
            assert width(page) <= WIDTH
        assert page.complaints == []


def test_the_keyboard_alone_reaches_pages_runs_and_candidates(browser, address):
    with looking(browser) as page:
        open_page(page, f"{address}/?run=first")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        while page.evaluate("document.activeElement.textContent") != "Leaderboard":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(".ag-row")
        page.focus(".ag-header-cell")
        page.keyboard.press("ArrowDown")  # the filter
        page.keyboard.press("ArrowDown")  # the first row
        page.keyboard.press("Enter")
        page.wait_for_url("**/candidate?id=*")
        settled(page)
        assert page.inner_text("#main h2").startswith("Candidate")


def test_a_run_is_chosen_from_the_list_with_the_keyboard(browser, address):
    with looking(browser) as page:
        open_page(page, f"{address}/run?run=first")
        page.focus("#chooser button")
        page.keyboard.press("Enter")
        for value in ("first", "second"):  # the list opens at the run that is shown; the next one up is the other
            page.wait_for_function("value => document.activeElement.value === value", arg=value)
            page.keyboard.press("ArrowUp" if value == "first" else "Enter")
        page.wait_for_url("**/run?run=second")
        page.wait_for_selector("h2 >> text='Run second'")


def test_the_leaderboard_sorts_and_filters_on_the_server(browser, address):
    with looking(browser) as page:
        open_page(page, f"{address}/leaderboard?run=first&class={CAUSAL_CLASS}")
        page.wait_for_selector(".ag-row a")
        first = ".ag-pinned-left-cols-container .ag-row[row-index='0'] a"
        best = page.inner_text(first)
        page.click(".ag-header-cell[col-id='score'] .ag-header-cell-label")
        page.wait_for_function(f"() => document.querySelector(\"{first}\")?.textContent !== '{best}'")
        page.fill("[aria-label='score Filter Input']:not([disabled])", "1.2")
        page.wait_for_function(
            "() => document.querySelectorAll('.ag-pinned-left-cols-container .ag-row a').length === 1"
        )
        assert page.inner_text(first) == best


def test_lineage_tells_about_the_candidate_that_is_clicked(browser, address):
    with looking(browser) as page:
        open_page(page, f"{address}/lineage?run=first&class={CAUSAL_CLASS}")
        page.wait_for_selector("#lineage canvas")
        # Cytoscape draws on a canvas: its own object says where a node stands.
        spot = page.wait_for_function(
            "() => { const c = document.querySelector('#lineage')._cyreg?.cy; const n = c && c.nodes('.path')[0];"
            " return n && n.renderedPosition(); }"
        ).json_value()
        box = page.locator("#lineage").bounding_box()
        page.mouse.click(box["x"] + spot["x"], box["y"] + spot["y"])
        page.wait_for_selector("#lineage-picked a")
        assert "Candidate" in page.inner_text("#lineage-picked")


def test_ctrl_enter_asks_and_answers_can_be_taken_along(browser, address):
    with looking(browser) as page:
        open_page(page, f"{address}/ask")
        page.fill("#sql", "SELECT COUNT(*) AS many FROM run")
        page.focus("#sql")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#answered .ag-cell >> text='4'")
        with page.expect_download() as download:
            page.click("#ask-csv")
        assert download.value.path().read_text().split() == ["many", "4"]
        page.fill("#sql", "DROP TABLE run")
        page.click("#ask")
        page.wait_for_selector("[role=alert] >> text=readonly")


def test_light_and_dark_can_be_chosen_and_are_remembered(browser, address):
    with looking(browser, "light") as page:
        open_page(page, address)
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "dark"
        page.reload()
        settled(page)
        assert page.get_attribute("html", "data-theme") == "dark"


def test_a_running_campaign_is_followed_without_reloading(browser, url):
    store, run_id = create(url, "live", "running")
    with serving(url) as address, looking(browser) as page:
        open_page(page, f"{address}/run?run=live")
        assert "No candidate has a score yet" in page.inner_text("#main")
        page.evaluate("window.stayed = true")
        store.add_measurement(run_id, propose(store, run_id), passed(1.5, 1.5))
        page.wait_for_selector("td >> text='1.500×'")
        assert page.evaluate("window.stayed")
        assert page.complaints == []


def test_what_a_candidate_wrote_is_shown_and_never_run(browser, address, database):
    with looking(browser) as page:
        open_page(page, f"{address}/?{urlencode({'run': f'run {HOSTILE}'})}")
        for path, found in PAGES.items():
            visit(page, found.TITLE)
            page.wait_for_timeout(100)  # an image that fails to load would have called by then
            assert page.evaluate("() => window.pwned") is None, path
            assert page.locator("img[src=x]").count() == 0, path
            if path in ("/", "/run", "/candidate", "/compare"):
                assert HOSTILE in page.text_content("#main"), path
        open_page(page, f"{address}/ask?saved=operators")
        page.wait_for_selector(".ag-row")
        assert HOSTILE in page.text_content("#answered")
        open_page(page, f"{address}/candidate?id=2")
        assert page.text_content("pre.source").count(HOSTILE) >= 2
        assert page.text_content("#main").count(HOSTILE) > 10
        assert page.complaints == []


def test_a_report_opens_from_a_file_and_fetches_nothing(browser, database, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report(database, f"run {HOSTILE}")[1])
    with looking(browser, "dark") as page:
        page.goto(path.as_uri())
        page.wait_for_selector(".js-plotly-plot .main-svg")
        assert HOSTILE in page.text_content("body")
        assert page.evaluate("window.pwned") is None
        assert width(page) <= WIDTH
        assert page.complaints == []
