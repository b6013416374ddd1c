"""The compiled hot paths and the Python that stands in for them do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes.extension import COMPILED
from disposescope.scopes.identity import LIVE

compiled_only = pytest.mark.skipif(COMPILED is None, reason="the extension was not built, or is not wanted")

PROGRAM = """
import random
import sys
import disposescope as ds
from disposescope.scopes.ownership import born
from disposescope.scopes.identity import DEAD, LIVE
from disposescope.scopes.listeners import LISTENERS
from disposescope.scopes.kinds import Kind, add_kind

class Thing:
    def __init__(self, number):
        self.number = number
        born(self, KIND)

def release(thing):
    thing.released = True
    if thing.number % 13 == 0:
        raise ValueError(thing.number)

KIND = Kind(cls=Thing, name="Thing", release=release, storages=lambda _: (), device=lambda _: "cpu",
            describe=lambda thing: f"Thing {thing.number}")
add_kind(KIND)
numbers = {}
log = []

class Listener:
    def born(self, entry):
        numbers[entry] = entry().number
        in_scope = entry.counted is entry.home.period
        log.append(("born", numbers[entry], entry.owner and entry.owner.name, entry.unit, entry.members, in_scope))
    def moved(self, entry, source, target):
        log.append(("moved", numbers[entry], source and source.name, target and target.name))
    def disposed(self, entry, owner):
        log.append(("disposed", numbers[entry], owner and owner.name, entry.owner))
    def died(self, entry):
        log.append(("died", numbers.pop(entry)))
    def opened(self, scope): log.append(("opened", scope.name))
    def closed(self, scope): log.append(("closed", scope.name, len(scope)))
    def story(self, entry): return ""

def told(error):
    if isinstance(error, BaseExceptionGroup):
        return [type(error).__name__, str(error), [told(each) for each in error.exceptions]]
    return [type(error).__name__, str(error), told(error.__context__) if error.__context__ else None]

def play(seed, listening):
    choose = random.Random(seed)
    kept, scopes, count = [], [], 0
    if listening:
        LISTENERS.append(Listener())
    for step in range(150):
        what = choose.randrange(10)
        try:
            if what < 4:
                count += 1
                thing = Thing(count)
                if what:
                    kept.append(thing)
                del thing
            elif what == 4 and kept:
                del kept[choose.randrange(len(kept))]
            elif what == 5 and kept:
                ds.dispose(choose.choice(kept))
            elif what == 6 and len(scopes) < 6:
                scopes.append(ds.dispose_scope(f"s{step}").__enter__())
            elif what == 7 and scopes:
                error = KeyError("in flight") if choose.random() < 0.3 else None
                scopes.pop().__exit__(type(error) if error else None, error, None)
            elif what == 8 and scopes and kept:
                scopes[-1].move_to_outer(choose.choice(kept))
            elif what == 9 and scopes and choose.random() < 0.2:
                scopes.pop(0).close()
        except Exception as error:
            log.append(told(error))
        owners = [ds.owner_of(thing) for thing in kept]
        log.append([(thing.number, ds.is_disposed(thing), owner and owner.name) for thing, owner in zip(kept, owners)])
        log.append(([len(scope) for scope in scopes], len(LIVE), len(DEAD), ds.statistics()))
    while scopes:
        try:
            scopes.pop().__exit__(None, None, None)
        except Exception as error:
            log.append(told(error))
    kept.clear()
    del LISTENERS[:]
    log.append((len(LIVE), len(DEAD), ds.statistics(), ds.current_scope()))

for seed in range(40):
    play(seed, seed % 2)
print(*log, sep="\\n")
"""


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


@compiled_only
def test_programs_by_chance_do_the_same_step_by_step_compiled_and_in_python():
    compiled, plain = (run(PROGRAM, DISPOSESCOPE_PURE_PYTHON=pure).splitlines() for pure in ("0", "1"))
    assert len(compiled) > 10_000
    for number, (ours, theirs) in enumerate(zip(compiled, plain, strict=True)):
        assert ours == theirs, number


def test_the_environment_asks_for_python_alone():
    told = "import disposescope; from disposescope.scopes.extension import COMPILED; print(COMPILED is None)"
    assert run(told, DISPOSESCOPE_PURE_PYTHON="1") == "True\n"


@pytest.mark.parametrize("pure", ["0", "1"])
def test_the_detector_names_the_line_of_a_birth_and_of_a_disposal_both_ways(pure: str):
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
    first, second = run(program, DISPOSESCOPE_PURE_PYTHON=pure).splitlines()
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


@compiled_only
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
