"""Whatever passes do, every array holds what plain NumPy would hold, at every step."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from hypothesis import settings, stateful
from hypothesis import strategies as st
from numpy.typing import NDArray

import disposescope as ds

Array = NDArray[Any]


def make_here(size: int, value: float) -> Array:
    return np.full(size, value)


def make_there(size: int, value: float) -> Array:
    return np.zeros(size) + value


def make_by_steps(size: int, value: float) -> Array:
    array = np.empty(size)
    array[:] = value
    return array


MAKERS = (make_here, make_there, make_by_steps)
SIZES = (1, 5, 8, 100, 1000, 5000, 70_000)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("make"), st.integers(0, len(MAKERS) - 1), st.sampled_from(SIZES)),
        st.tuples(st.just("free"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("write"), st.integers(0, 9), st.integers(0, 100)),
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("resize"), st.integers(0, 9), st.sampled_from(SIZES)),
        st.tuples(st.just("escape"), st.integers(0, 9), st.integers(0, 2)),
        st.tuples(st.just("inside"), st.integers(0, len(MAKERS) - 1), st.sampled_from(SIZES)),
        st.tuples(st.just("raise"), st.just(0), st.integers(0, 9)),
    ),
    max_size=12,
)


class Failed(Exception):
    """What a pass raises on purpose."""


class Program:
    """What one pass does; it knows what each array holds, in Python's own numbers."""

    def __init__(self, kept: list[tuple[Any, list[float]]], start: float) -> None:
        self.kept = kept
        self.live: list[tuple[Array, float]] = []
        self.value = start

    def check(self) -> None:
        for array, value in self.live:
            assert (array == value).all()
        for view, values in self.kept:
            assert np.asarray(view).tolist() == values

    def step(self, verb: str, one: int, other: int, scope: ds.DisposeScope) -> None:
        self.value += 1.0
        if verb == "make":
            self.live.append((MAKERS[one](other, self.value), self.value))
        elif verb == "inside":
            with ds.dispose_scope() as inner:
                self.live.append((inner.move_to_outer(MAKERS[one](other, self.value)), self.value))
        elif verb == "raise" and other == 0:
            raise Failed
        elif self.live and verb != "raise":
            self.use(verb, one % len(self.live), other, scope)

    def use(self, verb: str, number: int, other: int, scope: ds.DisposeScope) -> None:
        array, value = self.live[number]
        if verb == "free":
            del self.live[number]
        elif verb == "write":
            array[:] = other
            self.live[number] = array, float(other)
        elif verb == "add":
            again, more = self.live[other % len(self.live)]
            if again.size == array.size:
                self.live.append((array + again, value + more))
        elif verb == "resize":
            array.resize(other, refcheck=False)
            array[:] = value
        elif verb == "escape" and len(self.kept) < 12:
            # A copy of the handle would be resized and written to by later steps.
            del self.live[number]
            view: Any = (array, array[::2], memoryview(array))[other]
            if other == 0:
                scope.move_to_outer(array)
            self.kept.append((view, np.asarray(view).tolist()))


class Passes(stateful.RuleBasedStateMachine):
    """Passes of random programs; now and then one is run again, so that a plan fits it."""

    programs = stateful.Bundle("programs")

    def __init__(self) -> None:
        super().__init__()
        self.workspace = ds.Workspace("machine", verify=True)
        self.kept: list[tuple[Any, list[float]]] = []
        self.value = 0.0

    @stateful.rule(target=programs, steps=STEPS)
    def write_program(self, steps: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        return steps

    @stateful.rule(steps=programs, key=st.sampled_from((None, "other")), times=st.integers(1, 3))
    def run_program(self, steps: list[tuple[str, int, int]], key: str | None, times: int) -> None:
        for _ in range(times):
            self.value += 1000.0
            with contextlib.suppress(Failed):
                self.run_pass(steps, key)

    def run_pass(self, steps: list[tuple[str, int, int]], key: str | None) -> None:
        program = Program(self.kept, self.value)
        with self.workspace.run(key=key) as scope:
            for verb, one, other in steps:
                program.step(verb, one, other, scope)
                program.check()
            program.live.clear()

    @stateful.rule(number=st.integers(0, 11))
    def drop(self, number: int) -> None:
        if self.kept:
            del self.kept[number % len(self.kept)]

    @stateful.rule()
    def plan(self) -> None:
        self.workspace.plan(time_limit=0.001)

    @stateful.invariant()
    def kept_arrays_hold_what_they_held(self) -> None:
        for view, values in self.kept:
            assert np.asarray(view).tolist() == values


TestPasses = Passes.TestCase
TestPasses.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
