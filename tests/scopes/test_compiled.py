"""Promises of the compiled part of the scopes: what it refuses, and that it is quiet at the end of the process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes.extension import COMPILED
from disposescope.scopes.identity import LIVE


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", ["scopes.compiled", "tensors.arena.compiled"])
def test_a_checkout_that_was_not_built_says_what_to_run(name: str):
    """None in `sys.modules` stands for a module that is not there."""
    told = run(f"""
import sys
sys.modules["disposescope.{name}"] = None
try:
    import disposescope
    disposescope.zeros(1)
except ImportError as error:
    print(error)
""")
    assert told == (
        f"disposescope.{name} has not been built for this Python: "
        "run `pip install -e .` in the checkout of disposescope\n"
    )


def test_a_free_threaded_build_of_python_is_refused():
    told = run("""
import sys
sys.abiflags = "t"
try:
    import disposescope
except ImportError as error:
    print(error)
""")
    assert told.startswith("disposescope does not support free-threaded builds of Python: ")
    assert len(told.splitlines()) == 1


def test_the_detector_names_the_line_of_a_birth_and_of_a_disposal():
    program = """
import disposescope as ds
with ds.LeakDetector():
    with ds.dispose_scope():
        kept = ds.zeros(3)
        other = ds.zeros(3)
        ds.dispose(other)
    for tensor in (kept, other):
        try: tensor + 1
        except ds.DisposedError as error: print(error)
"""
    first, second = run(program).splitlines()
    assert "born at <string>:5, disposed at <string>:4" in first
    assert "born at <string>:6, disposed at <string>:7" in second


def test_resources_die_quietly_while_the_interpreter_goes_down():
    program = """
import atexit, disposescope as ds
kept = [ds.zeros(3) for _ in range(10)]
scope = ds.dispose_scope().__enter__()
kept += [ds.zeros(3) for _ in range(10)]
kept.append(kept)
atexit.register(lambda: kept.append(ds.zeros(3)))
"""
    assert run(program) == ""


def test_what_is_no_entry_is_refused():
    for wrong in (None, 1, object()):
        with pytest.raises(TypeError):
            COMPILED.died(wrong)
        with pytest.raises(TypeError):
            COMPILED.release(wrong)
    with pytest.raises(TypeError):
        COMPILED.release_newest([], [])
    with pytest.raises(RuntimeError, match="once in a process"):
        COMPILED.bind({})
    kind: Any = None
    with ds.dispose_scope() as scope, pytest.raises(TypeError, match="weak reference"):
        COMPILED.born(1, kind)
    assert len(scope) == 0
    assert all(entry() is not None for entry in list(LIVE.values()))


def test_the_class_of_scopes_keeps_its_signature():
    import inspect

    assert list(inspect.signature(ds.DisposeScope).parameters) == [
        "name", "strict", "graph", "keep_pages", "arena", "budget",
    ]  # fmt: skip
    assert ds.DisposeScope("a").name == "a"
    with pytest.raises(TypeError):
        ds.DisposeScope("a", "b")
