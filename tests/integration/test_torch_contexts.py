"""Modes are per thread, scopes per context: tasks, generators, threads and forks keep their own."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds

"""How many modes a scope needs."""


def test_interleaved_tasks_own_their_own():
    async def work(n):
        with ds.dispose_scope(str(n)) as scope:
            made = []
            for _ in range(5):
                made.append(torch.full((2,), n))
                await asyncio.sleep(0)
            assert scope.live == tuple(made)
        assert all(ds.is_disposed(tensor) for tensor in made)

    async def main():
        await asyncio.gather(*(work(n) for n in range(3)))
        outside = torch.rand(3)
        assert ds.owner_of(outside) is None

    asyncio.run(main())
    assert torch._C._len_torch_function_stack() == 0


def test_a_task_without_a_scope_owns_nothing_while_another_has_one():
    async def scoped(entered, leave):
        with ds.dispose_scope() as scope:
            entered.set()
            await leave.wait()
            mine = torch.rand(3)
            assert scope.live == (mine,)

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(scoped(entered, leave))
        await entered.wait()
        before = ds.statistics()
        bare = torch.rand(3)
        assert ds.owner_of(bare) is None
        assert ds.statistics().created_unscoped == before.created_unscoped
        leave.set()
        await task
        assert bare.sum() > 0

    asyncio.run(main())
    assert torch._C._len_torch_function_stack() == 0


def test_a_suspended_generator_captures_nothing_of_its_consumer():
    def batches():
        with ds.dispose_scope() as scope:
            for _ in range(3):
                mine = torch.rand(3)
                assert mine in scope
                yield mine

    kept = []
    for batch in batches():
        kept.append(batch * 2)
        assert ds.owner_of(kept[-1]) is None
    assert all(tensor.sum() > 0 for tensor in kept)
    assert torch._C._len_torch_function_stack() == 0


def test_an_abandoned_generator_leaves_no_mode():
    def batches():
        with ds.dispose_scope():
            yield torch.rand(3)

    generator = batches()
    batch = next(generator)
    generator.close()
    assert ds.is_disposed(batch)
    assert torch._C._len_torch_function_stack() == 0


def test_threads_own_their_own():
    barrier = threading.Barrier(4, timeout=500)

    def work(n):
        barrier.wait()
        with ds.dispose_scope() as scope:
            made = [torch.full((2,), n) for _ in range(50)]
            barrier.wait()
            assert scope.live == tuple(made)
        assert all(ds.is_disposed(tensor) for tensor in made)
        return torch._C._len_torch_function_stack()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0] * 4


def test_a_thread_without_a_scope_owns_nothing():
    with ds.dispose_scope() as scope, ThreadPoolExecutor(1) as pool:
        tensor = pool.submit(torch.rand, 3).result()
        assert len(scope) == 0
    assert tensor.sum() > 0


def by_submit(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, work).result()


def by_map(work):
    with ThreadPoolExecutor(1) as pool:
        return next(pool.map(contextvars.copy_context().run, [work]))


def by_to_thread(work):
    return asyncio.run(asyncio.to_thread(work))


def by_thread(work):
    results = []
    thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: results.append(work()),))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("hand_over", [by_submit, by_map, by_to_thread, by_thread])
def test_work_handed_to_a_thread_with_the_context_makes_births_there(hand_over):
    depths = []

    def work():
        made = torch.rand(3)
        depths.append(torch._C._len_torch_function_stack())
        return made

    with ds.dispose_scope() as scope:
        tensor = hand_over(work)
        assert tensor in scope
    assert ds.is_disposed(tensor)
    assert depths == [0]
    assert hand_over(lambda: (torch.rand(3), torch._C._len_torch_function_stack()))[1] == 0
    assert ds.owner_of(hand_over(lambda: torch.rand(3))) is None


def test_a_thread_of_a_pool_is_watched_no_longer_than_the_work_that_came_with_a_context():
    def fail():
        torch.rand(3)
        raise KeyError

    with ThreadPoolExecutor(1) as pool:
        with ds.dispose_scope() as scope:
            with pytest.raises(KeyError):
                pool.submit(contextvars.copy_context().run, fail).result()
            assert pool.submit(torch._C._len_torch_function_stack).result() == 0
            unowned = pool.submit(torch.rand, 3).result()
            assert unowned not in scope
            late = contextvars.copy_context()
        # The scope is closed when the work begins: what it makes is nobody's.
        assert ds.owner_of(pool.submit(late.run, torch.rand, 3).result()) is None
        assert pool.submit(torch._C._len_torch_function_stack).result() == 0
    assert unowned.sum() > 0


def test_eight_threads_in_one_context_bear_into_one_scope():
    def work(context):
        return context.run(lambda: [torch.rand(3) for _ in range(200)])

    with ds.dispose_scope() as scope:
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(contextvars.copy_context().run, work, contextvars.copy_context()) for _ in range(32)]
            batches = [future.result() for future in futures]
        assert len(scope) == 32 * 200
        assert all(tensor in scope for batch in batches for tensor in batch)
    assert all(ds.is_disposed(tensor) for batch in batches for tensor in batch)


def test_work_handed_to_a_thread_with_the_context_owns_where_it_opens_a_scope():
    def work():
        with ds.dispose_scope() as inner:
            made = torch.rand(3)
            return inner.move_to_outer(made)

    with ds.dispose_scope() as scope, ThreadPoolExecutor(1) as pool:
        tensor = pool.submit(contextvars.copy_context().run, work).result()
        assert tensor in scope
    assert ds.is_disposed(tensor)


def test_a_scope_that_is_closed_on_another_thread_lets_the_mode_go_later():
    scope = ds.dispose_scope().__enter__()
    tensor = torch.rand(3)
    thread = threading.Thread(target=scope.close)
    thread.start()
    thread.join()
    assert ds.is_disposed(tensor)
    free = torch.rand(3)
    assert ds.owner_of(free) is None
    with ds.dispose_scope():
        pass
    assert torch._C._len_torch_function_stack() == 0
    scope.__exit__(None, None, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_neither_the_scope_nor_the_mode():
    with ds.dispose_scope() as scope:
        inherited = torch.rand(3)
        child = os.fork()
        if child == 0:
            verdict = 1
            try:
                fine = torch._C._len_torch_function_stack() == 0 and ds.owner_of(torch.ones(3)) is None
                with ds.dispose_scope() as own:
                    fine = fine and (torch.ones(3) + 1) is not None and len(own) == 0
                    mine = torch.ones(3) + 1
                    fine = fine and mine in own
                verdict = 0 if fine and torch._C._len_torch_function_stack() == 0 else 2
            finally:
                os._exit(verdict)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert inherited in scope
        assert torch._C._len_torch_function_stack() == 0
