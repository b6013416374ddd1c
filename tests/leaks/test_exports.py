"""What `leak-report export` writes is what other programs read.

The whole of it is compared on a small report.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import pickletools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disposescope.leaks import Band, Leak, LiveSite, Pass, Process, ProgramFacts, Report, Sample, Timeline
from disposescope.leaks.reporters.csv_table import COLUMNS, csv_of
from disposescope.leaks.reporters.github import github_of
from disposescope.leaks.reporters.html_page import LEAK_FIELDS, packed
from disposescope.leaks.reporters.memory_viz import memory_viz_of
from disposescope.leaks.reporters.perfetto import perfetto_of
from disposescope.leaks.reporters.speedscope import speedscope_of
from disposescope.leaks.saved.files import merged
from tests.leaks.example_reports import (
    MAIN,
    MODULE,
    STEP,
    hostile_report,
    leak,
    training_report,
    trend,
)

LEAK = leak(count=3, nbytes=3001, used_nbytes=3001, oldest_age_s=8.0, newest_age_s=4.0, trend=trend(2, 1000, 0))
SMALL = Report(
    program=ProgramFacts(
        ("train.py",), False, "3.11.7", None, None, None, "linux", 7, "2026-11-21T04:00:00Z", 10.0, 0, "exit"
    ),
    count=3,
    nbytes=3001,
    leaks=(LEAK,),
    sites=(
        LiveSite(STEP, (STEP, MAIN), "torch.Tensor", "cpu:0", 4, 4001, 5000, 9),
        LiveSite(None, (), "jax.Array", "cuda:1", 1, 512, 512, 1),
    ),
    timeline=Timeline(
        (Sample(0.5, 1000, {"cpu:0": 10}, 3),),
        (Pass(1.0, 1, "step"), Pass(2.0, 2, "step")),
        (Band("step", 0.0, 1.0, 0, "MainThread"), Band("", 0.5, None, 0, "MainThread")),
    ),
    processes=(Process(7, None, "main", "exit", 0, 1),),
)


def test_speedscope_has_a_frame_for_each_line_and_a_sample_for_each_site() -> None:
    assert json.loads(speedscope_of(SMALL, "python train.py")) == {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "python train.py",
        "exporter": "disposescope",
        "activeProfileIndex": 0,
        "shared": {
            "frames": [
                {"name": "main (line 58)", "file": MAIN.file, "line": 58},
                {"name": "Trainer.step (line 31)", "file": STEP.file, "line": 31},
                {"name": "unknown site"},
                {"name": "<module> (line 71)", "file": MODULE.file, "line": 71},
            ]
        },
        "profiles": [
            profile("live bytes", [[0, 1], [2]], [4001, 512]),
            profile("leaked bytes", [[3, 0, 1]], [3001]),
            profile("peak bytes", [[0, 1], [2]], [5000, 512]),
        ],
    }


def profile(name: str, samples: list[list[int]], weights: list[int]) -> dict[str, object]:
    common = {"type": "sampled", "name": name, "unit": "bytes", "startValue": 0, "endValue": sum(weights)}
    return {**common, "samples": samples, "weights": weights}


@pytest.mark.parametrize("report", [SMALL, Report(), training_report(), hostile_report()])
def test_speedscope_keeps_the_published_schema(report: Report) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema", reason="the schema is checked by jsonschema")
    schema = json.loads((Path(__file__).parent / "speedscope.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(speedscope_of(report, "x")), schema)


def test_perfetto_has_counters_slices_instants_and_leaks() -> None:
    content = json.loads(perfetto_of(SMALL))
    assert content["otherData"] == {
        "argv": ["train.py"],
        "started_at": "2026-11-21T04:00:00Z",
        "leaks": 3,
        "nbytes": 3001,
    }
    assert content["displayTimeUnit"] == "ms"
    told = {
        "bytes": 3001,
        "count": 3,
        "sure": "certain",
        "tensor": "torch.Tensor float32 (250000,)",
        "held by": "module train.trainer.history[17]",
        "explanation": "It is there, and nothing says why.",
    }
    name = f"growth: {STEP}"
    at_leak = {"cat": "leak", "name": name, "id": 0, "tid": 0, "pid": 7}
    at_scope = {"ph": "X", "cat": "scope", "pid": 7}
    assert content["traceEvents"] == [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "main 7"}},
        {"ph": "C", "ts": 500_000, "name": "resident memory", "args": {"bytes": 1000}, "pid": 7},
        {"ph": "C", "ts": 500_000, "name": "live bytes", "args": {"cpu:0": 10}, "pid": 7},
        {"ph": "C", "ts": 500_000, "name": "cached bytes", "args": {"bytes": 3}, "pid": 7},
        {"ph": "C", "ts": 1_000_000, "name": name, "args": {"bytes": 1000}, "pid": 7},
        {"ph": "C", "ts": 2_000_000, "name": name, "args": {"bytes": 2000}, "pid": 7},
        {"ph": "i", "s": "p", "cat": "pass", "name": "step 1", "ts": 1_000_000, "tid": 0, "pid": 7},
        {"ph": "i", "s": "p", "cat": "pass", "name": "step 2", "ts": 2_000_000, "tid": 0, "pid": 7},
        {**at_leak, "ph": "b", "ts": 2_000_000, "args": told},
        {**at_leak, "ph": "e", "ts": 10_000_000},
        {**at_scope, "name": "step", "ts": 0, "dur": 1_000_000, "tid": 1, "args": {"depth": 0, "closed": True}},
        {
            **at_scope,
            "name": "scope without a name",
            "ts": 500_000,
            "dur": 9_500_000,
            "tid": 2,
            "args": {"depth": 0, "closed": False},
        },
        {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "MainThread"}, "pid": 7},
        {"ph": "M", "name": "thread_sort_index", "tid": 1, "args": {"sort_index": 1}, "pid": 7},
        {"ph": "M", "name": "thread_name", "tid": 2, "args": {"name": "MainThread (2)"}, "pid": 7},
        {"ph": "M", "name": "thread_sort_index", "tid": 2, "args": {"sort_index": 2}, "pid": 7},
    ]


def test_the_growth_of_a_line_is_left_out_where_its_passes_could_be_of_two_loops() -> None:
    passes = (*SMALL.timeline.passes, Pass(3.0, 1, "epoch"), Pass(4.0, 2, "epoch"))
    content = json.loads(perfetto_of(replace(SMALL, timeline=replace(SMALL.timeline, passes=passes))))
    assert not [event for event in content["traceEvents"] if event["ph"] == "C" and event["name"].startswith("growth")]


def test_perfetto_shows_what_was_recorded_of_each_process() -> None:
    early = replace(SMALL.program, pid=8, started_at="2026-11-21T03:59:59.500Z")
    whole = merged([SMALL, replace(SMALL, program=early, leaks=())])
    events = json.loads(perfetto_of(whole))["traceEvents"]
    for kind in ("C", "i", "X"):
        assert {event["pid"] for event in events if event["ph"] == kind} == {7, 8}
    resident = [event for event in events if event.get("name") == "resident memory"]
    assert [(event["pid"], event["ts"]) for event in resident] == [(7, 1_000_000), (8, 500_000)]
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert not [event for event in events if event["ph"] == "b" and event["pid"] == 8]


bands = st.builds(
    lambda name, start, length, depth, thread: Band(
        name, start, None if length is None else start + length, depth, thread
    ),
    st.sampled_from(["", "step", "epoch"]),
    st.floats(0, 10),
    st.one_of(st.none(), st.floats(0, 10)),
    st.integers(0, 3),
    st.sampled_from(["MainThread", "loader"]),
)


@settings(deadline=None)
@given(st.lists(bands, max_size=30))
def test_slices_of_a_track_lie_within_one_another_or_apart(rows: list[Band]) -> None:
    report = replace(SMALL, timeline=Timeline((), (), tuple(rows)))
    slices = [event for event in json.loads(perfetto_of(report))["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(rows)
    for track in {event["tid"] for event in slices}:
        open_ends: list[int] = []
        for event in (event for event in slices if event["tid"] == track):
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1]
            open_ends.append(event["ts"] + event["dur"])


def test_csv_has_a_row_for_each_leak() -> None:
    kept = replace(LEAK, trend=None, site=None, holders=("a", 'b,"c"'), scopes=("step", None), oldest_age_s=None)
    report = replace(SMALL, kept=(kept,))
    assert csv_of(report) == (
        ",".join(COLUMNS) + "\r\n"
        'leaks,growth,certain,"torch.Tensor float32 (250000,)",torch.Tensor,cpu:0,3,3001,3001,'
        "/projects/speech/train.py,31,Trainer.step,relu,alive,,,step,8.0,4.0,60,2,1.0,1000.0,0,0.998,"
        'module train.trainer.history[17],,,"It is there, and nothing says why.",' + "1f" * 20 + ",4711,,,0\r\n"
        'kept,growth,certain,"torch.Tensor float32 (250000,)",torch.Tensor,cpu:0,3,3001,3001,,,,relu,alive,,,'
        '"step\noutside every scope",,4.0,60,,,,,,"a\nb,""c""",,,"It is there, and nothing says why.",'
        + "1f" * 20
        + ",4711,,,0\r\n"
    )


def test_csv_comes_back_as_it_was() -> None:
    report = training_report()
    rows = list(csv.DictReader(io.StringIO(csv_of(report), newline="")))
    assert [row["list"] for row in rows] == ["leaks"] * 7 + ["kept", "leftovers", "suppressed"]
    for row, one in zip(rows, report.leaks, strict=False):
        assert int(row["nbytes"]) == one.nbytes
        assert tuple(filter(None, row["holders"].split("\n"))) == one.holders
        assert row["explanation"] == one.explanation
        assert (row["site"] if "site" in row else row["file"]) == ("" if one.site is None else one.site.file)
    assert rows[-1]["reason"] == "a cache of fixed size"


def test_memory_viz_has_a_segment_for_each_line_and_a_block_for_each_tensor() -> None:
    stack = [
        {"filename": STEP.file, "line": 31, "name": "Trainer.step"},
        {"filename": MAIN.file, "line": 58, "name": "main"},
    ]
    unknown = [{"filename": "unknown site", "line": 0, "name": "unknown"}]
    snapshot = pickle.loads(memory_viz_of(SMALL))
    # cuda:1 keeps its number, and what is no cuda device comes after it.
    assert [len(trace) for trace in snapshot["device_traces"]] == [0, 0, 3]
    start = 1 << 32
    sizes = [1001, 1000, 1000, 1000]
    addresses = [start, start + 1001, start + 2001, start + 3001]
    state = {"state": "active_allocated", "frames": stack}
    assert [segment["device"] for segment in snapshot["segments"]] == [2, 1]
    assert snapshot["segments"][0]["blocks"] == [
        {"size": size, "requested_size": size, "address": address, **state}
        for size, address in zip(sizes, addresses, strict=True)
    ]
    assert snapshot["segments"][1]["address"] == start + 4096
    assert snapshot["segments"][1]["blocks"] == [
        {"size": 512, "requested_size": 512, "address": start + 4096, "state": "active_allocated", "frames": unknown}
    ]
    # The three that leaked were born 8 to 4 seconds before the end; the fourth was there before.
    assert snapshot["device_traces"][2] == [
        {"action": "alloc", "addr": address, "size": 1000, "stream": 0, "time_us": time_us, "frames": stack}
        for address, time_us in zip(addresses[1:], (2_000_000, 4_000_000, 6_000_000), strict=True)
    ]


def test_memory_viz_is_a_pickle_that_its_viewer_in_the_browser_can_read() -> None:
    known = {
        "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "EMPTY_DICT",
        "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE",
        "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1",
        "TUPLE2", "TUPLE3",
    }  # fmt: skip
    assert {opcode.name for opcode, _, _ in pickletools.genops(memory_viz_of(training_report()))} <= known


owners = st.builds(
    lambda line, kind, device, count, nbytes: (replace(STEP, line=line), kind, device, count, nbytes),
    st.integers(1, 4),
    st.sampled_from(["torch.Tensor", "jax.Array"]),
    st.sampled_from(["cpu:0", "cuda:0", "cuda:3", ""]),
    st.integers(0, 3000),
    st.integers(0, 10_000),
)


@settings(deadline=None)
@given(st.lists(owners, max_size=6), st.lists(owners, max_size=6))
def test_memory_viz_keeps_every_byte_and_allocates_what_it_holds(sites: list[Any], leaks: list[Any]) -> None:
    distinct = {row[:3]: LiveSite(row[0], (row[0],), *row[1:], row[4], row[3]) for row in sites}
    found = [one_leak(*row) for row in leaks]
    snapshot = pickle.loads(memory_viz_of(replace(SMALL, sites=tuple(distinct.values()), leaks=tuple(found))))
    of_sites = sum(row.nbytes for row in distinct.values() if row.count)
    alone = sum(one.nbytes for one in found if (one.site, one.tensor_kind, one.device or "") not in distinct)
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == of_sites + alone
    blocks = {}
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"] > 0
        assert len(segment["blocks"]) <= 1000
        blocks |= {(segment["device"], block["address"]): block["size"] for block in segment["blocks"]}
    events = [(device, event) for device, trace in enumerate(snapshot["device_traces"]) for event in trace]
    assert len({(device, event["addr"]) for device, event in events}) == len(events)
    assert all(blocks[device, event["addr"]] == event["size"] for device, event in events)
    for trace in snapshot["device_traces"]:
        assert [event["time_us"] for event in trace] == sorted(event["time_us"] for event in trace)


def one_leak(site: Any, kind: str, device: str, count: int, nbytes: int) -> Leak:
    return replace(LEAK, site=site, frames=(site,), tensor_kind=kind, device=device or None, count=count, nbytes=nbytes)


VIEWER = """
import pathlib, runpy, sys, warnings
import torch.cuda
warnings.filterwarnings("ignore", category=RuntimeWarning)  # of runpy: torch has imported the module
# PyTorch 2.9 has no such option.
filters = "filter_freed" in pathlib.Path(torch.cuda.__file__).with_name("_memory_viz.py").read_text()
for file in sys.argv[1:]:
    for verb, *options in (["stats"], ["trace"], ["trace_plot", *["--filter_freed"] * filters], ["segment_plot"]):
        output = ["-o", f"{file}.{verb}.html"] if verb.endswith("_plot") else []
        sys.argv = ["_memory_viz", verb, *options, file, *output]
        runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
"""


def test_pytorch_s_memory_viewer_takes_the_snapshot(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reports = {"small": SMALL, "training": training_report(), "hostile": hostile_report(), "empty": Report()}
    for name, report in reports.items():
        (tmp_path / name).write_bytes(memory_viz_of(report))
    # One process for all: importing torch takes longer than the rest.
    done = subprocess.run(
        [sys.executable, "-c", VIEWER, *reports],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    segments = [line for line in done.stdout.splitlines() if line.startswith("segments: ")]
    assert segments == ["segments: 2", "segments: 9", "segments: 2", "segments: 0"]
    for name in reports:
        for verb in ("trace_plot", "segment_plot"):
            assert "snapshot.pickle" in (tmp_path / f"{name}.{verb}.html").read_text()


def test_the_bytes_of_graphs_are_told_everywhere() -> None:
    report = replace(SMALL, leaks=(replace(LEAK, graph_nbytes=9_600_000),))
    size = "3.0 kB and graphs of 9.6 MB"
    assert size in str(report)
    assert size in github_of(report)
    assert packed(report)["leaks"][0][LEAK_FIELDS.index("graph_nbytes")] == 9_600_000
    assert next(csv.DictReader(io.StringIO(csv_of(report), newline="")))["graph_nbytes"] == "9600000"
