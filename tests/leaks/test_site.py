"""The site of a birth is the line of the user's code that a person would look at."""

import dis
import multiprocessing
import sys
from dataclasses import dataclass, field
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, Site
from disposescope.leaks.births.log import LOG
from disposescope.scopes.base.sites import is_in_comprehension, line_of_frame, mark_of, site_of


def line_above() -> int:
    return sys._getframe(1).f_lineno - 1


def test_a_site_is_the_line_that_called_the_library() -> None:
    with LeakDetector() as detector:
        kept = ds.zeros(3)
        line = line_above()
    [record] = detector.take_snapshot()
    assert record.site == Site(__file__, line, "test_a_site_is_the_line_that_called_the_library")
    assert kept.shape == (3,)


def test_a_line_of_a_copy_of_a_file_is_a_line_of_the_copy() -> None:
    source = """
def make():
    with ds.dispose_scope():
        short = ds.ones(3)
    return ds.zeros(3), short
"""
    kept: list[object] = []
    with LeakDetector() as detector:
        for file in ("first.py", "second.py"):
            names: dict[str, Any] = {"ds": ds}
            exec(compile(source, file, "exec"), names)
            kept.extend(names["make"]())
        passes = LOG.passes()
    records = detector.take_snapshot()
    assert {(str(record.site), str(record.disposal)) for record in records} == {
        ("first.py:5 in make()", "None"),
        ("second.py:5 in make()", "None"),
        ("first.py:4 in make()", "first.py:3 in make()"),
        ("second.py:4 in make()", "second.py:3 in make()"),
    }
    assert {name: passes.get(name) for name in ("first.py:3", "second.py:3")} == {"first.py:3": 1, "second.py:3": 1}


def test_an_operator_is_a_site_as_a_constructor_is() -> None:
    one = ds.ones(3)
    with LeakDetector() as detector:
        kept = one + 1
        line = line_above()
    [record] = detector.take_snapshot()
    assert record.site is not None
    assert (record.site.line, float(kept[0])) == (line, 2.0)


def test_frames_of_numpy_are_passed_over() -> None:
    parts = [ds.ones(2), ds.ones(3)]
    with LeakDetector() as detector:
        kept = np.concatenate(parts)
        line = line_above()
    [record] = detector.take_snapshot()
    assert record.site is not None
    assert (record.site.file, record.site.line, len(kept)) == (__file__, line, 5)


def test_what_unpickles_for_the_code_that_asks_is_passed_over() -> None:
    here, there = multiprocessing.Pipe()
    queue: Any = multiprocessing.SimpleQueue()
    with LeakDetector() as detector:
        here.send(np.ones(3))
        kept = [there.recv()]
        line = line_above()
        queue.put(np.ones(3))
        kept.append(queue.get())
    for end in (here, there, queue):
        end.close()
    records = [record for record in detector.take_snapshot() if record.nbytes == 24]
    assert [record.site and (record.site.file, record.site.line) for record in records] == [
        (__file__, line),
        (__file__, line + 3),
    ]
    assert len(kept) == 2


def test_the_site_of_what_a_library_of_models_makes_is_its_caller_and_each_operation_is_one() -> None:
    source = """
def forward(fill, join):
    return fill(5), join(3)

class Model:
    def __call__(self, *functions):
        return forward(*functions)
"""
    # Of the libraries that tensors/libraries.py names so.
    library: dict[str, Any] = {"__name__": "transformers.models.own", "__file__": "own.py"}
    exec(compile(source, "/lib/transformers/models/own.py", "exec"), library)
    model = library["Model"]()
    with LeakDetector(frames=3) as detector:
        kept = model(ds.zeros, ds.ones)
        line = line_above()
    records = detector.take_snapshot()
    assert [(record.op, record.site and (record.site.file, record.site.line)) for record in records] == [
        ("fill", (__file__, line)),
        ("join", (__file__, line)),
    ]
    assert all("transformers" not in frame.file for record in records for frame in record.frames)
    assert len(kept) == 2


def test_a_generated_init_is_passed_over_for_its_caller() -> None:
    @dataclass
    class Batch:
        inputs: ds.Tensor = field(default_factory=lambda: ds.zeros(3))

    with LeakDetector() as detector:
        kept = Batch()
    [record] = detector.take_snapshot()
    assert record.site is not None
    assert record.site.file == __file__
    assert kept.inputs.shape == (3,)


def test_generated_code_is_reported_if_there_is_no_other() -> None:
    frame = eval("sys._getframe()", {"sys": sys, "__name__": "generated"})
    mark = mark_of(frame)
    site = site_of(mark)
    assert site is not None
    assert site.file == __file__, "the caller of generated code is a better answer"


def test_a_site_prints_relative_to_the_working_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Site(str(tmp_path / "train.py"), 31, "Trainer.step")) == "train.py:31 in Trainer.step()"
    assert str(Site("/elsewhere/train.py", 31, "<module>")) == "/elsewhere/train.py:31"
    assert str(Site("<stdin>", 1, "<module>")) == "<stdin>:1"


def test_no_mark_has_no_site() -> None:
    assert site_of(None) is None
    assert mark_of(None) is None


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/usr/bin/leak-report", ""),
        ("<frozen runpy>", None),
        ("/lib/disposescope/leaks/commands/__main__.py", "disposescope.leaks.commands"),
    ],
)
def test_what_runs_a_program_is_no_part_of_its_stack(file: str, package: str | None) -> None:
    kept: list[ds.Tensor] = []

    def make() -> None:
        kept.append(ds.zeros(3))

    with LeakDetector(frames=20) as detector:
        exec(compile("make()", file, "exec"), {"make": make, "__name__": "__main__", "__package__": package})
        exec(compile("make()", "/projects/train.py", "exec"), {"make": make, "__name__": "__main__"})
    with_command, with_script = ([site.file for site in record.frames] for record in detector.take_snapshot())
    assert with_command[0] == with_script[0] == __file__
    assert file not in with_command
    assert "/projects/train.py" in with_script


def places(code: CodeType) -> list[tuple[CodeType, int]]:
    """The calls of ``make`` in code, and in the code of its functions and comprehensions."""
    found: list[tuple[CodeType, int]] = []
    is_next = False
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_") and instruction.argval == "make":
            is_next = True
        elif is_next and instruction.opname == "CALL":
            found.append((code, instruction.offset))
            is_next = False
        elif isinstance(instruction.argval, CodeType):
            found += places(instruction.argval)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[make(x) for x in y]", True),
        ("{x: make(x) for x in y}", True),
        ("{make(x) for z in y for x in z if x}", True),
        ("[x for z in y for x in make(z)]", True),
        ("list(make(x) for x in y)", True),
        ("{x: z for z in y for x in make(z)}", True),
        ("for x in y:\n    rows.append(make(x))", False),
        ("for x in y:\n    rows = [*rows, make(x)]", False),
        ("for x in y:\n    rows.append(make([z for z in x]))", False),
        ("for x in make(y):\n    rows = [z for z in x]", False),
        ("[x for x in make(y)]", False),
        ("make(y)", False),
    ],
)
def test_an_element_of_a_comprehension_is_recognised_by_its_instructions(text: str, expected: bool) -> None:
    [place] = places(compile(text, "program.py", "exec"))
    assert is_in_comprehension(*place) is expected


def test_a_frame_at_an_instruction_without_a_line_is_at_the_line_before() -> None:
    def work() -> int:
        first = 1
        return first + 1

    code = work.__code__
    last = len(code.co_code) - 2
    # A stand-in: which instructions have no line differs from one version of Python to the next.
    frame: Any = SimpleNamespace(f_lineno=None, f_code=code, f_lasti=last)
    assert line_of_frame(frame) == code.co_firstlineno + 2
    frame.f_lasti = -1
    assert line_of_frame(frame) == code.co_firstlineno
