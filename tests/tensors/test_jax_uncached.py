"""First calls and transfers of JAX are births of the thread, task and line that made them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.scopes.base.sites import site_of
from tests.leaks.births import place_of

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax: Any = pytest.importorskip("jax")
jnp: Any = pytest.importorskip("jax.numpy")

from disposescope.tensors.jax import births


@pytest.fixture(autouse=True)
def _taught() -> None:
    with ds.dispose_scope():
        pass


# Each compiles, or is no call of compiled code.
FRESH: dict[str, Callable[[int], Any]] = {
    "first call": lambda size: jax.jit(lambda x: x * size + 1)(np.ones(size)),
    "device_put": lambda size: jax.device_put(np.ones(size)),
    "asarray": lambda size: jnp.asarray(np.ones(size)),
    "random key": lambda size: jax.random.key_data(jax.random.key(size)),
    "while tracing gradients": lambda size: jax.grad(lambda x: (x * size).sum())(jnp.asarray(np.ones(size))),
}


@pytest.mark.parametrize("way", FRESH)
def test_each_of_several_threads_owns_what_it_makes(way: str) -> None:
    start = threading.Barrier(3)
    failures: list[Any] = []

    def work(size: int) -> None:
        start.wait()
        with ds.dispose_scope() as scope:
            array = FRESH[way](size)
            start.wait()
            if ds.owner_of(array) is not scope:
                failures.append(ds.owner_of(array))
        if not array.is_deleted():
            failures.append(array)

    threads = [threading.Thread(target=work, args=(1000 + k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_another_thread_looked_at_before_its_birth_was_told_is_owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads look at all arrays of the process, and cannot tell whose a new one is."""
    see = births._record_results

    def looked_at_elsewhere(results: list[Any]) -> None:
        looker = threading.Thread(target=births.look)
        looker.start()
        looker.join()
        see(results)

    def make() -> None:
        with ds.dispose_scope() as scope:
            array = jax.device_put(np.ones(1234))
            told.append(ds.owner_of(array) is scope)
        told.append(array.is_deleted())

    told: list[bool] = []
    monkeypatch.setattr(births, "_record_results", looked_at_elsewhere)
    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    assert told == [True, True]


@pytest.mark.parametrize("way", ["first call", "device_put"])
def test_each_of_several_tasks_owns_what_it_makes(way: str) -> None:
    async def task(size: int) -> list[bool]:
        outside = FRESH[way](size)
        with ds.dispose_scope() as scope:
            array = FRESH[way](size + 1)
            await asyncio.sleep(0)
            told = [ds.owner_of(array) is scope]
        return [*told, array.is_deleted(), not outside.is_deleted()]

    async def main() -> list[list[bool]]:
        return await asyncio.gather(*(task(2000 + 10 * k) for k in range(3)))

    assert asyncio.run(main()) == [[True] * 3] * 3


@pytest.mark.parametrize("way", ["first call", "device_put", "asarray"])
def test_a_detector_names_the_line_that_made_it(way: str) -> None:
    line = FRESH[way].__code__.co_firstlineno
    with ds.LeakDetector() as detector:
        outside = FRESH[way](3000)
        places = [place_of(seen) for seen in detector.memory() if seen.kind == "jax.Array"]
        sites = {site_of(mark) for mark in places}
        assert {(site.file, site.line) for site in sites if site is not None} == {(__file__, line)}
        with ds.dispose_scope():
            array = FRESH[way](3001)
            [record] = [one for one in detector.take_snapshot() if "(3001,)" in str(one)]
            assert record.site is not None
            assert (record.site.file, record.site.line) == (__file__, line)
            del array
    assert not outside.is_deleted()


@pytest.mark.parametrize("way", ["first call", "device_put", "asarray"])
def test_a_budget_refuses_it_and_the_scope_goes_on(way: str) -> None:
    with ds.dispose_scope(budget="1 MiB") as scope:
        assert scope.arena is not None
        source = np.ones(100)
        with pytest.raises(MemoryError, match="a budget refuses"), ds.dispose_scope(arena=False):
            FRESH[way](2_000_000)
        gc.collect()
        assert scope.arena.charged_nbytes == source.nbytes
        kept = FRESH[way](1000)
        assert ds.owner_of(kept) is scope
        assert scope.arena.charged_nbytes >= source.nbytes + kept.nbytes


def test_what_a_transfer_gives_back_unchanged_is_no_birth() -> None:
    with ds.dispose_scope() as outer:
        array = jax.device_put(np.ones(3))
        with ds.dispose_scope() as inner:
            same = jax.device_put(array)
            assert same not in inner
        assert array.sum() == 3
        assert array in outer


def test_constants_of_compiled_code_are_nobodys_on_any_thread() -> None:
    table = np.arange(5.0)
    step = jax.jit(lambda x: x + jnp.asarray(table))
    results: list[Any] = []

    def work() -> None:
        with ds.dispose_scope() as scope:
            results.append(np.asarray(step(np.ones(5))).copy())
            assert len(scope) <= 1

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [list(result) for result in results] == [[1, 2, 3, 4, 5]] * 2
