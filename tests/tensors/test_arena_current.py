"""Whatever was done with scopes before, an array belongs to the scope current where it is born."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import disposescope as ds


def births_are_right() -> None:
    # The second is served by what the first has left behind.
    for size in (3, 3, 40_000):
        array = np.empty(size, "u1")
        current = ds.current_scope()
        assert ds.owner_of(array) is current, (ds.owner_of(array), current)


def suspended() -> Iterator[None]:
    with ds.dispose_scope("generator"):
        births_are_right()
        yield
        births_are_right()


@ds.dispose_scope("decorated")
def decorated_steps() -> Iterator[Any]:
    for _ in range(3):
        births_are_right()
        yield np.ones(3)


class Walk:
    """One random way of entering, leaving and closing scopes, in this context and in others."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.open: list[ds.DisposeScope] = []
        self.generators: list[Iterator[Any]] = []
        self.contexts: list[contextvars.Context] = [contextvars.copy_context()]

    def step(self) -> None:
        names = ("enter", "leave", "crosswise", "close", "suspend", "resume", "elsewhere", "tidy", "batches", "collect")
        getattr(self, self.random.choice(names))()
        births_are_right()

    def enter(self) -> None:
        scope = ds.dispose_scope()
        scope.__enter__()
        self.open.append(scope)

    def leave(self) -> None:
        if self.open:
            self.open.pop().__exit__(None, None, None)

    def crosswise(self) -> None:
        if len(self.open) > 1:
            self.open.pop(self.random.randrange(len(self.open))).__exit__(None, None, None)

    def close(self) -> None:
        if self.open:
            scope = self.random.choice(self.open)
            if self.random.random() < 0.5:
                scope.close()
            else:
                thread = threading.Thread(target=scope.close)
                thread.start()
                thread.join()

    def suspend(self) -> None:
        generator = suspended() if self.random.random() < 0.5 else decorated_steps()
        next(generator)
        self.generators.append(generator)

    def resume(self) -> None:
        if self.generators:
            generator = self.generators.pop(self.random.randrange(len(self.generators)))
            next(generator, None)

    def elsewhere(self) -> None:
        if self.random.random() < 0.5:
            self.contexts.append(contextvars.copy_context())
        self.random.choice(self.contexts).run(births_are_right)

    def tidy(self) -> None:
        array = ds.tidy(lambda: np.ones(3))
        assert ds.owner_of(array) is ds.current_scope()

    def batches(self) -> None:
        for _ in ds.scoped_batches([1, 2]):
            births_are_right()

    def collect(self) -> None:
        gc.collect(0)

    def end(self) -> None:
        self.generators.clear()
        while self.open:
            self.leave()


def walk(seed: int) -> None:
    way = Walk(seed)
    try:
        for _ in range(60):
            way.step()
    finally:
        way.end()


@pytest.mark.parametrize("seed", range(12))
def test_on_a_random_way_through_scopes(seed: int) -> None:
    contextvars.Context().run(walk, seed)


def test_on_several_threads_that_take_turns() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            walk(seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 + k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_in_tasks_that_take_turns() -> None:
    async def task(name: str) -> None:
        births_are_right()
        with ds.dispose_scope(name):
            for _ in range(10):
                births_are_right()
                await asyncio.sleep(0)
                births_are_right()
                with ds.dispose_scope():
                    await asyncio.sleep(0)
                    births_are_right()

    async def main() -> None:
        with ds.dispose_scope("main"):
            births_are_right()
            await asyncio.gather(*(task(str(k)) for k in range(5)))
            births_are_right()

    asyncio.run(main())


def test_in_what_runs_while_a_scope_is_entered_and_left() -> None:
    owners: list[Any] = []

    class Resource:
        def dispose(self) -> None:
            owners.append(ds.owner_of(np.empty(3)))

    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            births_are_right()
            scope.attach(Resource())
            scope.attach(Resource())
        # The scope that is being left is current no more, and what is released in it makes nothing
        # for it.
        assert owners == [outer, outer] or owners == []
        births_are_right()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_in_a_forked_child() -> None:
    with ds.dispose_scope():
        births_are_right()
        child = os.fork()
        if child == 0:
            os._exit(ds.current_scope() is not None or ds.owner_of(np.empty(3)) is not None)
        births_are_right()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_with_many_threads_one_after_the_other() -> None:
    # A thread that begins may be where one that has ended was.
    def work() -> None:
        births_are_right()

    def scoped() -> None:
        with ds.dispose_scope():
            births_are_right()

    jobs: list[Callable[[], None]] = [scoped, work] * 30
    failures: list[BaseException] = []
    for job in jobs:

        def run(job: Callable[[], None] = job) -> None:
            try:
                job()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert failures == []
