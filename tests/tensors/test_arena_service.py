"""Inside a scope NumPy's memory comes from the arena: aligned, recycled, counted by owner, bounded."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import numpy.ma
import pytest

import disposescope as ds
from disposescope.tensors._arena_arrival import ARENA

pytestmark = pytest.mark.skipif(ARENA is None, reason="there is no arena here")

handler_name: Any = np._core.multiarray.get_handler_name  # type: ignore[attr-defined]


def address(array: Any) -> int:
    where: int = array.__array_interface__["data"][0]
    return where


# ---------------------------------------------------------------------- which handler serves


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


# ---------------------------------------------------------------------- ownership


def test_live_bytes_of_each_scope_are_exact() -> None:
    with ds.dispose_scope() as outer:
        first = np.zeros(1000)
        with ds.dispose_scope() as inner:
            second = np.zeros(10, dtype="uint8")
            _temporary = (second + 1).sum()
            assert inner.nbytes == 10
            assert outer.nbytes == 8000
            assert (len(inner), inner.live) == (0, ())
            del second
            assert inner.nbytes == 0
        assert inner.arena is not None
        assert (inner.arena.blocks, inner.arena.escapes) == (0, 0)
        del first
        assert outer.nbytes == 0


def test_what_is_still_referenced_escapes_to_the_outer_scope_and_stays_valid() -> None:
    escapes = ds.arena_statistics().escapes
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            array = np.arange(1000)
            view = array[10:20]
        assert array in outer
        assert view in outer
        assert ds.owner_of(view) is outer
        assert outer.nbytes == 8000
        assert inner.arena is not None
        assert (inner.arena.escapes, inner.arena.escaped_nbytes) == (1, 8000)
    assert ds.owner_of(array) is None
    assert array.sum() == 499_500
    assert ds.arena_statistics().escapes == escapes + 2


def test_an_array_of_the_innermost_of_5000_scopes_escapes_through_all_of_them() -> None:
    scopes = [ds.dispose_scope(str(depth)) for depth in range(5000)]
    for scope in scopes:
        scope.__enter__()
    array = np.arange(100)
    held = []
    for scope in reversed(scopes):
        assert array in scope
        held.append(np.zeros(1))
        scope.__exit__(None, None, None)
    assert ds.owner_of(array) is None
    blocks = ds.arena_statistics().blocks
    del array, held
    assert ds.arena_statistics().blocks == blocks - 5001


def test_the_verbs_move_arrays_by_their_views_and_in_any_nesting() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as inner:
            plain = np.arange(10)
            masked = numpy.ma.array([1.0, 2.0], mask=[True, False])
            records = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
            objects = np.array([np.zeros(3), None], dtype=object)
            tree = {"view": plain[2:4].reshape(1, 2), "more": [masked, (records["b"], objects)]}
            assert inner.move_to_outer(tree) is tree
            assert inner.nbytes == 0
        assert plain in outer
        assert objects[0] in outer
        assert masked.mask in outer
        outer.detach(plain)
        assert ds.owner_of(plain) is None
        outer.attach(plain)
        assert plain in outer
        with ds.dispose_scope() as other:
            outer.move_to(other, plain)
            assert plain in other
            assert ds.move_to_outer(plain) is plain
        assert plain in outer


def test_a_tensor_takes_its_memory_along_and_is_counted_once() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as inner:
            tensor = ds.zeros(1000)
            view = tensor[:10]
            assert inner.nbytes == 8000
            inner.move_to_outer(view)
        assert ds.is_disposed(tensor)
        assert outer.nbytes == 8000
    assert ds.is_disposed(view)
    assert outer.arena is not None
    assert outer.arena.escapes == 0


def test_a_strict_scope_lists_the_sites_of_what_escapes() -> None:
    with pytest.raises(ds.EscapedError, match=r"2 arrays with 8800 bytes escaped from strict scope 's'") as caught:
        with ds.dispose_scope("s", strict=True):
            kept = [np.zeros(1000), np.zeros(100)]
            np.zeros(5)
    assert caught.value.count == 2
    assert caught.value.nbytes == 8800
    [site] = caught.value.sites
    assert "test_arena_service.py" in site
    assert kept[0].sum() == 0


def test_a_strict_scope_says_it_in_a_note_when_an_exception_passes_through() -> None:
    with pytest.raises(KeyError) as caught:
        with ds.dispose_scope(strict=True):
            _kept = np.zeros(10)
            raise KeyError
    assert "escaped" in "".join(caught.value.__notes__)


def test_a_strict_scope_refuses_to_move_the_array_of_another() -> None:
    with ds.dispose_scope("outer"):
        array = np.zeros(3)
        foreign = np.frombuffer(b"12345678")
        with ds.dispose_scope(strict=True) as inner:
            with pytest.raises(ds.NotOwnedError, match="does not own this ndarray"):
                inner.move_to_outer(array)
            assert inner.move_to_outer(foreign) is foreign


def test_memory_from_elsewhere_is_nobodys_and_unharmed(tmp_path: Any) -> None:
    before = np.arange(5)
    with ds.dispose_scope() as scope:
        for foreign in (
            before,
            np.frombuffer(b"12345678", dtype="u1"),
            np.memmap(tmp_path / "map", dtype="u1", mode="w+", shape=10),
            np.array(7)[()],
        ):
            assert foreign not in scope
            scope.move_to_outer(foreign)
            scope.attach(foreign)
            assert foreign not in scope
        assert ds.owner_of(before) is None
    assert before.tolist() == [0, 1, 2, 3, 4]


def test_arrays_survive_pickling_resizing_and_growing() -> None:
    with ds.dispose_scope() as scope:
        array = np.arange(10)
        assert pickle.loads(pickle.dumps(array)).tolist() == list(range(10))
        for size in (3, 30, 30_000, 3_000_000, 5):
            head = array[: min(size, array.size)].copy()
            array.resize(size, refcheck=False)
            assert array[: head.size].tolist() == head.tolist()
            assert not array[head.size :].any()
            assert array in scope
        del head
        assert scope.nbytes == array.nbytes


# ---------------------------------------------------------------------- blocks


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 511, 513, 4097, 100_000, 131_072, 131_073, 5_000_000])
def test_every_array_born_in_a_scope_begins_at_a_multiple_of_64_and_zeros_are_zero(size: int) -> None:
    with ds.dispose_scope():
        for _ in range(3):
            arrays = [np.empty(size, "u1"), np.ones(size, "u1"), np.zeros(size, "u1"), np.array(3.0)]
            assert [address(array) % 64 for array in arrays] == [0] * 4
            assert not arrays[2].any()
            arrays[0][:] = 255
            del arrays


def test_a_block_is_recycled() -> None:
    with ds.dispose_scope():
        np.ones(1_000_000)
        misses = ds.arena_statistics().misses
        for _ in range(10):
            np.ones(1_000_000)
        assert ds.arena_statistics().misses == misses


def test_cached_bytes_are_told_apart_from_those_in_use_and_returned_on_request() -> None:
    with ds.dispose_scope():
        np.ones(2_000_000)
        held = np.ones(10)
        statistics = ds.arena_statistics()
        assert statistics.cached_nbytes >= 16_000_000
        assert statistics.live_nbytes < 16_000_000
        ds.empty_cache()
        assert ds.arena_statistics().cached_nbytes < 1_000_000
        assert held.sum() == 10


def test_what_the_system_refuses_does_not_count_as_having_been_needed() -> None:
    told = run_program("""
import numpy as np, disposescope as ds
with ds.dispose_scope():
    try:
        np.empty(1 << 45, "u1")
    except MemoryError:
        for size in range(20, 60, 4):
            np.empty(size << 20, "u1")
        print(ds.arena_statistics().cached_nbytes < 80 << 20)
    else:
        print(True)  # a system that refuses nothing
""")
    assert told == "True\n"


def test_a_cycle_through_a_little_more_than_the_cache_holds_finds_most_of_it_there() -> None:
    told = run_program("""
import numpy as np, disposescope as ds
def step():
    for size, count in ((12 << 20, 5), (3 << 20, 9), (1 << 20, 6)):
        arrays = [np.empty(size, "u1") for _ in range(count)]
        del arrays
with ds.dispose_scope():
    for _ in range(5):
        step()
    misses = ds.arena_statistics().misses
    for _ in range(10):
        step()
    print(ds.arena_statistics().misses - misses < 10 * 20 / 2)
""")
    assert told == "True\n"


def test_zeros_in_recycled_blocks_are_zero_to_the_last_byte() -> None:
    with ds.dispose_scope():
        for size in (1, 100, 5000, 200_000, (32 << 20) - 1, 32 << 20, (40 << 20) + 77):
            array = np.full(size, 255, "u1")
            where = address(array)
            del array
            array = np.zeros(size, "u1")
            assert address(array) == where
            assert not array.any()
            del array
    ds.empty_cache()


def test_opening_and_closing_many_scopes_does_not_grow_the_arena() -> None:
    def run(times: int) -> None:
        for _ in range(times):
            with ds.dispose_scope():
                np.ones(100)
                np.ones(30_000)

    run(100)
    before = ds.arena_statistics().mapped_nbytes
    run(20_000)
    assert ds.arena_statistics().mapped_nbytes <= before


def test_arrays_are_freed_on_other_threads_and_after_their_scope() -> None:
    blocks = ds.arena_statistics().blocks
    arrays: list[Any] = []
    with ds.dispose_scope():
        arrays.extend(np.full(size, 3.0) for size in range(1, 3000, 7))

    def drop() -> None:
        while arrays:
            array = arrays.pop()
            assert array[0] == 3.0
            del array

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert ds.arena_statistics().blocks == blocks


def test_threads_with_scopes_of_their_own_do_not_disturb_each_other() -> None:
    failures: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        kept: list[Any] = []
        for _ in range(200):
            with ds.dispose_scope() as scope:
                size = int(rng.integers(1, 50_000))
                array = np.full(size, seed)
                kept.append(scope.move_to_outer(np.full(size // 10 + 1, seed)))
                if array not in scope or (array != seed).any() or scope.nbytes != array.nbytes:
                    failures.append(seed)
                del array
            if len(kept) > 20 and (kept.pop(0) != seed).any():
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---------------------------------------------------------------------- budgets


def test_the_allocation_that_breaks_the_budget_is_refused_and_the_scope_goes_on() -> None:
    with ds.dispose_scope("b", budget="1 MiB") as scope:
        small = np.zeros(1000)
        with pytest.raises(MemoryError, match="Unable to allocate"):
            np.zeros(1_000_000)
        for _ in range(10):
            np.zeros(100_000)
        with pytest.raises(MemoryError):
            [np.zeros(50_000) for _ in range(3)]
        assert scope.nbytes == small.nbytes
        assert np.ones(100_000).sum() == 100_000


def test_the_error_gets_a_note_before_it_leaves_the_scope() -> None:
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope("outer", budget=1_000_000):
            _first = np.zeros(100_000)
            with ds.dispose_scope("inner"):
                np.zeros(100_000)
    [note] = caught.value.__notes__
    assert note.startswith(
        "the budget of scope 'outer' refused it: budget 1000000 bytes, live 800000 bytes, requested 800000 bytes:\n"
        "  800000 bytes in 1 at "
    )
    assert "test_arena_service.py" in note


def test_an_error_of_another_origin_gets_no_note() -> None:
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope(budget=1000):
            with pytest.raises(MemoryError):
                np.zeros(1_000_000)
            np.empty(1 << 55, "u1")
    assert not any("budget 1000 bytes" in note and "36028797018963968" not in note for note in caught.value.__notes__)
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope():
            raise MemoryError("mine")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(("outer", "inner"), [(10_000, 1_000_000), (1_000_000, 10_000)])
def test_of_nested_budgets_the_tightest_wins(outer: int, inner: int) -> None:
    with ds.dispose_scope(budget=outer), ds.dispose_scope(), ds.dispose_scope(budget=inner):
        np.zeros(1000)
        with pytest.raises(MemoryError):
            np.zeros(2000)


def test_a_budget_counts_what_inner_scopes_hand_over_and_not_what_is_moved_out() -> None:
    with ds.dispose_scope() as outest:
        with ds.dispose_scope(budget=100_000) as scope:
            with ds.dispose_scope():
                array = np.zeros(10_000)
            assert array in scope
            with pytest.raises(MemoryError):
                np.zeros(10_000)
            scope.move_to_outer(array)
            np.zeros(10_000)
        assert array in outest


def test_a_budget_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="kept by the arena"):
        ds.dispose_scope(budget=1, arena=False)
    with pytest.raises(ValueError, match="not a number"):
        ds.dispose_scope(budget="much")


def test_a_budget_bounds_tensors() -> None:
    with ds.dispose_scope(budget="100 kB"):
        with pytest.raises(MemoryError):
            ds.zeros(100_000)


# ---------------------------------------------------------------------- processes


def run_program(code: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_arrays_that_are_alive_at_the_end_of_the_interpreter_do_no_harm() -> None:
    code = """
import numpy as np, disposescope as ds, threading, builtins
with ds.dispose_scope():
    builtins.kept = [np.ones(size) for size in (1, 1000, 1_000_000)]
class Late:
    def __del__(self):
        self.more = np.ones(100) + builtins.kept[0]
late = Late()
scope = ds.dispose_scope(); scope.__enter__()
more = np.ones(100_000)
def suspended():
    with ds.dispose_scope():
        yield np.ones(3)
generator = suspended(); array = next(generator)
"""
    assert run_program(code) == ""
    assert run_program(code, DISPOSESCOPE_ARENA_DEBUG="1") == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_parent_and_child_both_go_on_after_a_fork() -> None:
    told = run_program("""
import os, numpy as np, disposescope as ds
name = np._core.multiarray.get_handler_name
with ds.dispose_scope() as scope:
    arrays = [np.full(size, 7.0) for size in (10, 1000, 1_000_000)]
    child = os.fork()
    if child == 0:
        assert name() == "default_allocator", name()
        assert all((array == 7).all() for array in arrays)
        del arrays
        with ds.dispose_scope() as own:
            array = np.ones(1000)
            assert array in own and array.sum() == 1000
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert name() == "disposescope_arena"
    assert all((array == 7).all() for array in arrays) and arrays[0] in scope
print("both")
""")
    assert told == "both\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("view(array, array.size + 1)[-1] = 1", "written past the end"),
        ("late = view(array, array.size); del array; late[0] = 1; del late; array = np.empty(100)", "written after"),
    ],
)
def test_the_debug_flag_finds_writes_past_the_end_and_after_the_free(damage: str, message: str) -> None:
    code = f"""
import ctypes, numpy as np, disposescope as ds
def view(array, size):
    return (ctypes.c_double * size).from_address(array.ctypes.data)
with ds.dispose_scope():
    array = np.zeros(100)
    {damage}
    del array
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DISPOSESCOPE_ARENA_DEBUG": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode < 0
    assert message in process.stderr


def test_without_the_compiled_part_everything_else_works() -> None:
    told = run_program("""
import sys
sys.modules["disposescope.tensors._arena"] = None
import warnings, numpy as np, disposescope as ds
assert ds.arena_statistics() == ds.ArenaStatistics()
with ds.dispose_scope(strict=True) as scope:
    array = np.zeros(10)
    tensor = ds.zeros(3)
    assert scope.move_to_outer(array) is array and scope.nbytes == 24 and scope.arena is None
    assert array not in scope
assert ds.is_disposed(tensor)
ds.empty_cache()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with ds.dispose_scope(budget=10):
        np.zeros(100)
assert "no effect" in str(caught[0].message)
print("works")
""")
    assert told == "works\n"


ESCAPING = {
    "plain": lambda: np.zeros(10),
    "view": lambda: np.zeros(10)[2:4],
    "structured": lambda: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])["b"],
    "objects": lambda: np.array([None, "a"], dtype=object),
    "masked": lambda: numpy.ma.array(np.arange(3.0), mask=[True, False, True]),
    "subclass": lambda: np.zeros(3).view(np.recarray),
    "rank 0": lambda: np.array(3.0),
    "nothing": lambda: np.empty((0, 3)),
}


@pytest.mark.parametrize("kind", ESCAPING)
def test_a_strict_scope_refuses_that_any_kind_of_array_escapes_unless_it_was_moved(kind: str) -> None:
    with pytest.raises(ds.EscapedError, match="test_arena_service"):
        with ds.dispose_scope(strict=True):
            kept = ESCAPING[kind]()
    with ds.dispose_scope(strict=True) as scope:
        kept = scope.move_to_outer(ESCAPING[kind]())
    assert ds.owner_of(kept) is None


def test_a_strict_scope_leaves_maps_buffers_and_other_libraries_memory_alone(tmp_path: Any) -> None:
    (tmp_path / "map").write_bytes(bytes(100))
    with ds.dispose_scope(strict=True) as scope:
        held = [
            np.memmap(tmp_path / "map", dtype="u1", mode="r+"),
            np.frombuffer(b"12345678"),
            np.asarray(memoryview(b"123")),
        ]
        assert [array in scope for array in held] == [False] * 3
        assert [ds.owner_of(array) for array in held] == [None] * 3
    assert held[0].sum() == 0
