"""The reporters are pure: their text is compared whole, and JSON comes back as what was written."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disposescope import leaks
from disposescope.leaks import (
    Band,
    Excerpt,
    Leak,
    LiveSite,
    Pass,
    Process,
    ProgramFacts,
    Record,
    Report,
    Sample,
    Settings,
    Site,
    Suppressed,
    Timeline,
    Trend,
    UnusedSuppression,
)
from disposescope.leaks.report.report import text_of
from disposescope.leaks.reporters.html_page import LEAK_FIELDS, packed
from disposescope.leaks.reporters.json_report import ReportFileError, json_of, report_from_json, schema
from disposescope.scopes.base.process import bytes_text
from tests.leaks import example_reports as examples

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
        "device": "cpu:0",
    }
    return Record(**{**fields, **changes})


VIEW = record(shape=(10,), used_nbytes=40, scope=None, generation=1, site=Site("x.py", 7, "<module>"))
DEAD = record(
    state="disposed", nbytes=0, used_nbytes=0, storages=(), disposal=Site("train.py", 40, "Trainer.step"), scope=""
)
UNKNOWN = record(
    kind="Batch", shape=None, dtype=None, site=None, nbytes=0, used_nbytes=0, storages=(), age_s=None, generation=None
)


def leak(*records: Record, **changes: object) -> Leak:
    oldest = records[0]
    fields = {
        "kind": "alive",
        "sure": "possible",
        "tensor": str(oldest),
        "tensor_kind": oldest.kind,
        "device": "cpu:0",
        "count": len(records),
        "nbytes": sum(dict(storage for record in records for storage in record.storages).values()),
        "used_nbytes": sum(record.used_nbytes for record in records),
        "site": oldest.site,
        "frames": () if oldest.site is None else (oldest.site,),
        "op": None,
        "state": oldest.state,
        "disposal": oldest.disposal,
        "scopes": tuple(dict.fromkeys(record.scope for record in records)),
        "oldest_age_s": oldest.age_s,
        "newest_age_s": records[-1].age_s,
        "generation": oldest.generation,
        "trend": None,
        "holders": (),
        "carriers": (),
        "members": (),
        "explanation": "It is there.",
        "fingerprint": "0" * 40,
        "pid": 1234,
        "excerpt": None,
        "records": records,
    }
    return Leak(**{**fields, **changes})


SCOPE = leak(
    UNKNOWN,
    kind="scope",
    sure="certain",
    tensor=None,
    tensor_kind=None,
    count=1,
    site=SITE,
    oldest_age_s=3.0,
    generation=0,
    explanation="The scope 'epoch' was not closed.",
    records=(),
)
PROGRAM = ProgramFacts(
    ("train.py", "--x"), False, "3.11.7", "2.4.6", None, None, "linux", 1234, "2026-11-21T04:00:00Z", 12.5, 0, "exit"
)
REPORT = Report(
    program=PROGRAM,
    settings=Settings(frames=2, kinds=("Tensor",)),
    count=8,
    nbytes=8_000_000,
    leaks=(
        leak(
            record(),
            record(storages=((1, 4_000_000),), scope="eval"),
            record(shape=(2,), storages=((1, 4_000_000),)),
            kind="growth",
            sure="likely",
            op="relu",
            frames=(SITE, Site("train.py", 90, "<module>")),
            trend=Trend(50, 1.0, 4_000_000.0, 3, 0.99, ((1, 1, 4_000_000), (2, 2, 8_000_000))),
            holders=("module __main__.KEPT[0]", "frame train.py:90 main(): local 'kept'[0]"),
            excerpt=Excerpt("train.py", 29, ("a", "b", "c"), 31),
        ),
        leak(VIEW, kind="view", holders=("module __main__.preview",), carriers=("module __main__.total.grad_fn",)),
        leak(DEAD, DEAD, kind="escaped", sure="certain", holders=("module __main__.HISTORY[0]['x']",)),
        leak(UNKNOWN, members=("A.b -> B",)),
        SCOPE,
    ),
    kept=(leak(record(), holders=("module __main__.weights",)),),
    leftovers=(leak(DEAD, holders=("module __main__.batch",)),),
    suppressed=(Suppressed(leak(record()), "a cache that is meant"),),
    unused_suppressions=(UnusedSuppression(".leak-report.toml", 1, "was fixed"),),
    sites=(LiveSite(SITE, (SITE,), "Tensor", "cpu:0", 3, 1, 2, 100), LiveSite(None, (), "Tensor", "", 1, 1, 1, 1)),
    timeline=Timeline(
        (Sample(0.0, 1, {"cpu:0": 5}, 0),), (Pass(1.0, 1, "step"),), (Band("step", 0.1, None, 0, "MainThread"),)
    ),
    processes=(Process(1234, None, "main", "exit", 0, 1), Process(1235, 1234, "worker", "killed", None, 1)),
)
TEXT = """\
5 leaks, 7 tensors, 8.0 MB

  1. growth (likely): 3 × Tensor float32 (1000, 1000) and 1 other shape, 8.0 MB
     born at train.py:31 in Trainer.step() by relu, in scope 'step', 'eval', 2.0 s and 12 closed scopes ago
     called from train.py:90
     grows by 1 and 4.0 MB per pass, over 50 passes
     held by module __main__.KEPT[0]
     held by frame train.py:90 main(): local 'kept'[0]

  2. view (possible): 1 × Tensor float32 (10,), 4.0 MB
     born at x.py:7, outside every scope, 2.0 s and 1 closed scope ago
     view: 40 bytes used, 4.0 MB pinned
     held by the graph of module __main__.total
     held by module __main__.preview

  3. escaped (certain): 2 × Tensor float32 (1000, 1000), 0 bytes, disposed under a live reference
     born at train.py:31 in Trainer.step(), in a scope without a name, 2.0 s and 12 closed scopes ago
     disposed at train.py:40 in Trainer.step()
     held by module __main__.HISTORY[0]['x']

  4. alive (possible): 1 × Batch, 0 bytes
     born at an unknown site, in scope 'step'

  5. scope (certain): The scope 'epoch' was not closed.
     opened at train.py:31 in Trainer.step(), 3.0 s and 0 closed scopes ago

no leak, alive in the end:
     1 × Tensor float32 (1000, 1000), 4.0 MB, born at train.py:31 in Trainer.step(), kept by module __main__.weights

memory at the end: 1 byte resident, 5 bytes in use by tensors, 0 bytes kept by allocators for later use

suppressed:
     1 × Tensor float32 (1000, 1000) born at train.py:31 in Trainer.step(): a cache that is meant

suppressions that matched nothing:
     .leak-report.toml, number 2: was fixed"""


def test_the_text_is_this() -> None:
    assert text_of(REPORT) == TEXT
    assert str(REPORT) == TEXT
    left_over = "1 × Tensor float32 (1000, 1000), born at train.py:31 in Trainer.step(), named by module __main__.batch"
    assert left_over not in TEXT
    assert left_over in text_of(REPORT, everything=True)


def test_the_text_of_a_sum_of_losses_says_over_how_many_steps_its_graph_reaches() -> None:
    what, remedy = "Its graph reaches over 60 steps of an optimizer and grows with each", "add up loss.item()"
    rows = [examples.leak(kind="graph", explanation=f"{what}: {remedy}.", remedy=remedy)]
    assert f"\n     {what}\n" in text_of(replace(Report(), leaks=tuple(rows), count=30))


def test_the_text_of_native_growth_in_several_processes_has_the_bytes_of_all() -> None:
    row = examples.leak(kind="native", sure="possible", tensor=None, count=4, nbytes=120_000_000, site=None)
    text = text_of(replace(Report(), leaks=(row,), count=4))
    assert "native (possible), 4 processes, 120.0 MB: It is there" in text


def test_the_text_says_that_what_a_killed_process_had_is_as_last_known() -> None:
    processes = (Process(1, None, "main", "exit", 0, 1), Process(2, 1, "worker", "killed", None, 1))
    whole = replace(Report(), leaks=(replace(examples.leak(kind="worker"), pid=2),), count=30, processes=processes)
    assert "\n\n1 process was killed: what it had is told as it was last known" in text_of(whole)
    own = replace(whole, leaks=(replace(whole.leaks[0], pid=1),))
    assert "killed" not in text_of(own)


def test_the_text_counts_steps_only_where_there_were_some() -> None:
    trend = replace(examples.trend(), over="births")
    rows = [examples.leak(kind="graph", carriers=("module __main__.total",), trend=trend)]
    assert "held by the graph of module __main__.total\n" in text_of(replace(Report(), leaks=tuple(rows), count=30))


def test_the_text_names_a_graph_once_and_not_its_nodes() -> None:
    holders = ("module __main__.losses[0].grad_fn.next_functions[0][0]._saved_self", "module __main__.ctx.saved[0]")
    rows = [examples.leak(kind="graph", carriers=("module __main__.losses[0]",), holders=holders)]
    report = replace(Report(), leaks=tuple(rows), count=30)
    held_by = ["the graph of module __main__.losses[0]", "module __main__.ctx.saved[0]"]
    lines = [line.strip() for line in text_of(report).splitlines() if "held by" in line]
    assert lines == [f"held by {text}" for text in held_by]
    content = packed(report)
    assert [content["strings"][number] for number in content["leaks"][0][LEAK_FIELDS.index("held_by")]] == held_by


def test_the_text_of_a_report_without_leaks_is_two_words() -> None:
    assert text_of(Report()) == "no leaks"


def test_json_comes_back_as_what_was_written() -> None:
    text = json_of(REPORT)
    content = json.loads(text)
    assert (content["format"], content["version"]) == ("disposescope-leak-report", 2)
    assert (content["count"], content["nbytes"], content["program"]["argv"]) == (8, 8_000_000, ["train.py", "--x"])
    assert content["leaks"][1]["site"] == {"file": "x.py", "line": 7, "function": "<module>"}
    assert report_from_json(text) == REPORT


def test_keys_that_a_reader_does_not_know_are_ignored() -> None:
    content = json.loads(json_of(REPORT))
    content["colour"] = content["leaks"][0]["colour"] = "green"
    assert report_from_json(json.dumps(content)) == REPORT


def test_the_published_schema_is_that_of_the_model_and_of_every_report() -> None:
    published = json.loads(Path(leaks.__file__).with_name("report.schema.json").read_text(encoding="utf-8"))
    assert published == schema()
    for report in (REPORT, Report()):
        assert list(faults(json.loads(json_of(report)), published, published)) == []
    broken = json.loads(json_of(REPORT))
    broken["leaks"][0]["kind"] = "other"
    del broken["timeline"]["bands"][0]["to_s"]
    broken["sites"][0]["count"] = True
    assert list(faults(broken, published, published)) == [
        ".leaks[0].kind is 'other'",
        ".sites[0].count is no integer",
        ".timeline.bands[0].to_s is missing",
    ]


def faults(value: Any, rule: dict[str, Any], root: dict[str, Any], where: str = "") -> Iterator[str]:
    """Where a value breaks a schema, for the words of JSON schema that ours uses."""
    if "$ref" in rule:
        yield from faults(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")], root, where)
    if "anyOf" in rule:
        found = [list(faults(value, option, root, where)) for option in rule["anyOf"]]
        if all(found):
            yield from found[0]
    if "enum" in rule and value not in rule["enum"]:
        yield f"{where} is {value!r}"
    if "const" in rule and value != rule["const"]:
        yield f"{where} is {value!r}"
    types = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    kind = rule.get("type")
    if kind == "number":
        if type(value) not in (int, float):
            yield f"{where} is no number"
    elif kind is not None and type(value) is not types[kind]:
        yield f"{where} is no {kind}"
        return
    if kind == "array":
        items = rule.get("prefixItems")
        if items is not None and len(items) != len(value):
            yield f"{where} has {len(value)} items"
        for index, item in enumerate(value):
            yield from faults(item, rule["items"] if items is None else items[index], root, f"{where}[{index}]")
    if kind == "object":
        for name in rule.get("required", ()):
            if name not in value:
                yield f"{where}.{name} is missing"
        for name, item in value.items():
            part = rule.get("properties", {}).get(name, rule.get("additionalProperties"))
            if part is not None:
                yield from faults(item, part, root, f"{where}.{name}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is truncated or no JSON"),
        (json_of(REPORT)[:200], "is truncated or no JSON"),
        ("[1]", "is no leak report"),
        ('{"format": "other"}', "is no leak report"),
        ('{"format": "disposescope-leak-report", "version": 1}', "has version 1 of the format, and this program reads"),
        ('{"format": "disposescope-leak-report", "version": 3}', "has version 3 of the format, and this program reads"),
        (json_of(REPORT).replace('"alive"', '"asleep"'), "is damaged (leaks[0].state is 'asleep', not one of 'alive'"),
        (
            json_of(REPORT).replace('"line": 31', '"line": null'),
            "is damaged (leaks[0].site.line is None, not of type integer",
        ),
        (json_of(REPORT).replace('"kind": "growth",', ""), "is damaged (leaks[0].kind is missing)"),
        (json_of(REPORT).replace('"line": 31', '"line": true'), "is damaged (leaks[0].site.line is True, not of type"),
        (json_of(REPORT).replace('"leaks": [', '"leaks": 3, "x": ['), "is damaged (leaks is 3, not an array)"),
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
