"""The current scope in (async) generators, context managers, fixtures, tasks, threads and forks."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager

import pytest

import disposescope as ds
from tests.scopes.toys import Toy, counts, no_cyclic_garbage, owned_by


def scoped(name=None, steps=3):
    """A generator that makes one toy a step in a scope of its own."""
    with ds.dispose_scope(name) as scope:
        for index in range(steps):
            toy = Toy(index)
            assert toy in scope
            assert ds.current_scope() is scope
            yield scope, toy
            assert ds.current_scope() is scope


class TestGenerators:
    def test_a_suspended_one_never_captures_what_its_consumer_creates(self):
        for scope, toy in scoped():
            assert toy in scope
            mine = Toy(1)
            assert ds.owner_of(mine) is None
            assert ds.current_scope() is None
            with ds.dispose_scope() as own:
                assert own.outer is None
                assert Toy(2) not in scope
            assert mine.value == 1
        assert scope.closed
        assert toy.value is None

    def test_two_interleaved_keep_apart(self):
        with ds.dispose_scope("top") as top:
            first, second = scoped("first"), scoped("second")
            a, _ = next(first)
            b, _ = next(second)
            assert a.outer is top
            assert b.outer is top
            for _ in range(2):
                assert next(first)[0] is a
                assert ds.current_scope() is top
                assert next(second)[0] is b
                assert owned_by(top, *top.live)
            first.close()
            assert a.closed
            assert not b.closed
            assert ds.current_scope() is top
            second.close()
            assert ds.current_scope() is top
            assert len(top) == 0

    def test_many_interleaved_and_closed_in_any_order(self):
        running = [scoped(str(index), 100) for index in range(20)]
        with ds.dispose_scope() as top:
            for round_number in range(10):
                for generator in running:
                    next(generator)
                    assert ds.current_scope() is top
                running[(round_number * 7) % len(running)].close()
                del running[(round_number * 7) % len(running)]
                assert ds.current_scope() is top
        for generator in running:
            next(generator)
            assert ds.current_scope() is None
            generator.close()

    def test_resumed_under_another_scope_it_still_bears_in_its_own(self):
        generator = scoped()
        scope, _ = next(generator)
        with ds.dispose_scope() as other:
            _, toy = next(generator)
            assert owned_by(scope, toy)
            assert ds.current_scope() is other
            mine = Toy(5)
            assert owned_by(other, mine)
            with ds.dispose_scope() as third:
                assert third.outer is other
                next(generator)
                assert ds.current_scope() is third
        assert mine.value is None
        generator.close()
        assert ds.current_scope() is None

    def test_started_in_one_scope_and_finished_after_it(self):
        generator = scoped()
        with ds.dispose_scope() as first:
            scope, toy = next(generator)
            assert scope.outer is first
        assert toy.value == 0
        assert scope.outer is None
        with ds.dispose_scope() as second:
            assert len(list(generator)) == 2
            assert ds.current_scope() is second
            assert len(second) == 0
        assert scope.closed
        assert ds.current_scope() is None

    def test_the_scope_of_an_abandoned_one_closes_with_it(self):
        generator = scoped()
        scope, toy = next(generator)
        del generator
        assert scope.closed
        assert toy.value is None
        assert ds.current_scope() is None

    @pytest.mark.parametrize("ending", ["close", "drop", "cycle"])
    def test_the_clean_up_of_one_that_is_left_is_in_its_own_scope(self, ending):
        found = []

        def generator(itself):
            with ds.dispose_scope("inner") as inner:
                try:
                    yield
                finally:
                    found.extend([ds.current_scope() is inner, Toy(1) in inner, inner])

        itself = []
        suspended = generator(itself)
        next(suspended)
        if ending == "close":
            suspended.close()
        elif ending == "cycle":
            itself.append(suspended)
        del suspended, itself
        gc.collect()
        assert found[:2] == [True, True]
        assert found[2].closed
        assert ds.current_scope() is None

    def test_a_break_out_of_the_loop_closes_it(self):
        for _scope, toy in scoped():  # noqa: B007  # used after the loop
            break
        with closing(scoped()) as generator:
            _, other = next(generator)
        assert other.value is None
        gc.collect()
        assert toy.value is None

    def test_an_abandoned_one_leaves_no_cycle(self):
        with no_cyclic_garbage():
            generator = scoped()
            next(generator)
            del generator

    def test_one_inside_another(self):
        def outer():
            with ds.dispose_scope("outer") as scope:
                for inner, _toy in scoped("inner"):
                    assert inner.outer is scope
                    assert ds.current_scope() is scope
                    yield scope, Toy(1)

        with ds.dispose_scope("top") as top:
            for scope, toy in outer():
                assert toy in scope
                assert ds.current_scope() is top

    def test_delegation_with_yield_from(self):
        def outer():
            with ds.dispose_scope("outer") as scope:
                yield from scoped("inner")
                assert ds.current_scope() is scope

        for inner, toy in outer():
            assert toy in inner
            assert inner.outer is not None
            assert inner.outer.name == "outer"
            assert ds.current_scope() is None

    def test_a_scope_opened_by_what_it_calls_is_not_its_own(self):
        def helper():
            with ds.dispose_scope("helper") as scope:
                toy = Toy(1)
                assert toy in scope
                return scope.move_to_outer(toy)

        def generator():
            with ds.dispose_scope() as scope:
                for _ in range(3):
                    toy = helper()
                    assert toy in scope
                    yield toy

        kept = list(generator())
        assert [toy.value for toy in kept] == [None] * 3

    def test_two_scopes_in_one_body(self):
        def generator():
            with ds.dispose_scope() as first:
                yield Toy(1) in first
                with ds.dispose_scope() as second:
                    assert second.outer is first
                    yield Toy(2) in second
                    yield second.move_to_outer(Toy(3)) in first
                yield Toy(4) in first

        with ds.dispose_scope() as top:
            for good in generator():
                assert good
                assert ds.current_scope() is top
                with ds.dispose_scope() as own:
                    assert own.outer is top

    def test_a_scope_opened_while_resumed_in_a_foreign_block(self):
        def generator():
            with ds.dispose_scope("g") as first:
                yield first
                with ds.dispose_scope("h") as second:
                    assert second.outer is first
                    yield second
                    assert ds.current_scope() is second
                assert ds.current_scope() is first
                yield first

        running = generator()
        g = next(running)
        with ds.dispose_scope("p") as p:
            h = next(running)
            assert ds.current_scope() is p
            assert owned_by(p, *[Toy(1)][:0])
        assert ds.current_scope() is None
        with ds.dispose_scope("q") as q:
            assert next(running) is g
            assert h.closed
            assert ds.current_scope() is q
            running.close()
            assert g.closed
            assert ds.current_scope() is q
        assert ds.current_scope() is None

    def test_one_that_is_thrown_into_closes_its_scope(self):
        generator = scoped()
        scope, toy = next(generator)
        with pytest.raises(KeyError):
            generator.throw(KeyError("x"))
        assert scope.closed
        assert toy.value is None

    def test_a_generator_expression_bears_in_the_scope_that_runs_it(self):
        with ds.dispose_scope() as first:
            lazy = (Toy(index) for index in range(3))
            a = next(lazy)
            with ds.dispose_scope() as second:
                b = next(lazy)
                assert owned_by(second, b)
            assert owned_by(first, a)

    def test_one_consumed_by_a_list_or_a_zip(self):
        with ds.dispose_scope() as top:
            pairs = list(zip(scoped("a"), scoped("b"), strict=True))
            assert len(pairs) == 3
            assert ds.current_scope() is top

    def test_closed_by_another_thread_it_does_not_disturb_either(self):
        def work():
            generator = scoped()
            with ds.dispose_scope() as top:
                scope, _ = next(generator)
                thread = threading.Thread(target=generator.close)
                thread.start()
                thread.join()
                assert scope.closed
                assert ds.current_scope() is top
                toy = Toy(1)
                assert owned_by(top, toy)
            assert ds.current_scope() is None
            assert toy.value is None

        contextvars.copy_context().run(work)

    def test_thousands_that_end_elsewhere_leave_no_chain(self):
        context = contextvars.copy_context()

        def begin_here_end_there():
            for _ in range(300):
                generator = scoped()
                next(generator)
                contextvars.copy_context().run(generator.close)
            with ds.dispose_scope() as scope:
                return scope._below

        below = context.run(begin_here_end_there)
        assert below is None


class TestBlocks:
    def test_of_a_context_manager_are_its_users_own(self):
        @contextmanager
        def managed():
            with ds.dispose_scope("managed") as scope:
                yield scope

        with ds.dispose_scope() as top, managed() as scope:
            assert ds.current_scope() is scope
            toy = Toy(1)
            assert owned_by(scope, toy)
            assert scope.outer is top
        assert toy.value is None

    def test_of_a_context_manager_as_a_decorator(self):
        @contextmanager
        def managed():
            with ds.dispose_scope("managed"):
                yield

        @managed()
        def work():
            return ds.current_scope(), Toy(1)

        scope, toy = work()
        assert scope.name == "managed"
        assert toy.value is None

    def test_of_a_context_manager_in_a_generator_are_the_generators(self):
        @contextmanager
        def managed():
            with ds.dispose_scope("managed") as scope:
                yield scope

        def generator():
            with managed() as scope:
                yield scope
                assert Toy(1) in scope
                yield scope

        for _scope in generator():
            assert ds.current_scope() is None

    def test_of_a_class_that_enters_a_scope_in_a_generator(self):
        class Managed:
            def __enter__(self):
                self.scope = ds.dispose_scope()
                return self.scope.__enter__()

            def __exit__(self, *what):
                return self.scope.__exit__(*what)

        def generator():
            with Managed() as scope:
                yield Toy(1) in scope
                yield ds.current_scope() is scope

        for good in generator():
            assert good
            assert ds.current_scope() is None

    def test_of_an_exit_stack_in_a_generator(self):
        def generator():
            with ExitStack() as stack:
                scope = stack.enter_context(ds.dispose_scope())
                yield Toy(1) in scope
                yield ds.current_scope() is scope

        for good in generator():
            assert good
            assert ds.current_scope() is None

    @pytest.fixture
    def fixture_scope(self):
        with ds.dispose_scope("fixture") as scope:
            yield scope
        assert scope.closed

    def test_of_a_fixture_are_the_tests(self, fixture_scope):
        assert ds.current_scope() is fixture_scope
        assert owned_by(fixture_scope, *(kept := [Toy(1)]))
        assert kept

    @pytest.fixture
    def second_fixture(self, fixture_scope):
        with ds.dispose_scope("second") as scope:
            yield scope

    def test_of_two_fixtures_nest(self, fixture_scope, second_fixture):
        assert second_fixture.outer is fixture_scope
        assert ds.current_scope() is second_fixture

    @pytest.mark.parametrize("style", [{"wrapper": True}, {"hookwrapper": True}], ids=["wrapper", "hookwrapper"])
    def test_of_a_hooks_wrapper_are_those_of_what_the_hook_runs(self, style):
        class Wrapping:
            @pytest.hookimpl(**style)
            def pytest_runtest_call(self):
                with ds.dispose_scope("wrapper"):
                    return (yield)

        class Running:
            @pytest.hookimpl
            def pytest_runtest_call(self):
                scope = ds.current_scope()
                return scope.name, owned_by(scope, *(kept := [Toy(1)])), len(kept)

        manager = pytest.PytestPluginManager()
        manager.register(Wrapping())
        manager.register(Running())
        assert manager.hook.pytest_runtest_call(item=None) == [("wrapper", True, 1)]
        assert ds.current_scope() is None


class TestAsync:
    def run(self, function):
        return asyncio.run(function(), debug=False)

    def test_tasks_interleaved_each_have_their_own(self):
        async def work(number):
            with ds.dispose_scope(str(number)) as scope:
                kept = []
                for step in range(5):
                    kept.append(Toy(step))
                    await asyncio.sleep(0)
                    assert ds.current_scope() is scope
                    with ds.dispose_scope() as inner:
                        await asyncio.sleep(0)
                        assert ds.current_scope() is inner
                        kept.append(inner.move_to_outer(Toy(step)))
                assert owned_by(scope, *kept)
                return kept

        async def main():
            with ds.dispose_scope("main") as scope:
                results = await asyncio.gather(*(work(number) for number in range(10)))
                assert ds.current_scope() is scope
                assert len(scope) == 0
            return results

        assert {toy.value for kept in self.run(main) for toy in kept} == {None}

    def test_a_task_inherits_its_creators(self):
        async def child():
            await asyncio.sleep(0)
            return ds.current_scope(), Toy(1)

        async def main():
            with ds.dispose_scope() as scope:
                seen, toy = await asyncio.create_task(child())
                assert seen is scope
                assert toy in scope
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(child()) for _ in range(3)]
                assert all(task.result()[1] in scope for task in tasks)
            assert toy.value is None

        self.run(main)

    def test_a_task_that_outlives_its_creators_scope_bears_in_the_next_one_out(self):
        async def child(go):
            await go.wait()
            return ds.current_scope(), Toy(1)

        async def main():
            go = asyncio.Event()
            with ds.dispose_scope() as outer:
                with ds.dispose_scope():
                    task = asyncio.create_task(child(go))
                    await asyncio.sleep(0)
                go.set()
                seen, toy = await task
                assert seen is outer
                assert toy in outer
            go.clear()
            with ds.dispose_scope():
                task = asyncio.create_task(child(go))
                await asyncio.sleep(0)
            go.set()
            assert (await task)[0] is None

        self.run(main)

    def test_a_cancelled_task_disposes(self):
        made = []

        async def child():
            with ds.dispose_scope():
                made.append(Toy(1))
                await asyncio.sleep(60)

        async def main():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.run(main)
        assert made[0].value is None

    def test_an_async_generator_at_a_yield_does_not_capture(self):
        async def generator():
            with ds.dispose_scope() as scope:
                for index in range(3):
                    await asyncio.sleep(0)
                    assert ds.current_scope() is scope
                    yield scope, Toy(index)

        async def main():
            with ds.dispose_scope() as top:
                async for scope, toy in generator():
                    assert toy in scope
                    assert ds.current_scope() is top
                    await asyncio.sleep(0)
                    mine = Toy(1)
                    assert owned_by(top, mine)
                    del mine

        self.run(main)

    def test_an_async_generator_that_awaits_is_current_for_the_tasks_it_waits_for(self):
        async def child(expected):
            await asyncio.sleep(0)
            return ds.current_scope() is expected and Toy(1) in expected

        async def generator():
            with ds.dispose_scope() as scope:
                for _ in range(2):
                    assert all(await asyncio.gather(*(child(scope) for _ in range(3))))
                    async with asyncio.timeout(10):
                        assert await child(scope)
                    yield scope

        async def main():
            async for scope in generator():
                assert ds.current_scope() is None
                assert not scope.closed

        self.run(main)

    def test_async_with_and_async_for_in_a_body_are_awaits(self):
        async def numbers():
            for number in range(2):
                await asyncio.sleep(0)
                yield number

        @asynccontextmanager
        async def slow():
            await asyncio.sleep(0)
            yield
            await asyncio.sleep(0)

        async def generator():
            with ds.dispose_scope() as scope:

                async def child():
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    return ds.current_scope() is scope

                task = asyncio.create_task(child())
                async for number in numbers():
                    async with slow():
                        yield number
                assert ds.current_scope() is scope
                assert await task in (True, False)

        async def main():
            assert [number async for number in generator()] == [0, 1]

        self.run(main)

    def test_the_block_of_an_async_context_manager_is_its_users_own(self):
        @asynccontextmanager
        async def managed():
            await asyncio.sleep(0)
            with ds.dispose_scope() as scope:
                await asyncio.sleep(0)
                yield scope
                await asyncio.sleep(0)

        async def main():
            async with managed() as scope:
                assert ds.current_scope() is scope
                await asyncio.sleep(0)
                assert Toy(1) in scope
                async with AsyncExitStack() as stack:
                    inner = await stack.enter_async_context(managed())
                    assert ds.current_scope() is inner
                    assert inner.outer is scope
            assert ds.current_scope() is None

        self.run(main)

    def test_an_async_generator_left_early_closes(self):
        async def generator():
            with ds.dispose_scope() as scope:
                while True:
                    yield scope, Toy(1)

        async def main():
            running = generator()
            scope, toy = await anext(running)
            await running.aclose()
            assert scope.closed
            assert toy.value is None
            async for scope, toy in generator():  # noqa: B007  # used after the loop
                break
            return scope, toy

        scope, toy = self.run(main)
        assert scope.closed
        assert toy.value is None

    def test_a_generator_used_as_a_coroutine_waits_and_does_not_yield(self):
        @types.coroutine
        def legacy(child):
            with ds.dispose_scope() as scope:
                task = asyncio.create_task(child(scope))
                yield
                yield
                yield from task
                assert task.result()
                assert ds.current_scope() is scope

        async def child(scope):
            await asyncio.sleep(0)
            return ds.current_scope() is scope

        async def main():
            await legacy(child)

        self.run(main)

    def test_work_in_a_thread_uses_the_tasks_scope(self):
        async def main():
            with ds.dispose_scope() as scope:
                made = await asyncio.gather(*(asyncio.to_thread(Toy, index) for index in range(20)))
                assert len(scope) == 20
                return made

        assert {toy.value for toy in self.run(main)} == {None}

    def test_callbacks_of_the_loop_run_in_the_scope_that_scheduled_them(self):
        async def main():
            seen = []
            with ds.dispose_scope() as scope:
                asyncio.get_running_loop().call_soon(lambda: seen.append(ds.current_scope()))
                await asyncio.sleep(0)
            assert seen == [scope]

        self.run(main)


class TestThreadsAndForks:
    def test_each_thread_its_own(self):
        def work(number):
            with ds.dispose_scope(str(number)) as scope:
                toy = Toy(number)
                barrier.wait()
                assert owned_by(scope, toy)
                assert ds.current_scope() is scope
                barrier.wait()
            return toy

        barrier = threading.Barrier(4)
        with ds.dispose_scope() as top, ThreadPoolExecutor(4) as pool:
            made = list(pool.map(work, range(4)))
            assert len(top) == 0
        assert {toy.value for toy in made} == {None}

    def test_copy_context_shares_and_nested_scopes_there_stay_there(self):
        def work():
            with ds.dispose_scope() as inner:
                outer = inner.outer
                return inner.move_to_outer(Toy(1)), outer

        with ds.dispose_scope() as scope:
            with ThreadPoolExecutor(1) as pool:
                toy, outer = pool.submit(contextvars.copy_context().run, work).result()
            assert outer is scope
            assert owned_by(scope, toy)
            assert ds.current_scope() is scope

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_is_outside_its_parents_scopes(self):
        read, write = os.pipe()
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            pid = os.fork()
            if pid == 0:
                try:
                    good = ds.current_scope() is None and ds.owner_of(Toy(2)) is None and toy.value == 1
                    with ds.dispose_scope() as own:
                        good = good and own.outer is None and Toy(3) not in scope
                    good = good and ds.statistics(process=True).live >= 1
                    os.write(write, b"y" if good else b"n")
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            assert os.read(read, 1) == b"y"
            assert owned_by(scope, toy)
        os.close(read)
        os.close(write)

    def test_counts_stay_right_when_generators_and_scopes_cross(self):
        generator = scoped()
        next(generator)
        with ds.dispose_scope():
            next(generator)
            kept = Toy(1)
        generator.close()
        assert kept.value is None
        assert counts() == {"created_in_scope": 3, "disposed_in_scope": 3}


OPENED_IN_FINALIZERS = """
import gc
import disposescope as ds

class Session:
    def __init__(self):
        self.me = self

    def __del__(self):
        with ds.dispose_scope():
            kept.append([{} for _ in range(300)])

ds.zeros(1)
kept = []
gc.freeze()
for turn in range(400):
    kept.clear()
    gc.set_threshold(0)
    gc.collect()
    Session()
    gc.set_threshold(1 + turn % 40)
    with ds.dispose_scope():
        pass
print("done")
"""


def test_a_finalizer_may_open_a_scope_while_another_is_being_opened():
    """Python 3.11 runs the collector inside of `ContextVar.set`, and crashed there."""
    done = subprocess.run([sys.executable, "-c", OPENED_IN_FINALIZERS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
