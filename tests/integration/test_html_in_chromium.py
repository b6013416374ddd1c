"""The HTML report in a real browser: no error, no network, by keyboard, dark, on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from disposescope.leaks import KnownLeak, Report
from disposescope.leaks.report.report import Process
from disposescope.leaks.reporters.html_page import html_of
from disposescope.leaks.saved.files import merged
from tests.browser import Page, needs_chromium
from tests.leaks.example_reports import HOSTILE, big_report, hostile_report, training_report

pytestmark = [pytest.mark.long, needs_chromium]

ROWS = "document.querySelectorAll('#leak-rows tr.leak').length"
SHOWN = "document.getElementById('shown').textContent"
FOCUSED = "document.activeElement.id || document.activeElement.className"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with Page() as page:
        yield page


@pytest.fixture
def page(browser: Page, tmp_path: Path) -> Iterator[Page]:
    """A page of the training run, which at the end has no errors and requested only its file."""
    browser.errors.clear()
    browser.requests.clear()
    browser.resize(1280, 900)
    browser.prefer(prefers_color_scheme="light")
    show(browser, tmp_path, training_report())
    yield browser
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file://", "data:"))] == []


def show(page: Page, folder: Path, report: Report) -> None:
    file = folder / "report.html"
    file.write_text(html_of(report), encoding="utf-8")
    page.open(file)


def test_the_page_draws_all_of_its_parts(page: Page) -> None:
    assert page.js("document.title") == "python train.py --epochs 3"
    assert page.js("document.documentElement.lang") == "en"
    assert page.js("document.getElementById('verdict').textContent").startswith("370.9 MB leaked. The worst: 182.4 MB")
    assert page.js(ROWS) == 7
    time = page.js("document.querySelector('#time-chart svg').textContent")
    assert "resident memory" in time
    assert "live on cuda:0" in time
    assert "epoch" in time
    peak = page.js("document.querySelector('#peak-chart svg').textContent")
    assert "train.py:38 in step()" in peak
    assert page.js("document.getElementById('peak-text').textContent").startswith(
        "96.0 MB at train.py:41 in step(), in pass 3"
    )
    assert "32.0 MB less, peak 64.0 MB" in page.js("document.getElementById('peak-advice').textContent")
    boxes = page.js("document.querySelector('#live-chart svg').textContent")
    assert "model/encoder.py" in boxes
    assert "182.4 MB" in boxes


def test_boxes_by_holder_stand_below_those_by_line(page: Page) -> None:
    boxes = page.js("document.querySelector('#held-chart svg').textContent")
    assert "trainer.history" in boxes
    assert "239.4 MB" in boxes
    page.point("#held-chart", 0.2, 0.6, click=True)
    picked = "document.getElementById('held-picked').textContent"
    page.wait_for(f"{picked}.includes('it is added to at')")
    assert "model/encoder.py:112 its leaks" in page.js(picked)
    page.js("document.getElementById('held-table').open = true")
    page.wait_for("document.querySelectorAll('#held-table tbody tr').length === 3")
    page.js("document.querySelector('#held-picked .link').click()")
    page.wait_for(f"{ROWS} === 1")


def test_headings_are_in_order_and_controls_have_names(page: Page) -> None:
    assert page.js("[...document.querySelectorAll('h1, h2')].map(e => e.tagName).join(' ')") == "H1" + " H2" * 7
    nameless = page.js(
        "[...document.querySelectorAll('input, select, button')].filter(e => !(e.labels?.length || e.getAttribute("
        "'aria-label') || e.textContent.trim())).length"
    )
    assert nameless == 0
    assert page.js("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == page.js(
        "document.querySelectorAll('[id]').length"
    )


def test_the_search_works_with_the_keyboard_alone(page: Page) -> None:
    page.press("/")
    assert page.js(FOCUSED) == "query"
    page.type("encoder linear")
    page.wait_for(f"{ROWS} === 1")
    assert "Graph-retained" in page.js("document.querySelector('#leak-rows').textContent")
    page.press("ArrowDown")
    assert page.js(FOCUSED) == "opener"
    page.press("Enter")
    page.wait_for("document.querySelector('tr.detail .trend svg')")
    assert page.js("document.activeElement.getAttribute('aria-expanded')") == "true"
    detail = page.js("document.querySelector('tr.detail').textContent")
    for words in ("module train.trainer.total", "x = self.linear(x)", "loss.detach()", "growth"):
        assert words in detail
    page.press("Enter")
    assert page.js("document.querySelectorAll('tr.detail').length") == 0
    page.press("ArrowUp")
    assert page.js(FOCUSED) == "query"
    page.press("Escape")
    page.wait_for(f"{ROWS} === 7")


def test_all_words_must_occur_and_nothing_found_is_said(page: Page) -> None:
    page.press("/")
    page.type("encoder evaluate")
    page.wait_for(f"{ROWS} === 0")
    assert page.js(SHOWN) == "0 of 7 shown"
    assert "No leak matches" in page.js("document.querySelector('#leak-rows').textContent")


def test_the_tab_key_visits_what_can_be_used_in_reading_order(page: Page) -> None:
    page.js("document.body.focus()")
    seen: list[str] = []
    for _ in range(13):
        page.press("Tab")
        seen.append(
            page.js("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
    assert seen[:2] == ["skip", "theme"]
    order = [name for name in seen if name in ("query", "list", "device", "sure", "least", "chip")]
    assert list(dict.fromkeys(order)) == ["query", "list", "device", "sure", "least", "chip"]


def test_filters_and_orders(page: Page) -> None:
    page.js("document.querySelector('[data-kind=\"view\"]').click()")
    assert page.js(ROWS) == 1
    assert page.js("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.js("document.activeElement.click()")
    choose = (
        "(() => { const e = document.getElementById('%s'); e.value = '%s'; e.dispatchEvent(new Event('change')); })()"
    )
    page.js(choose % ("device", "cuda:0"))
    assert page.js(ROWS) == 1
    page.js(choose % ("device", ""))
    page.js(choose % ("sure", "possible"))
    assert page.js(ROWS) == 1
    page.js(choose % ("sure", ""))
    page.js(choose % ("least", "10000000"))
    assert page.js(ROWS) == 4
    page.js(choose % ("least", "0"))
    page.js(choose % ("list", "suppressed"))
    assert page.js(ROWS) == 1
    page.js(choose % ("list", "leaks"))
    first = "document.querySelector('#leak-rows .c-bytes').firstChild.textContent"
    assert page.js(first) == "182.4 MB"
    page.js("document.querySelectorAll('.sorter')[2].click()")
    assert page.js(first) == "0 bytes"
    assert page.js("document.querySelectorAll('#leak-head th')[3].getAttribute('aria-sort')") == "ascending"


def test_the_tables_beside_the_charts_say_the_same(page: Page) -> None:
    page.js("document.getElementById('live-table').open = true")
    page.wait_for("document.querySelectorAll('#live-table tbody tr').length === 9")
    assert "182.4 MB" in page.js("document.querySelector('#live-table').textContent")
    page.js("document.getElementById('time-table').open = true")
    page.wait_for("document.querySelectorAll('#time-table tbody tr').length > 100")
    page.js("document.querySelector('#live-table .link').click()")
    assert page.js("document.getElementById('query').value") == "/projects/speech/model/encoder.py:112"
    assert page.js(ROWS) == 1


def test_the_mouse_over_a_chart_shows_what_is_there(page: Page) -> None:
    tip = "[...document.querySelectorAll('.chart-tip')].map(e => e.textContent).join()"
    page.point("#time-chart", 0.5, 0.4)
    page.wait_for(f"{tip}.includes('live on cuda:0')")
    # The lanes: epochs and evaluations, steps, the other thread, passes; 20 pixels each.
    height = page.js("document.querySelector('#time-chart').clientHeight")
    page.point("#time-chart", 0.4, (36 + 240 + 34 + 10) / height)
    page.wait_for(f"{tip}.includes('scope epoch')")
    assert "open for3.6 s" in page.js(tip)
    page.point("#time-chart", 0.4, (36 + 240 + 34 + 50) / height)
    page.wait_for(f"{tip}.includes('closed atnever')")
    page.point("#live-chart", 0.2, 0.6, click=True)
    page.wait_for(f"{tip}.includes('model/encoder.py')")
    page.wait_for("document.getElementById('live-picked').textContent.includes('342 × torch.Tensor')")
    page.js("document.querySelectorAll('.opener')[0].click()")
    page.wait_for("document.querySelector('.trend svg')")
    page.point(".trend", 0.5, 0.5)
    page.wait_for(f"{tip}.includes('pass 28')")


def test_it_follows_the_colours_of_the_system_until_the_button_is_pressed(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.js(background)
    page.prefer(prefers_color_scheme="dark")
    page.wait_for("document.documentElement.dataset.theme === 'dark'")
    dark = page.js(background)
    assert dark != light
    page.js("document.getElementById('theme').click()")
    assert page.js(background) == light
    assert page.js("document.getElementById('theme').getAttribute('aria-label')") == "Colours: light"
    page.js("document.getElementById('theme').click()")
    assert page.js(background) == dark
    page.js("document.getElementById('theme').click()")
    assert page.js("document.getElementById('theme').getAttribute('aria-label')") == "Colours: as the system"


@pytest.mark.parametrize("width", [320, 375, 768])
def test_on_a_narrow_screen_nothing_must_be_scrolled_sideways(page: Page, width: int) -> None:
    page.resize(width, 812, 2, mobile=True)
    page.js("[...document.querySelectorAll('.opener')].slice(0, 3).forEach(e => e.click())")
    page.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.wait_for(f"document.querySelector('#time-chart svg').getBoundingClientRect().width < {width}")
    assert page.js("document.documentElement.scrollWidth") <= width
    heights = "[...document.querySelectorAll('.opener, .chip, select, #theme')].filter(e => e.offsetParent)"
    assert page.js(f"Math.min(...{heights}.map(e => e.getBoundingClientRect().height))") >= 32


def test_hostile_texts_are_shown_and_not_obeyed(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, hostile_report())
    page.js("document.querySelector('.opener').click()")
    page.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert page.js("window.hurt") is None
    assert page.js("document.querySelectorAll('script').length") == 4
    shown = page.js("document.querySelector('#leaks').textContent")
    assert HOSTILE.partition("\u2028")[0] in shown


def test_the_time_line_of_several_processes_shows_each(page: Page, tmp_path: Path) -> None:
    report = training_report()
    facts = replace(report.program, started_at="2026-11-21T03:59:58Z")
    workers = [
        replace(report, program=replace(facts, pid=pid), processes=(Process(pid, 1, "worker", "exit", 0, 0),))
        for pid in range(50_001, 50_009)
    ]
    show(page, tmp_path, merged([report, *workers]))
    time = page.js("document.querySelector('#time-chart svg').textContent")
    assert "resident memory" in time
    assert "resident in worker 50001" in time
    assert "50001: main" in time
    told = page.js("document.getElementById('time-text').textContent")
    assert "8 other processes: resident memory at most" in told
    assert "the 6 largest are drawn" in told


@pytest.mark.parametrize("link", ["https://example.org/issues/1", "javascript:alert(1)"])
def test_a_known_leak_is_told_apart_and_linked(page: Page, tmp_path: Path, link: str) -> None:
    report = training_report()
    [first, *others] = report.leaks
    known = KnownLeak("torch", "2.13.0", "it keeps the graph", "empty it", link)
    show(page, tmp_path, replace(report, leaks=(replace(first, known=known), *others)))
    kinds = page.js("[...document.querySelectorAll('#leak-rows .c-kind')].map((cell) => cell.textContent)")
    assert [kind.endswith(" (known, torch)") for kind in kinds].count(True) == 1
    row = "[...document.querySelectorAll('#leak-rows tr.leak')].find((row) => row.textContent.includes('known, torch'))"
    page.js(f"{row}.querySelector('.opener').click()")
    assert page.js("document.querySelector('.detail .hint').textContent") == f"A known leak of torch 2.13.0: {link}"
    links = page.js("[...document.querySelectorAll('.detail .hint a')].map((a) => a.href)")
    assert links == ([link] if link.startswith("https://") else [])


def test_an_empty_report_says_that_there_are_no_leaks(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, Report())
    assert page.js("document.getElementById('verdict').textContent") == "No leaks."
    assert "holds no time line" in page.js("document.getElementById('time').textContent")
    assert page.js("document.getElementById('held').hidden")
    assert "Nothing was live" in page.js("document.getElementById('live').textContent")


def test_a_hundred_thousand_records_are_paged_and_searched(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, big_report(5_000, 20))
    # Two seconds until then are promised, and measured in benchmarks/: here a machine may be busy.
    assert page.js("performance.getEntriesByName('leak-report-interactive').length") == 1
    assert page.js(ROWS) == 50
    assert page.js(SHOWN).startswith("1–50 of 5,000")
    page.js("document.querySelector('[data-go=\"last\"]').click()")
    assert page.js(SHOWN).startswith("4,951–5,000 of 5,000")
    page.press("/")
    page.type("part7.cache[7]")
    page.wait_for(f"{ROWS} === 1")


def test_a_damaged_file_says_so(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "damaged.html"
    file.write_text(html_of(training_report()).replace('"leaks":[[', '"leaks":[[[', 1), encoding="utf-8")
    page.call("Page.navigate", url=file.as_uri())
    page.wait_for("document.getElementById('broken')?.hidden === false")
    assert "The file may be damaged" in page.js("document.getElementById('broken').textContent")
    assert len(page.errors) == 1
    page.errors.clear()


def test_a_report_without_a_peak_has_no_part_for_it(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, replace(training_report(), peak=None))
    assert page.js("document.getElementById('peak').hidden") is True
    assert page.js("document.documentElement.dataset.ready") == "true"


def test_the_lives_of_the_peak_are_told_where_the_pointer_is(page: Page) -> None:
    height = page.js("document.querySelector('#peak-chart').clientHeight")
    page.js("document.getElementById('peak-chart').scrollIntoView({block: 'center'})")
    page.point("#peak-chart", 0.5, 0.3)
    page.wait_for("document.querySelector('#peak-chart').textContent.includes('in use')")
    page.point("#peak-chart", 0.5, (16 + 180 + 34 + 9) / height)
    page.wait_for("document.querySelector('#peak-chart').textContent.includes('from birth')")
