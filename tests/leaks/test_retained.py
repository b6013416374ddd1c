"""Rows by what retains memory, as users see them."""

import gc
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disposescope.leaks import Leak, LeakDetector, Site
from disposescope.leaks.holders.growing import adding_lines
from disposescope.leaks.report.report import Report
from disposescope.leaks.report.retainer import Retainer
from disposescope.leaks.reporters.json_report import report_from_json
from disposescope.scopes.base.process import bytes_text

from .example_reports import FORWARD, LOAD, STEP, leak

TRAINER = """
import disposescope as ds
import numpy as np

class Trainer:
    def __init__(self):
        self.history = []
    def step(self):
        loss = np.ones(1000)
        logits = np.ones(2000)
        self.history.append({"loss": loss, "logits": logits})

trainer = Trainer()
for step in range(20):
    with ds.dispose_scope(escapes="keep"):
        trainer.step()
"""


def run(folder: Path, source: str) -> Report:
    (folder / "train.py").write_text(source)
    command = [sys.executable, "-m", "disposescope", "run", "-q", "-o", "r.json", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return report_from_json((folder / "r.json").read_text())


@pytest.mark.parametrize("passes", [3, 20])
def test_a_look_asks_what_retains_memory_only_if_something_grew(passes: int) -> None:
    history: list[object] = []
    with LeakDetector() as detector:
        for _ in range(passes):
            history.append(np.ones(1000))
            detector.mark("step")
        reports = [detector.report(of_program=True, is_look=is_look) for is_look in (False, True)]
    told, of_look = ([row.nbytes for row in report.retainers if row.type == "list"] for report in reports)
    assert told == [passes * 8000]
    assert of_look == (told if passes == 20 else [])
    assert [report.kept_nbytes + report.nbytes for report in reports] == [passes * 8000] * 2


class Node:
    """A node of a linked list."""

    def __init__(self, value: object, previous: object) -> None:
        self.value = value
        self.previous = previous


class Edge(Node):
    """What stands between two nodes."""


@pytest.mark.parametrize(
    ("link", "type_name"),
    [
        (Node, "Node"),
        (lambda value, head: Node([value, np.ones(1000)], head), "Node"),
        # The first node keeps its own value.
        (lambda value, head: Node(value, Edge(np.ones(1000), head)), "Edge"),
        (lambda value, head: [value, head], "list"),
    ],
)
def test_a_linked_list_is_reported_under_its_first_node(
    link: Callable[[object, object], object], type_name: str
) -> None:
    head: object = None
    with LeakDetector() as detector:
        for _ in range(300):
            head = link(np.ones(1000), head)
        report = detector.report(of_program=True)
    # As many rows as nodes, each with the way to it, would take time for all pairs of nodes.
    assert max(report.retainers, key=lambda row: row.nbytes).type == type_name
    assert len(report.retainers) <= 3


def test_lines_that_one_list_retains_are_one_row_that_names_the_line_which_appends(tmp_path: Path) -> None:
    report = run(tmp_path, TRAINER)
    [row] = report.retainers
    told = str(report).split("\n")[1]
    assert told.startswith(
        "     trainer.history (list, +2 tensors and 24.0 kB a pass) retains 480.0 kB born at 2 lines;"
    )
    assert told.endswith("train.py:11")
    assert (row.holder, row.type, row.length, row.count, row.nbytes) == (
        "module __main__.trainer.history",
        "list",
        20,
        40,
        20 * 3000 * 8,
    )
    assert [site.line for site in row.sites] == [10, 9]
    assert row.grown_at is not None
    assert row.grown_at.line == 11
    command = [sys.executable, "-m", "disposescope", "show", "--by", "holder", "r.json"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert shown.startswith("trainer.history (list, ")
    assert shown.endswith("retains 480.0 kB born at 2 lines; it is added to at train.py:11\n")


def retainer(**changes: Any) -> Retainer:
    fields: dict[str, Any] = {
        "holder": "module __main__.trainer.history",
        "type": "list",
        "length": 20,
        "count": 60,
        "nbytes": 60_000_000,
        "sites": (STEP, FORWARD),
        "count_per_pass": 1.0,
        "nbytes_per_pass": 2e6,
        "grown_at": Site(STEP.file, 34, "Trainer.step"),
        "kinds": ("torch.Tensor",),
        "pid": leak().pid,
    }
    return Retainer(**{**fields, **changes})


def text_with(*retainers: Retainer, leaks: tuple[Leak, ...] = (leak(), leak(site=FORWARD))) -> list[str]:
    nbytes = sum(row.nbytes for row in leaks)
    return str(Report(count=60, nbytes=nbytes, leaks=leaks, retainers=retainers)).split("\n")


def test_what_retains_memory_is_named_however_much_else_the_program_holds(tmp_path: Path) -> None:
    [row] = run(tmp_path, f"clutter = [[] for _ in range(200_000)]\n{TRAINER}").retainers
    assert (row.holder, row.count) == ("module __main__.trainer.history", 40)


def test_the_text_names_at_its_top_what_retains_most_of_what_leaks() -> None:
    headline, cause, after, *_ = text_with(retainer())
    assert headline == "2 leaks, 60 tensors, 60.0 MB"
    assert cause == (
        "     trainer.history (list, +1 tensor and 2.0 MB a pass) retains 60.0 MB born at 2 lines; "
        "it is added to at /projects/speech/train.py:34"
    )
    assert after == ""


@pytest.mark.parametrize(
    "row",
    [
        # The leak says all of it: its line, its bytes and its holder.
        retainer(sites=(STEP,), nbytes=30_000_000, grown_at=STEP),
        retainer(sites=(STEP,), nbytes=30_000_000, grown_at=None),
        # Most of it is not of what leaks.
        retainer(sites=(LOAD, STEP)),
        retainer(nbytes=6_000_000),
        retainer(pid=retainer().pid + 1),
        retainer(holder="several holders together", type="", length=None, grown_at=None),
    ],
)
def test_a_cause_that_says_no_more_than_the_leaks_is_not_told(row: Retainer) -> None:
    assert text_with(row)[1] == ""


def test_at_most_three_causes_are_told() -> None:
    rows = [retainer(holder=f"module __main__.box{number}") for number in range(5)]
    assert [line.split()[0] for line in text_with(*rows)[1:4]] == ["box0", "box1", "box2"]
    assert text_with(*rows)[4] == ""


def test_the_headline_does_not_take_for_alive_what_was_freed() -> None:
    alive, freed = leak(), leak(site=FORWARD, freed="when main() returned")
    size = bytes_text(freed.nbytes)
    assert text_with(leaks=(alive, alive))[0] == "2 leaks, 60 tensors, 60.0 MB"
    assert text_with(leaks=(alive, freed))[0] == f"2 leaks, 60 tensors, 60.0 MB, {size} of it freed in the end"
    assert text_with(leaks=(freed, freed))[0] == "2 leaks, 60 tensors, 60.0 MB, all freed in the end"


def test_a_size_stands_once_in_the_headline() -> None:
    large, small = leak(kind="alive", nbytes=63_000_000, unjudged="growth"), leak(kind="alive", nbytes=8, site=FORWARD)
    report = Report(kept=(large, small), kept_nbytes=63_000_008)
    assert str(report).startswith("no leak found; 63.0 MB alive in the end: 30 × /projects/speech/train.py:31 held by ")
    assert "and 1 smaller line (mark steps" in str(report).split("\n")[0]
    few = replace(report, kept=(replace(large, unjudged="trend"), small))
    assert few.verdict == "undecided"
    assert "whether 30 × /projects/speech/train.py:31 held by " in str(few)
    assert "grow is not known: too few were in the sample" in str(few)
    alone = str(replace(report, kept=(large,)))
    assert alone.startswith("no leak found; 63.0 MB alive in the end: 30 × ")
    two = str(replace(report, kept=(large, replace(small, nbytes=9_000_000)), kept_nbytes=72_000_000))
    assert two.startswith("no leak found; 72.0 MB alive in the end: 63.0 MB: 30 × ")


def test_what_one_object_holds_of_many_lines_is_named_in_the_headline() -> None:
    rows = tuple(leak(kind="alive", site=replace(STEP, line=line), nbytes=1_000_000) for line in range(1, 41))
    loaded = retainer(holder="module __main__.loaded", type="dict", length=40, nbytes=40_000_000, count_per_pass=0.0)
    report = Report(kept=rows, kept_nbytes=40_000_000, retainers=(loaded,))
    expected = "no leaks; 40.0 MB alive in the end: loaded (dict, 40 items) retains 40.0 MB born at 2 lines"
    assert str(report).split("\n")[0].startswith(expected)
    # Where one line has most of it, the line and its holder say more.
    report = replace(report, kept=(replace(rows[0], nbytes=30_000_000), *rows[1:11]))
    assert str(report).split("\n")[0].startswith("no leaks; 40.0 MB alive in the end: 30.0 MB: ")


def test_what_is_held_through_a_graph_is_said_to_be_held_by_the_graph() -> None:
    chain = "module __main__.trainer.history[0].grad_fn.next_functions[0][0].next_functions[0][0]._saved_self"
    text = str(Report(kept=(leak(kind="alive", unjudged="growth", holders=(chain,)),), kept_nbytes=30_000_000))
    assert " held by the graph of trainer.history, none ever released" in text.split("\n")[0]
    assert text.endswith(", held by the graph of module __main__.trainer.history[0]")


def test_a_storage_counts_once_and_what_two_hold_is_retained_by_neither(tmp_path: Path) -> None:
    rows = run(
        tmp_path,
        "import numpy as np\nmine, yours = [], []\n"
        "for _ in range(5):\n    kept = np.ones(1000)\n    mine.append(kept)\n    mine.append(kept[:10])\n"
        "both = np.ones(4000)\nmine.append(both)\nyours.append(both)\ndel both, kept\n",
    ).retainers
    assert {row.holder: row.nbytes for row in rows} == {
        "module __main__.mine": 5 * 8000,
        "several holders together, such as module __main__.mine and module __main__.yours": 32_000,
    }
    # Several lines append to it, so none is named.
    assert [row.grown_at for row in rows] == [None, None]


def test_holders_of_graphs_that_share_memory_are_named() -> None:
    torch = pytest.importorskip("torch")
    losses: list[object] = []
    by_step: dict[int, object] = {}
    with LeakDetector() as detector:
        weight = torch.ones(1000, requires_grad=True)
        for step in range(20):
            saved = torch.ones(1000)
            losses.append((saved * weight).sum())
            del saved
            by_step[step] = losses[-1]
            detector.mark("step")
        report = detector.report(of_program=True)
    [leak] = [leak for leak in report.leaks if leak.kind == "graph"]
    names = ["local 'losses'", "local 'by_step'"]
    assert [name in carrier for name, carrier in zip(names, leak.carriers, strict=True)] == [True, True]
    [row] = [row for row in report.retainers if not row.type]
    assert all(name in row.holder for name in names)


def test_a_buffer_that_several_arrays_show_counts_once(tmp_path: Path) -> None:
    [row] = run(
        tmp_path,
        "import numpy as np\nheads, data = [], bytes(4096)\n"
        "for _ in range(3):\n    heads.append(np.frombuffer(data, dtype=np.uint8))\ndel data\n",
    ).retainers
    assert (row.holder, row.count, row.nbytes) == ("module __main__.heads", 3, 4096)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("table = np.empty(9, dtype=object)\nfor i in range(9):\n    table[i] = np.ones(1000)\n", {"table": 72_072}),
        ("x = np.ones(1000)\ny = x[:500]\nz = np.ones(2000)\n", {"z": 16_000, "several holders together": 8_000}),
        ("pair = np.ones(1000), np.ones(2000)\n", {"pair": 24_000}),
        (
            "raw, heads = [], []\nfor _ in range(5):\n    raw.append(bytes(8000))\n"
            "    heads.append(np.frombuffer(raw[-1], dtype=np.uint8))\n",
            {"several holders together": 40_000},
        ),
        (
            "class Node:\n    def __init__(self, value, previous):\n"
            "        self.value, self.previous = value, previous\n"
            "head = None\nfor _ in range(50):\n    head = Node(np.ones(1000), head)\n",
            {"head": 400_000},
        ),
    ],
    ids=["array of objects", "variables", "tuple", "buffers", "linked list"],
)
def test_the_only_holder_of_memory_retains_it(tmp_path: Path, source: str, told: dict[str, int]) -> None:
    rows = run(tmp_path, f"import numpy as np\n{source}").retainers
    # Without the names of several holders.
    assert {row.holder.removeprefix("module __main__.").partition(",")[0]: row.nbytes for row in rows} == told


def test_a_model_counts_where_its_parts_are_retained() -> None:
    torch = pytest.importorskip("torch")
    cache: dict[int, object] = {}
    optimizers: list[object] = []
    with LeakDetector() as detector:
        for trial in range(20):
            model = torch.nn.Sequential(torch.nn.Linear(100, 99), torch.nn.Linear(99, 9))
            cache[trial] = model
            # The optimizer refers to the last layer only.
            optimizer = torch.optim.SGD(model[1].parameters(), momentum=0.9)
            model(torch.ones(2, 100)).sum().backward()
            optimizer.step()
            optimizers.append(optimizer)
            del model, optimizer
            detector.mark("trial")
        report = detector.report(of_program=True)
    [leak] = [leak for leak in report.leaks if leak.tensor_kind == "torch.nn.Module"]
    first, last = 99 * 101 * 4, 9 * 100 * 4
    # With the gradients; the momentum of the last layer is in the optimizer.
    assert leak.nbytes == 20 * (2 * first + 3 * last)
    names = {"'cache'": "cache", "'optimizers'": "optimizers", "several": "both"}
    rows = {names[re.findall("several|'cache'|'optimizers'", row.holder)[0]]: row for row in report.retainers}
    assert {name: (row.count, row.nbytes) for name, row in rows.items()} == {
        "cache": (20, 20 * 2 * first),
        "optimizers": (20, 20 * last),
        "both": (20, 20 * 2 * last),
    }
    assert leak.trend is not None
    nbytes_per_pass = sum(row.nbytes_per_pass for row in report.retainers)
    assert nbytes_per_pass == pytest.approx(leak.trend.nbytes_per_pass)


def test_what_a_library_holds_too_is_retained_by_neither(tmp_path: Path) -> None:
    rows = run(
        tmp_path,
        "import logging\nimport numpy as np\nmine = [np.ones(1000) for _ in range(5)]\n"
        "logging.getLogger('trainer').last = mine[0]\n",
    ).retainers
    assert {row.holder: row.nbytes for row in rows} == {
        "module __main__.mine": 4 * 8000,
        "several holders together": 8_000,
    }


@pytest.mark.parametrize(
    ("source", "holders"),
    [
        ("small = [np.ones(9)]\nalso = [*small, *small]\none = [np.ones(5000)]\ntwo = [*one]\n", ("one", "two")),
        ("array = np.ones(1000)\none = [[array] for _ in range(900)]\ntwo = [[array]]\ndel array\n", ("one[", "two[")),
    ],
    ids=["the largest", "not one of them again and again"],
)
def test_holders_of_the_most_memory_are_named(tmp_path: Path, source: str, holders: tuple[str, str]) -> None:
    [row] = run(tmp_path, f"import numpy as np\n{source}").retainers
    assert row.holder.startswith("several holders together, such as ")
    named = row.holder.removeprefix("several holders together, such as ").split(" and ")
    assert [
        name.removeprefix("module __main__.").startswith(holder) for name, holder in zip(named, holders, strict=True)
    ]


def test_memory_that_a_variable_names_too_is_not_retained_by_its_list(tmp_path: Path) -> None:
    rows = run(
        tmp_path,
        "import numpy as np\nmine = [np.ones(1000) for _ in range(3)]\nlast = mine[-1]\n",
    ).retainers
    assert sum(row.nbytes for row in rows if row.holder == "module __main__.mine") == 16_000


def test_the_line_of_a_library_is_not_where_the_program_adds(tmp_path: Path) -> None:
    [row] = run(
        tmp_path,
        "import queue\nimport numpy as np\nwaiting = queue.Queue()\n"
        "for _ in range(5):\n    waiting.put(np.ones(1000))\n",
    ).retainers
    assert (row.holder, row.grown_at) == ("module __main__.waiting.queue", None)


def test_holders_that_differ_by_a_key_are_one_row(tmp_path: Path) -> None:
    rows = run(
        tmp_path,
        "import numpy as np\nclass Codec:\n    known = {}\n    def __init__(self):\n"
        "        self.basis = [np.ones(800), np.ones(801)]\nfor key in 'xy':\n    Codec.known[key] = Codec()\n",
    ).retainers
    [row] = rows
    assert row.holder == "module __main__.Codec.known[...] (2 keys).basis"
    assert row.nbytes == 2 * 1601 * 8


@pytest.mark.parametrize(
    ("source", "name", "is_attribute", "lines"),
    [
        ("history = []\ndef step(x):\n    history.append(x)\n", "history", False, [(3, "step")]),
        ("def step(history, x):\n    history.append(x)\n", "history", False, []),
        ("def step(x):\n    global history\n    history += [x]\n", "history", False, [(3, "step")]),
        ("cache = {}\ncache['a'] = 1\ncache.update(b=2)\n", "cache", False, [(2, "<module>"), (3, "<module>")]),
        ("class A:\n    def f(self, x):\n        self.seen[x] = x\n", "seen", True, [(3, "f")]),
        ("seen[1] = 2\n", "seen", True, []),
        ("this is no Python", "history", False, []),
    ],
)
def test_lines_that_add_to_a_container(
    source: str, name: str, is_attribute: bool, lines: list[tuple[int, str]]
) -> None:
    assert adding_lines(source, name, is_attribute=is_attribute) == lines


CONTAINERS = ("list", "dict", "object", "objects")


class Thing:
    """An object with attributes."""


@dataclass(frozen=True)
class Heap:
    """A heap of objects. Object 0 has the variables; of a view the only item is what it shows."""

    kinds: list[str]
    items: list[list[int]]

    def fill(self, module: types.ModuleType) -> None:
        """Make the objects; keep those that variables refer to, and what these lead to."""
        things: list[Any] = [module]
        for number, kind in enumerate(self.kinds[1:], 1):
            nbytes, items = self.nbytes(number), self.items[number]
            thing: Any
            if kind == "list":
                thing = []
            elif kind == "dict":
                thing = {}
            elif kind == "object":
                thing = Thing()
            elif kind == "objects":
                thing = np.empty(len(items), dtype=object)
            elif kind == "array":
                thing = np.ones(nbytes, dtype=np.uint8)
            elif kind == "bytes":
                thing = bytes(nbytes)
            elif kind == "view":
                thing = things[items[0]][:10]
            else:
                thing = np.frombuffer(things[items[0]], dtype=np.uint8)
            things.append(thing)
        for thing, kind, items in zip(things, self.kinds, self.items, strict=True):
            for place, item in enumerate(items):
                if kind == "list":
                    thing.append(things[item])
                elif kind in ("dict", "objects"):
                    thing[place] = things[item]
                elif kind in ("object", "module"):
                    setattr(thing, f"v{place}", things[item])

    def nbytes(self, number: int) -> int:
        """Return the bytes of an array or of bytes; no two sums of them are equal."""
        return 2048 << number

    def object_at(self, holder: str) -> int:
        """Return the number of the object that an expression reaches."""
        places = holder.replace(".v", " ").replace("[", " ").replace("]", "").replace(".base", " 0").split()
        number = 0
        for place in places:
            number = self.items[number][int(place)]
        return number

    def reached(self, without: int | None = None) -> set[int]:
        """Return the objects that variables lead to, without one object."""
        met, pending = set[int](), [0]
        while pending:
            number = pending.pop()
            if number not in met and number != without:
                met.add(number)
                pending += self.items[number]
        return met

    def storages(self) -> set[int]:
        """Return the arrays with memory of their own, and the bytes that arrays show."""
        there = self.reached()
        shown = {self.items[number][0] for number in there if self.kinds[number] == "buffer"}
        return {number for number in there if self.kinds[number] == "array" or number in shown}

    def retainers_of(self, storage: int) -> set[int]:
        """Return the objects that can be said to retain some memory."""
        found = set[int]()
        for number in range(1, len(self.kinds)):
            holders = [holder for holder in self.reached() for item in self.items[holder] if item == number]
            is_named = self.kinds[number] in CONTAINERS[:3] or (holders == [0] and self.kinds[number] != "bytes")
            if is_named and storage not in self.reached(without=number):
                found.add(number)
        return found


@st.composite
def heaps(draw: st.DrawFn) -> Heap:
    kinds, items = ["module"], [list[int]()]
    size = draw(st.integers(2, 10))
    for number in range(1, size + 1):
        arrays = [at for at in range(1, number) if kinds[at] == "array"]
        buffers = [at for at in range(1, number) if kinds[at] == "bytes"]
        shows = [*["view"] * bool(arrays), *["buffer"] * bool(buffers)]
        kind = draw(st.sampled_from([*CONTAINERS, "array", "bytes", *shows]))
        kinds.append(kind)
        shown = arrays if kind == "view" else buffers
        items.append([draw(st.sampled_from(shown))] if kind in ("view", "buffer") else [])
    anything = range(1, size + 1)
    # The garbage collector frees no cycle through an array of objects.
    leaves = [number for number in anything if kinds[number] not in CONTAINERS]
    for number, kind in enumerate(kinds):
        possible = leaves if kind == "objects" else anything
        if kind in ("module", *CONTAINERS) and possible:
            items[number] = draw(st.lists(st.sampled_from(possible), max_size=4))
    return Heap(kinds, items)


@pytest.fixture(scope="module")
def module() -> Iterator[types.ModuleType]:
    """A module of the program, for variables."""
    made = sys.modules["heap_of_objects"] = types.ModuleType("heap_of_objects")
    made.__file__ = __file__
    yield made
    del sys.modules["heap_of_objects"]


@settings(max_examples=60, deadline=None)
@given(heap=heaps())
def test_what_is_said_to_retain_memory_frees_it_when_it_goes(module: types.ModuleType, heap: Heap) -> None:
    with LeakDetector() as detector:
        heap.fill(module)
        gc.collect()
        rows = detector.report(of_program=True).retainers
    # Without the memory of the arrays of objects themselves.
    rows = tuple(replace(row, nbytes=row.nbytes // 2048 * 2048) for row in rows)
    for place in range(len(heap.items[0])):
        delattr(module, f"v{place}")
    gc.collect()
    storages = heap.storages()
    shared = 0
    assert sum(row.nbytes for row in rows) == sum(map(heap.nbytes, storages))
    for row in rows:
        if row.holder.startswith("several holders together"):
            shared += row.nbytes
        elif "keys)" not in row.holder and "…" not in row.holder:
            number = heap.object_at(row.holder.removeprefix("module heap_of_objects"))
            freed = storages - heap.reached(without=number)
            assert {storage for storage in storages if row.nbytes & heap.nbytes(storage)} <= freed, row
    assert shared == sum(heap.nbytes(storage) for storage in storages if not heap.retainers_of(storage))
