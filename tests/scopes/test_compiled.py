"""The compiled part of the scopes: what it refuses, and that it is quiet when the process ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes import compiled
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
sys.version = "3.14.0 free-threading build (main)"
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
            compiled.died(wrong)
        with pytest.raises(TypeError):
            compiled.release(wrong)
    with pytest.raises(TypeError):
        compiled.release_newest([], [])
    kind: Any = None
    with ds.dispose_scope() as scope, pytest.raises(TypeError, match="weak reference"):
        compiled.born(1, kind)
    assert len(scope) == 0
    assert all(entry() is not None for entry in list(LIVE.values()))


def test_the_class_of_scopes_keeps_its_signature():
    import inspect

    assert list(inspect.signature(ds.DisposeScope).parameters) == [
        "name", "strict", "graph", "keep_pages", "arena", "budget", "escapes",
    ]  # fmt: skip
    assert ds.DisposeScope("a").name == "a"
    with pytest.raises(TypeError):
        ds.DisposeScope("a", "b")


@pytest.mark.parametrize(
    "name",
    [
        *("name", "graph", "budget", "strict", "_entries", "_outer", "_below"),
        *("_frame", "_suspended", "_state", "_direct", "_served", "escapes", "_variables", "_escaped"),
    ],
)
def test_a_field_of_a_scope_cannot_be_deleted(name: str):
    """Compiled code reads the fields of a scope while it is open and while it is left."""
    told = run(f"""
import disposescope as ds
with ds.dispose_scope("outer", budget=1_000_000) as outer, ds.dispose_scope("inner", budget=1_000) as scope:
    try:
        del scope.{name}
    except AttributeError as error:
        print(error)
    array = ds.zeros(3)
print(scope.closed)
""")
    assert told == f"{name} of a DisposeScope cannot be deleted\nTrue\n"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("budget", "1 kB", "int or None"), ("graph", 3, "str"), ("strict", None, "bool"), ("_frame", 1, "frame or None")],
)
def test_a_field_of_a_scope_refuses_another_type(name: str, value: object, expected: str):
    scope = ds.dispose_scope()
    before = getattr(scope, name)
    with pytest.raises(TypeError, match=f"^{name} of a DisposeScope must be {expected}, not {type(value).__name__}$"):
        setattr(scope, name, value)
    assert getattr(scope, name) is before
