"""Generators, tasks, and contexts that threads are given."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import random
import threading
from typing import Any

import numpy as np

import disposescope as ds

from .run import Run, attempt, refused


def contexts(run: Run) -> None:
    """Generators and tasks with scopes that cross, and scopes whose context other threads get."""
    run.in_threads(lambda number, rng: (generators, tasks, handed_contexts)[number % 3](run, rng))


def generators(run: Run, rng: random.Random) -> int:
    """Generators with open scopes: advanced in any order, also by another thread.

    They are closed or abandoned.
    """

    def numbers(start: int) -> Any:
        with ds.dispose_scope(f"generator {start}") as scope:
            for which in range(start, start + 5):
                tensor, array = ds.full(50, which), np.full(5000, float(which))
                yield scope, tensor, array

    with ds.dispose_scope() as mine:
        alive = [numbers(10 * which) for which in range(4)]
        told: list[Any] = []
        for _ in range(20):
            generator = rng.choice(alive)
            made = next(generator, None)
            if ds.current_scope() is not mine:
                run.wrong(f"a suspended generator's scope is current: {ds.current_scope()!r}")
            if made is not None:
                scope, tensor, array = made
                if not (float(tensor[0]) == array[0] and (tensor == array[0]).all()) or tensor not in scope:
                    run.wrong("what a generator made in its scope is another's")
                told.append(tensor)
                own = tensor + 1
                if own not in mine:
                    run.wrong(f"what the consumer made belongs to {ds.owner_of(own)!r}")
            if rng.random() < 0.1:
                generator.close()
            elif rng.random() < 0.1:
                # A thread has no scope of its own; the generator's scope goes with the generator.
                thread = threading.Thread(target=lambda generator=generator: next(generator, None))
                thread.start()
                thread.join()
        del generator, made, scope, array, tensor, own
        for generator in alive:
            if rng.random() < 0.5:
                generator.close()
        del generator, alive
        gc.collect(0)
        alive_still = [tensor for tensor in told if not ds.is_disposed(tensor)]
        if alive_still:
            # To tell a scope that ends late, waits for the collector, or never ends.
            owners = [ds.owner_of(tensor) for tensor in alive_still]
            gc.collect()
            left = sum(not ds.is_disposed(tensor) for tensor in alive_still)
            run.wrong(
                f"of what closed generators' scopes owned, {len(alive_still)} are alive, {left} after a collection, "
                f"and their owners are {owners!r}"
            )
    return 20


def tasks(run: Run, rng: random.Random) -> int:
    """Tasks with scopes, some of which are cancelled at any of their awaits."""

    async def task(which: int, steps: list[int]) -> None:
        made: list[Any] = []
        try:
            with ds.dispose_scope(f"task {which}") as outer:
                for step in steps:
                    with ds.dispose_scope() as inner:
                        tensor = ds.full(20, which * 100 + step)
                        made.append(tensor)
                        for _ in range(step):
                            await asyncio.sleep(0)
                        if ds.current_scope() is not inner or tensor not in inner:
                            run.wrong("a task's scope is not current in it")
                        if not (tensor == which * 100 + step).all():
                            run.wrong("a task's tensor has other contents")
                        made.append(inner.move_to_outer(tensor * 2))
                    if made[-1] not in outer:
                        run.wrong("what a task moved out is not in its outer scope")
        finally:
            if not all(map(ds.is_disposed, made)):
                run.wrong("something of a task outlived its scopes")

    async def main() -> None:
        with ds.dispose_scope("main"):
            all_tasks = [asyncio.create_task(task(which, [rng.randrange(4) for _ in range(4)])) for which in range(6)]
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            for one in rng.sample(all_tasks, 3):
                one.cancel()
            for ended in await asyncio.gather(*all_tasks, return_exceptions=True):
                if ended is not None and type(ended) is not asyncio.CancelledError:
                    run.unexpected("a task ended otherwise", ended)

    asyncio.run(main())
    return 24


def handed_contexts(run: Run, rng: random.Random) -> int:
    """A scope that several threads get with its context, and that ends before they do, or after."""
    steps, seeds = 15, [rng.random() for _ in range(3)]

    def work(scope: Any, seed: float) -> None:
        choose = random.Random(seed)
        for step in range(steps):
            tensor, array = ds.full(100, step), np.full(3000, float(step))
            if scope not in (ds.owner_of(tensor), None) and not scope.closed and not ds.is_disposed(tensor):
                run.wrong(f"a thread with the scope's context made something that belongs to {ds.owner_of(tensor)!r}")
            if not (array == step).all():
                run.wrong("an array has other contents")
            attempt(run, "*", functools.partial(lambda t: t * 2, tensor), np.full(100, step) * 2, (tensor,))
            if choose.random() < 0.3:
                with ds.dispose_scope() as inner:
                    refused(
                        functools.partial(inner.move_to_outer, tensor + 1) if not ds.is_disposed(tensor) else int,
                        ds.ScopeClosedError,
                    )

    def guarded(*args: Any) -> None:
        try:
            work(*args)
        except ds.DisposedError:
            pass
        except BaseException as error:
            run.unexpected("with a copy of the context", error)

    with ds.dispose_scope("handed over") as scope:
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(guarded, scope, seed)) for seed in seeds
        ]
        for thread in threads:
            thread.start()
        if rng.random() < 0.5:
            for thread in threads:
                thread.join()
    for thread in threads:
        thread.join()
    return 3 * steps
