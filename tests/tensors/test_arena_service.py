"""In a scope NumPy asks the arena for memory, on each thread, in tasks and in generators.

Outside it does not.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import disposescope as ds

handler_name: Any = np._core.multiarray.get_handler_name


def test_the_arena_serves_a_block_and_nothing_outside_of_it() -> None:
    before = handler_name()
    with ds.dispose_scope():
        assert handler_name() == "disposescope_arena"
        with ds.dispose_scope():
            assert handler_name(np.zeros(3)) == "disposescope_arena"
        assert handler_name() == "disposescope_arena"
    assert handler_name() == before
    assert handler_name(np.zeros(3)) == before


def test_without_the_arena_numpys_allocator_serves_also_inside_a_scope_with_it() -> None:
    with ds.dispose_scope(), ds.dispose_scope(arena=False) as plain:
        assert handler_name() == "default_allocator"
        array = np.zeros(10)
        assert array not in plain
        assert plain.arena is None
        with ds.dispose_scope() as inner:
            assert handler_name() == "disposescope_arena"
            assert np.zeros(10) not in plain
            kept = np.zeros(10)
            assert kept in inner
    assert handler_name() == "default_allocator"


def test_a_scope_that_is_closed_early_or_left_crosswise_gives_the_handler_back() -> None:
    scope = ds.dispose_scope()
    with scope:
        scope.close()
        assert handler_name() == "default_allocator"
    outer, inner = ds.dispose_scope(), ds.dispose_scope()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    array = np.zeros(4)
    assert array in inner
    inner.__exit__(None, None, None)
    assert handler_name() == "default_allocator"


def test_a_scope_that_is_closed_on_another_thread_gives_the_handler_back_when_it_is_left_here() -> None:
    for leaves_another_first in (True, False):
        scope = ds.dispose_scope()
        scope.__enter__()
        thread = threading.Thread(target=scope.close)
        thread.start()
        thread.join()
        if leaves_another_first:
            with ds.dispose_scope() as inner:
                array = np.zeros(3)
                assert array in inner
            assert handler_name() == "default_allocator"
        scope.__exit__(None, None, None)
        assert handler_name() == "default_allocator"


def test_a_task_that_outlives_the_scope_it_began_in_takes_nothing_from_its_creator() -> None:
    async def later(go: asyncio.Event) -> None:
        await go.wait()
        with ds.dispose_scope() as scope:
            assert np.zeros(3) not in outer
            array = np.zeros(3)
            assert array in scope
        assert handler_name() == "default_allocator"

    async def main() -> None:
        nonlocal outer
        go = asyncio.Event()
        with ds.dispose_scope() as outer:
            task = asyncio.create_task(later(go))
        assert handler_name() == "default_allocator"
        go.set()
        await task

    outer = ds.dispose_scope()
    asyncio.run(main())


def test_a_thread_without_a_scope_has_numpys_allocator_and_one_in_the_context_has_the_scopes() -> None:
    told: list[Any] = []

    def look(scope: ds.DisposeScope) -> None:
        array = np.zeros(100)
        told.append((handler_name(), ds.owner_of(array) is scope))

    with ds.dispose_scope() as scope:
        for arguments in ((look, scope), (contextvars.copy_context().run, look, scope)):
            thread = threading.Thread(target=arguments[0], args=arguments[1:])
            thread.start()
            thread.join()
    assert told == [("default_allocator", False), ("disposescope_arena", True)]


def test_tasks_follow_their_scopes() -> None:
    async def task(name: str, ready: asyncio.Event, go: asyncio.Event) -> bool:
        with ds.dispose_scope(name) as scope:
            ready.set()
            await go.wait()
            return np.zeros(10) in scope

    async def main() -> list[bool]:
        events = [asyncio.Event() for _ in range(4)]
        first = asyncio.create_task(task("first", events[0], events[1]))
        second = asyncio.create_task(task("second", events[2], events[3]))
        await events[0].wait()
        await events[2].wait()
        events[1].set()
        events[3].set()
        return [await first, await second]

    assert asyncio.run(main()) == [True, True]


def test_a_suspended_generators_scope_does_not_capture_what_its_consumer_makes() -> None:
    def produce() -> Iterator[tuple[Any, ds.DisposeScope]]:
        with ds.dispose_scope("generator") as scope:
            array = np.zeros(10)
            assert array in scope
            yield array, scope
            assert np.ones(20) not in outer
            later = np.ones(20)
            assert later in scope

    with ds.dispose_scope("outer") as outer:
        for array, scope in produce():
            mine = np.ones(5)
            assert mine in outer
            assert mine not in scope
            assert array in scope
        assert array in outer


def test_a_decorated_generator_gives_its_arrays_and_its_handler_out() -> None:
    @ds.dispose_scope()
    def produce() -> Iterator[Any]:
        for size in (1, 2):
            yield np.full(size, 7.0)

    for array in produce():
        assert handler_name() == "default_allocator"
        assert ds.owner_of(array) is None
    with ds.dispose_scope() as outer:
        for array in produce():
            assert array in outer
            mine = np.zeros(3)
            assert mine in outer
    assert handler_name() == "default_allocator"


def test_a_suspended_async_generator_does_not_capture_either() -> None:
    async def produce() -> AsyncIterator[Any]:
        with ds.dispose_scope("generator") as scope:
            array = np.zeros(10)
            assert array in scope
            yield array

    async def main() -> None:
        with ds.dispose_scope("outer") as outer:
            async for _ in produce():
                mine = np.ones(5)
                assert mine in outer

    asyncio.run(main())


def test_what_scopes_do_to_a_context_changes_no_error_state_of_numpy() -> None:
    def states() -> list[str]:
        told = [np.geterr()["divide"]]
        with ds.dispose_scope():
            told.append(np.geterr()["divide"])
            with np.errstate(divide="raise"), ds.dispose_scope():
                told.append(np.geterr()["divide"])
                with pytest.raises(FloatingPointError):
                    np.ones(1) / np.zeros(1)
            before = np.seterr(divide="ignore")
            told.append(np.geterr()["divide"])
        told.append(np.geterr()["divide"])
        np.seterr(**before)
        return [*told, np.geterr()["divide"]]

    expected = ["warn", "warn", "raise", "ignore", "ignore", "warn"]
    assert contextvars.Context().run(states) == expected
    assert contextvars.copy_context().run(states) == expected
