"""The reporters are pure: their text is compared whole, and JSON comes back as what was written."""

import json

import pytest

from disposescope.scopes.leaks import Group, Record, Report, Site
from disposescope.scopes.leaks.reporters._json import ReportFileError, json_of, report_from_json
from disposescope.scopes.leaks.reporters._text import bytes_text, text_of

SITE = Site("train.py", 31, "Trainer.step")


def record(**changes: object) -> Record:
    fields = {
        "kind": "Tensor",
        "shape": (1000, 1000),
        "dtype": "float32",
        "nbytes": 4_000_000,
        "used_nbytes": 4_000_000,
        "storages": ((0, 4_000_000),),
        "site": SITE,
        "disposal": None,
        "scope": "step",
        "age_s": 2.04,
        "generation": 12,
        "state": "alive",
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


VIEW = record(shape=(10,), used_nbytes=40, scope=None, generation=1, site=Site("x.py", 7, "<module>"))
DEAD = record(
    state="disposed", nbytes=0, used_nbytes=0, storages=(), disposal=Site("train.py", 40, "Trainer.step"), scope=""
)
UNKNOWN = record(
    kind="Batch", shape=None, dtype=None, site=None, nbytes=0, used_nbytes=0, storages=(), age_s=None, generation=None
)
REPORT = Report(
    (
        Group(
            SITE,
            "alive",
            "__main__.KEPT[0]",
            (
                record(),
                record(storages=((1, 4_000_000),), scope="eval"),
                record(shape=(2,), storages=((1, 4_000_000),)),
            ),
        ),
        Group(VIEW.site, "alive", "__main__.preview", (VIEW,)),
        Group(SITE, "disposed", "__main__.HISTORY[0]['x']", (DEAD, DEAD)),
        Group(None, "alive", "not found", (UNKNOWN,)),
    ),
    (Group(SITE, "disposed", "__main__.batch", (DEAD,)),),
)
TEXT = """\
7 leaks at 3 sites, 8.0 MB pinned, worst first

  1. 3 × Tensor float32 (1000, 1000) and 1 other shape, 8.0 MB, alive
     born at train.py:31 in Trainer.step(), in scope 'step', 'eval', 2.0 s and 12 closed scopes ago
     held by __main__.KEPT[0]

  2. 1 × Tensor float32 (10,), 4.0 MB, alive
     born at x.py:7, outside every scope, 2.0 s and 1 closed scope ago
     view: 40 bytes used, 4.0 MB pinned
     held by __main__.preview

  3. 2 × Tensor float32 (1000, 1000), 0 bytes, disposed under a live reference
     born at train.py:31 in Trainer.step(), in a scope without a name, 2.0 s and 12 closed scopes ago
     disposed at train.py:40 in Trainer.step()
     held by __main__.HISTORY[0]['x']

  4. 1 × Batch, 0 bytes, alive
     born at an unknown site, in scope 'step'
     holder not found

no leak, disposed and only named by a left-over variable:
     1 × Tensor float32 (1000, 1000) born at train.py:31 in Trainer.step(): __main__.batch"""


def test_the_text_is_this() -> None:
    assert text_of(REPORT) == TEXT
    assert str(REPORT) == TEXT


def test_nothing_found_is_told_in_two_words() -> None:
    assert text_of(Report(())) == "no leaks"


def test_json_comes_back_as_what_was_written() -> None:
    text = json_of(REPORT, {"argv": ["train.py"], "status": 0})
    content = json.loads(text)
    assert (content["format"], content["version"]) == ("disposescope-leak-report", 1)
    assert (content["count"], content["nbytes"], content["program"]["argv"]) == (7, 8_000_000, ["train.py"])
    assert content["groups"][1]["site"] == {"file": "x.py", "line": 7, "function": "<module>"}
    assert report_from_json(text) == REPORT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is truncated or no JSON"),
        (json_of(REPORT)[:200], "is truncated or no JSON"),
        ("[1]", "is no leak report"),
        ('{"format": "other"}', "is no leak report"),
        ('{"format": "disposescope-leak-report", "version": 2}', "has version 2 of the format, and this program reads"),
        ('{"format": "disposescope-leak-report", "version": 1}', "is damaged (KeyError: 'groups')"),
        (json_of(REPORT).replace('"alive"', '"asleep"'), "is damaged (ValueError: unknown state 'asleep')"),
    ],
)
def test_a_file_that_is_no_report_gets_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ReportFileError) as caught:
        report_from_json(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_bytes_have_units() -> None:
    assert [bytes_text(size) for size in (0, 1, 999, 1000, 999_949, 999_950, 4_000_000, 5 * 10**9, 7 * 10**12)] == [
        "0 bytes",
        "1 byte",
        "999 bytes",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "4.0 MB",
        "5.0 GB",
        "7.0 TB",
    ]
