"""The HTML report is one file that holds and says all, and keeps what it reports in its place."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from disposescope.leaks import ProgramFacts, Report
from disposescope.leaks.reporters import html_page as _html
from disposescope.leaks.reporters.html_page import (
    LEAK_FIELDS,
    RECORD_FIELDS,
    RETAINER_FIELDS,
    SITE_FIELDS,
    html_of,
    packed,
    title_of,
)
from tests.leaks.example_reports import HOSTILE, big_report, hostile_report, training_report


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._tag = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._tag = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def page() -> str:
    return html_of(training_report())


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_smaller_than_a_megabyte_and_grows_with_the_report_alone(page: str) -> None:
    assert len(page.encode()) < 1_000_000
    assert len(html_of(big_report(1000)).encode()) - len(page.encode()) < 500_000


def test_the_page_names_no_address_but_those_of_licences_and_of_namespaces(page: str) -> None:
    body = page.partition("<!--\n==== ")[0]
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", body))
    assert addresses <= {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/2000/xmlns/",
        "http://www.w3.org/XML/1998/namespace",
        "https://echarts.apache.org,",
    }


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    for tag, attributes in Elements(page).found:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, name, value)


def test_the_policy_allows_the_scripts_of_the_page_alone(page: str) -> None:
    elements = Elements(page)
    [policy] = [row["content"] for tag, row in elements.found if row.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = [text for text in elements.scripts if not text.lstrip().startswith("{")]
    assert allowed == {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert len(scripts) == 3


def test_no_element_has_a_script_in_an_attribute(page: str) -> None:
    for _, attributes in Elements(page).found:
        assert not [name for name in attributes if name.startswith("on")]


def test_the_data_is_the_report(page: str) -> None:
    data = data_of(page)
    report = training_report()
    assert data["count"] == report.count
    assert len(data["leaks"]) == len(report.leaks)
    row = dict(zip(data["fields"]["leak"], data["leaks"][0], strict=True))
    assert data["strings"][row["explanation"]] == report.leaks[0].explanation
    file, line, function = data["places"][row["site"]]
    assert (data["strings"][file], line, data["strings"][function]) == ("/projects/speech/train.py", 31, "Trainer.step")


def test_rows_have_the_fields_that_are_promised() -> None:
    content = packed(training_report())
    assert {len(row) for row in content["leaks"]} == {len(LEAK_FIELDS)}
    assert {len(row) for row in content["sites"]} == {len(SITE_FIELDS)}
    assert {len(row) for row in content["retainers"]} == {len(RETAINER_FIELDS)}
    records = [record for row in content["leaks"] for record in row[LEAK_FIELDS.index("records")]]
    assert {len(record) for record in records} == {len(RECORD_FIELDS)}


def test_every_text_is_packed_once() -> None:
    strings = packed(big_report(500))["strings"]
    assert len(strings) == len(set(strings))
    places = packed(big_report(500))["places"]
    assert len(places) == len(set(places))


def test_hostile_texts_stay_in_the_data() -> None:
    page = html_of(hostile_report())
    elements = Elements(page)
    assert [tag for tag, _ in elements.found].count("script") == 4
    assert "window.hurt=1" not in "".join(text for text in elements.scripts if not text.startswith("{"))
    assert HOSTILE in data_of(page)["strings"]


def test_a_title_is_text() -> None:
    page = html_of(Report(), title="</title><script>1</script>")
    assert "<title>&lt;/title&gt;&lt;script&gt;1&lt;/script&gt;</title>" in page


@pytest.mark.parametrize(
    ("argv", "module", "title"),
    [
        (("train.py", "--name", "two words"), False, "python train.py --name 'two words'"),
        (("package.train",), True, "python -m package.train"),
        ((), False, "an interactive session"),
        (("",), False, "an interactive session"),
    ],
)
def test_the_title_is_the_command_line(argv: tuple[str, ...], module: bool, title: str) -> None:
    program = ProgramFacts(argv, module, "3.11.7", None, None, None, "linux", 1, "2026-11-21T04:00:00Z", 1.0, 0, "exit")
    assert title_of(Report(program=program)) == title


def test_the_licences_of_all_that_is_vendored_are_in_the_page(page: str) -> None:
    for words in (
        "Apache License",
        "The Apache Software Foundation",
        "Mike Bostock",
        "Baidu Inc.",
        "Microsoft Corporation",
    ):
        assert words in page
    assert page.count("<!--") == 1


def vendored() -> Iterator[str]:
    for file in (files(_html.__package__) / "html" / "vendor").iterdir():
        yield file.name


def test_the_library_is_of_the_version_that_the_page_names(page: str) -> None:
    assert {"echarts.min.js", "README.md", "echarts.LICENSE"} <= set(vendored())
    assert "Apache ECharts 6.1.0, Apache-2.0" in page
    library = (files(_html.__package__) / "html" / "vendor" / "echarts.min.js").read_text(encoding="utf-8")
    assert re.search(r'"6\.1\.0"', library)


def test_a_script_that_would_end_its_element_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_html, "_read", lambda name: "'</SCRIPT>'")
    _html._scripts.cache_clear()
    with pytest.raises(ValueError, match="would end its element"):
        _html._scripts()


def test_colours_of_boxes_and_text_have_enough_contrast() -> None:
    style = (files(_html.__package__) / "html" / "page.css").read_text(encoding="utf-8")
    script = (files(_html.__package__) / "html" / "treemap.js").read_text(encoding="utf-8")
    for theme in (style.split('[data-theme="dark"]')[0], style.split('[data-theme="dark"]')[1].split("}")[0]):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))
        for back in ("back", "panel", "faint", "code"):
            for ink in ("ink", "soft", "accent", "bad", "good", "key", "str", "com", "num"):
                assert contrast(colours[ink], colours[back]) >= 4.5, (ink, back)
        assert contrast(colours["mark-ink"], colours["mark"]) >= 4.5
        assert contrast(colours["accent-ink"], colours["accent"]) >= 4.5
    [fills] = re.findall(r"const FILLS = \[(.*?)\]", script)
    for fill in re.findall(r"#[0-9a-f]{6}", fills):
        assert contrast("#ffffff", fill) >= 4.5, fill


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2.2 defines it: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
