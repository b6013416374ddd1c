"""The figures of scopes and of the whole are exact at each look, whatever happened in between."""

from __future__ import annotations

import contextvars
import random
import threading
from typing import Any

import numpy as np
import pytest

import disposescope as ds

SIZES = (1, 16, 64, 65, 512, 513, 1000, 5000, 100_000, 300_000)


class Model:
    """What a scope has in use, by hand."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.births = self.nbytes = self.peak = 0

    def make(self, size: int) -> None:
        self.arrays.append(np.empty(size, "u1"))
        self.births += 1
        self.nbytes += size
        self.peak = max(self.peak, self.nbytes)

    def free(self, at: int) -> None:
        self.nbytes -= self.arrays.pop(at).nbytes

    def agrees_with(self, scope: ds.DisposeScope) -> bool:
        told = scope.arena
        assert told is not None
        seen = (told.blocks, told.live_nbytes, told.peak_nbytes, told.hits + told.misses, scope.nbytes)
        return seen == (len(self.arrays), self.nbytes, self.peak, self.births, self.nbytes)


def run_about(models: list[Model], steps: int, chance: random.Random) -> None:
    """Births in the innermost scope, and deaths in all of them."""
    for _ in range(steps):
        model = chance.choice(models)
        if model is models[-1] and chance.random() < 0.6:
            model.make(chance.choice(SIZES))
        elif model.arrays:
            model.free(chance.randrange(len(model.arrays)))


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_exact_after_many_births_and_deaths_in_nested_scopes(seed: int) -> None:
    chance = random.Random(seed)
    before = ds.arena_statistics()
    with ds.dispose_scope() as outer:
        models = [Model()]
        run_about(models, 100, chance)
        assert models[0].agrees_with(outer)
        with ds.dispose_scope() as inner:
            models.append(Model())
            for _ in range(5):
                run_about(models, chance.choice((1, 3, 100)), chance)
                told = ds.arena_statistics()
                assert told.blocks - before.blocks == sum(len(model.arrays) for model in models)
                assert told.live_nbytes - before.live_nbytes == sum(model.nbytes for model in models)
                assert models[0].agrees_with(outer)
                assert models[1].agrees_with(inner)
            models[1].arrays.clear()
        run_about(models[:1], 50, chance)
        assert models[0].agrees_with(outer)
        models[0].arrays.clear()
    after = ds.arena_statistics()
    assert (after.blocks, after.live_nbytes) == (before.blocks, before.live_nbytes)
    assert after.hits + after.misses - before.hits - before.misses >= sum(model.births for model in models)


def test_the_most_at_once_is_that_between_two_looks() -> None:
    with ds.dispose_scope() as scope:
        np.empty(10, "u1")
        for count in (3, 7, 2, 20, 20):
            held = [np.empty(1000, "u1") for _ in range(count)]
            del held
        told = scope.arena
        assert told is not None
        assert (told.live_nbytes, told.peak_nbytes) == (0, 20_000)
        held = [np.empty(1000, "u1") for _ in range(15)]
        with ds.dispose_scope() as inner:
            del held
            handed_over = [np.empty(900, "u1") for _ in range(20)]
            assert inner.arena is not None
            assert inner.arena.peak_nbytes == 18_000
        assert scope.arena is not None
        assert (scope.arena.live_nbytes, scope.arena.peak_nbytes) == (18_000, 20_000)
        del handed_over
        assert scope.nbytes == 0


def test_the_most_of_all_is_found_when_a_scope_grows_beyond_it() -> None:
    with ds.dispose_scope():
        held = [np.empty(1000, "u1")]
        most = ds.arena_statistics().peak_nbytes
        live = ds.arena_statistics().live_nbytes
        while live <= most + 100_000:
            held += [np.empty(100_000, "u1") for _ in range(20)]
            live += 2_000_000
        told = ds.arena_statistics()
        assert (told.live_nbytes, told.peak_nbytes) == (live, live)


def test_threads_and_contexts_that_take_turns_are_counted_for_their_own_scopes() -> None:
    figures: list[tuple[int, int]] = []
    turn = threading.Barrier(2)

    def work() -> None:
        with ds.dispose_scope() as scope:
            held = []
            for _ in range(20):
                turn.wait()
                held += [np.empty(10, "u1") for _ in range(3)]
                turn.wait()
            figures.append((scope.nbytes, len(held)))

    thread = threading.Thread(target=work)
    thread.start()
    with ds.dispose_scope() as scope:
        held = []
        elsewhere = contextvars.copy_context()
        for _ in range(20):
            turn.wait()
            turn.wait()
            held += [np.empty(7, "u1") for _ in range(2)]
            held.append(elsewhere.run(np.empty, 5, "u1"))
        thread.join()
        assert scope.nbytes == 20 * (2 * 7 + 5)
        assert all(ds.owner_of(array) is scope for array in held)
    assert figures == [(20 * 3 * 10, 60)]


def test_arrays_freed_on_another_thread_leave_the_figures_of_their_scope() -> None:
    with ds.dispose_scope() as scope:
        held = [np.empty(100, "u1") for _ in range(50)]
        thread = threading.Thread(target=lambda: held.__delitem__(slice(30)))
        thread.start()
        thread.join()
        assert scope.nbytes == 2000
        held.clear()
        assert scope.nbytes == 0
