"""A workspace records a pass, plans it, and serves later passes from one slab.

The pool serves what differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import importlib
import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import disposescope as ds
from disposescope.workspace.workspace import Run

Array = NDArray[Any]


def step(batch: Array) -> float:
    hidden = np.maximum(batch @ batch.T, 0.0)
    gate = hidden * 0.5
    return float((hidden * gate).sum())


def run_passes(workspace: ds.Workspace, count: int, rows: int = 100, key: object = None) -> None:
    batch = np.arange(rows * 20.0).reshape(rows, 20)
    for _ in range(count):
        with workspace.run(key=key):
            assert step(batch) == step_with_numpy(batch)


def step_with_numpy(batch: Array) -> float:
    with ds.dispose_scope(arena=False):
        return step(batch)


# Recording, plans, figures


def test_the_first_pass_is_recorded_and_later_ones_are_served_from_one_slab() -> None:
    workspace = ds.Workspace("step", verify=True)
    run_passes(workspace, 1)
    first = workspace.statistics()
    assert (first.passes, first.hits, first.misses, first.replans) == (1, 0, 0, ())
    assert first.slab_nbytes >= first.bound_nbytes >= 3 * 100 * 100 * 8
    run_passes(workspace, 5)
    later = workspace.statistics()
    assert later.misses == 0
    assert later.hits >= 5 * 4
    assert later.ratio < 1.05


def test_a_smaller_input_fits_without_a_new_plan_and_a_larger_one_is_planned_for_once() -> None:
    workspace = ds.Workspace("step", verify=True)
    run_passes(workspace, 2)
    run_passes(workspace, 2, rows=60)
    assert workspace.statistics().misses == 0
    run_passes(workspace, 1, rows=120)
    after = workspace.statistics()
    assert after.misses > 0
    assert len(after.replans) == 1
    assert after.replans[0].number == 5
    assert f"{120 * 120 * 8} > {100 * 100 * 8} bytes" in after.replans[0].reason
    assert after.replans[0].reason.startswith(f"{after.replans[0].line}: ")
    assert after.replans[0].line.rpartition(":")[0].endswith("test_workspace.py")
    run_passes(workspace, 3, rows=120)
    run_passes(workspace, 3, rows=100)
    assert workspace.statistics().misses == after.misses


@pytest.mark.parametrize(("left_out", "is_found"), [(1, True), (15, True), (70, False)])
def test_a_pass_that_leaves_some_out_looks_ahead_for_the_next_that_fits(left_out: int, is_found: bool) -> None:
    def work(times: int) -> float:
        total = 0.0
        for _ in range(times):
            total += float(ds.zeros(1000).sum())
        return total + float(ds.ones(2000).sum())

    workspace = ds.Workspace("step", verify=True)
    for times in (100, 100):
        with workspace.run():
            work(times)
    before = workspace.statistics().misses
    with workspace.run():
        work(100 - left_out)
    assert (workspace.statistics().misses == before) is is_found


def test_keys_have_plans_of_their_own_and_one_slab() -> None:
    workspace = ds.Workspace("step", verify=True)
    for rows in (50, 100, 75):
        run_passes(workspace, 1, rows, key=rows)
    for rows in (50, 100, 75, 50, 100):
        run_passes(workspace, 1, rows, key=rows)
    found = workspace.statistics()
    assert found.misses == 0
    assert workspace.peak(key=50).nbytes < workspace.peak(key=75).nbytes < workspace.peak(key=100).nbytes
    assert found.slab_nbytes < 1.05 * workspace.peak(key=100).nbytes
    with pytest.raises(LookupError, match="no pass with key 3"):
        workspace.peak(key=3)


def test_branches_that_take_turns_are_right_and_are_planned_for_once_each() -> None:
    def branching(flag: bool) -> float:
        x = np.full(5000, 2.0)
        if flag:
            x = x * np.arange(5000.0)
        y = x + 1.0
        return float((y * 2.0).sum())

    workspace = ds.Workspace("branches", verify=True)
    for flag in (True, False, True, False, True, False):
        with workspace.run():
            found = branching(flag)
        with ds.dispose_scope(arena=False):
            assert found == branching(flag)
    found_in_all = workspace.statistics()
    assert found_in_all.hits > 20
    assert len(found_in_all.replans) <= 2


def test_a_plan_is_made_anew_at_most_once_for_each_reason() -> None:
    def growing(n: int) -> float:
        return float((np.ones(n) + 1.0).sum())

    workspace = ds.Workspace("grows")
    for n in range(1000, 1050):
        with workspace.run():
            assert growing(n) == 2.0 * n
    replans = workspace.statistics().replans
    assert len(replans) < 10
    assert len({one.reason for one in replans}) == len(replans)


def test_where_planning_fails_the_plan_before_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(n: int) -> float:
        return float((np.ones(n) + 1.0).sum())

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError

    workspace = ds.Workspace("fails", verify=True)
    for _ in range(3):
        with workspace.run():
            work(1000)
    before = workspace.statistics()
    with monkeypatch.context() as context:
        context.setattr("disposescope.workspace.workspace.plan", fail)
        with workspace.run():
            assert work(2000) == 4000.0
        with pytest.raises(MemoryError):
            workspace.plan()
    after = workspace.statistics()
    assert after.misses > before.misses
    assert (after.replans, after.slab_nbytes) == ((), before.slab_nbytes)
    for _ in range(3):
        with workspace.run():
            assert work(1000) == 2000.0
    assert workspace.statistics().hits == after.hits + before.hits // 2 * 3
    # The reason is known by now, and is not planned for again.
    with workspace.run():
        assert work(2000) == 4000.0
    assert workspace.statistics().replans == ()


# What lives on


def test_what_outlives_its_pass_keeps_its_memory_and_is_planned_as_an_escape() -> None:
    workspace = ds.Workspace("escapes", verify=True)
    kept: list[Array] = []

    def make(value: float, keeps: bool) -> None:
        x = np.full(3000, value)
        y = x * 2.0
        if keeps:
            kept.append(y)

    for value in range(10):
        with workspace.run():
            make(float(value), value in (4, 7))
        for array, expected in zip(kept, (8.0, 14.0), strict=False):
            assert (array == expected).all()
    found = workspace.statistics()
    assert found.escapes == 2
    assert len(found.replans) == 1
    assert found.replans[0].reason == f"{found.replans[0].line}: escaped"
    assert found.misses == 0


def test_what_is_moved_out_in_the_first_pass_is_never_in_the_slab() -> None:
    workspace = ds.Workspace("moves", verify=True)
    losses: list[Array] = []

    def make(value: float) -> Array:
        return np.full(3000, value) * 2.0

    for value in range(6):
        with workspace.run() as scope:
            losses.append(scope.move_to_outer(make(float(value))))
    for value, loss in enumerate(losses):
        assert (loss == 2.0 * value).all()
    found = workspace.statistics()
    assert (found.misses, found.replans, found.escapes) == (0, (), 6)


def test_a_view_that_escapes_keeps_all_that_it_shows() -> None:
    workspace = ds.Workspace("views", verify=True)
    views: list[Array] = []

    def make(value: float) -> memoryview:
        x = np.full(4000, value)
        views.append(x[::2] if value % 2 else x[10:20])
        return memoryview(x)  # exported

    exported: list[memoryview] = []
    for value in range(6):
        with workspace.run():
            exported.append(make(float(value)))
    for value, (view, memory) in enumerate(zip(views, exported, strict=True)):
        assert (view == value).all()
        assert memory[0] == memory[-1] == value


def test_an_escape_that_dies_gives_its_slab_back() -> None:
    workspace = ds.Workspace("escapes", verify=True)
    kept: list[Array] = []
    for value in range(4):
        with workspace.run():
            (lambda v: kept.append(np.full(3000, v)) if v == 2 else float(np.full(3000, v).sum()))(float(value))
    assert (kept[0] == 2.0).all()
    kept.clear()
    with workspace.run():
        pass
    assert workspace.statistics().escapes == 1


def resident_pages(address: int, nbytes: int) -> int:
    """Return how many of the pages that lie wholly in some memory are resident."""
    begin, end = -(-address // mmap.PAGESIZE), (address + nbytes) // mmap.PAGESIZE
    found = (ctypes.c_ubyte * (end - begin))()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    assert mincore(begin * mmap.PAGESIZE, (end - begin) * mmap.PAGESIZE, found) == 0
    return sum(flags & 1 for flags in found)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages in use cannot be given back elsewhere")


def make_small_and_large(value: float) -> tuple[list[Array], list[Array]]:
    pairs = [(np.full(100, value), np.full(n, value)) for n in (100_000, 100_000, 200_000)]
    return [small for small, _ in pairs], [large for _, large in pairs]


def places_of_large(workspace: ds.Workspace) -> list[tuple[int, int]]:
    """Run passes until the slab serves; return the address and bytes of each large array."""
    places: list[tuple[int, int]] = []
    for _ in range(3):
        with workspace.run():
            places = [(array.ctypes.data, array.nbytes) for array in make_small_and_large(0.0)[1]]
    assert workspace.statistics().hits > 0
    assert all(resident_pages(*place) > 100 for place in places)
    return places


def test_what_a_recorded_pass_had_from_the_pool_is_cached_no_longer() -> None:
    workspace = ds.Workspace("cached")
    for key in (1, 2):
        for _ in range(2):
            with workspace.run(key=key):
                assert np.ones(1_000_000).sum() == 1_000_000.0
        assert ds.arena_statistics().cached_nbytes < 1_000_000


@on_linux
def test_a_kept_array_keeps_no_pages_of_those_that_die_after_the_pass() -> None:
    workspace = ds.Workspace("pages")
    places = places_of_large(workspace)
    with contextlib.suppress(KeyError), workspace.run():
        small, large = make_small_and_large(3.0)
        raise KeyError
    del large[1]
    assert resident_pages(*places[1]) == 0
    assert all((array == 3.0).all() for array in large)
    large.clear()
    assert [resident_pages(*place) for place in places] == [0, 0, 0]
    assert all((array == 3.0).all() for array in small)


@on_linux
def test_a_kept_array_keeps_no_other_pages_of_a_workspace_that_is_gone() -> None:
    workspace = ds.Workspace("pages")
    places = places_of_large(workspace)
    with workspace.run():
        small = make_small_and_large(3.0)[0]
        workspace.forget()
    assert [resident_pages(*place) for place in places] == [0, 0, 0]
    assert all((array == 3.0).all() for array in small)


def test_persistent_arrays_live_over_passes_and_are_in_no_plan() -> None:
    workspace = ds.Workspace("mask", verify=True)
    mask = workspace.persistent("mask", (50, 50), "f4")
    assert mask.shape == (50, 50)
    assert mask.dtype == np.float32
    assert (mask == 0).all()
    for value in range(4):
        with workspace.run():
            assert workspace.persistent("mask", (50, 50), "f4") is mask
            inside = workspace.persistent(f"inside {value}", 7)
            mask += float((np.full((50, 50), value) + inside[0]).mean())
    assert (mask == 6).all()
    assert workspace.statistics().persistent_nbytes == 50 * 50 * 4 + 4 * 7 * 8
    with pytest.raises(ValueError, match=r"'mask' is an array of shape \(50, 50\) and dtype float32, not of \(3,\)"):
        workspace.persistent("mask", 3)


# The limit, strict, verify


def test_a_pass_over_the_limit_is_refused_before_the_next_one_begins() -> None:
    workspace = ds.Workspace("step", limit="100 kB")
    run_passes(workspace, 1, rows=20)
    run_passes(workspace, 1, rows=100, key="large")
    run_passes(workspace, 1, rows=20)
    entered = False
    with pytest.raises(
        MemoryError, match=r"limit of 100.0 kB, which a pass exceeds: peak.* at .*test_workspace\.py:\d+"
    ):
        with workspace.run(key="large"):
            entered = True
    assert not entered
    assert ds.current_scope() is None


def test_persistent_arrays_count_for_the_limit() -> None:
    workspace = ds.Workspace("step", limit="100 kB")
    workspace.persistent("cache", 12_000)
    run_passes(workspace, 1, rows=50)
    with pytest.raises(MemoryError, match=r"96\.0 kB in 1 persistent array\b"):
        workspace.run().__enter__()
    workspace.persistent("more", 10)
    assert "96.1 kB in 2 persistent arrays\n" in str(workspace.peak())


def test_a_strict_workspace_raises_at_the_end_of_a_pass_that_misses() -> None:
    workspace = ds.Workspace("step", strict=True)
    run_passes(workspace, 3)
    with pytest.raises(ds.WorkspaceError, match=r"missed \d births:\n  \d times .*: 115200 > 80000 bytes"):
        run_passes(workspace, 1, rows=120)
    run_passes(workspace, 2, rows=120)
    with pytest.raises(KeyError) as raised:
        with workspace.run():
            step(np.ones((130, 20)))
            raise KeyError("first")
    assert "missed" in raised.value.__notes__[0]


@pytest.mark.parametrize(("offset", "what"), [(3000, "past the end"), (None, "was dead")])
def test_verify_finds_what_is_written_past_an_array_or_after_its_death(offset: int | None, what: str) -> None:
    import ctypes

    workspace = ds.Workspace("verified", verify=True)

    def damage(is_due: bool) -> None:
        x = np.zeros(3000, np.uint8)
        address = x.ctypes.data
        if is_due and offset is not None:
            ctypes.memset(address + offset, 7, 1)
        del x
        if is_due and offset is None:
            ctypes.memset(address, 7, 1)

    def use() -> None:
        np.zeros(3000, np.uint8)

    for _ in range(3):
        with workspace.run():
            damage(False)
            use()
    with pytest.raises(ds.WorkspaceError, match=what):
        with workspace.run():
            damage(True)
            use()
    with workspace.run():
        damage(False)
        use()


# The ways in which a plan that was trusted went wrong


def test_an_input_that_was_made_before_is_left_alone() -> None:
    workspace = ds.Workspace("inputs", verify=True)
    given = np.full(3000, 3.0)
    for _ in range(4):
        with workspace.run():
            (lambda: (given * 2.0).sum())()
        assert (given == 3.0).all()
        given = given + 0.0


def test_a_view_of_another_buffer_takes_no_bytes_and_is_left_alone() -> None:
    workspace = ds.Workspace("views", verify=True)
    buffer = bytearray(24_000)
    for value in range(4):
        with workspace.run():

            def use(value: float) -> None:
                over = np.frombuffer(buffer)
                over[:] = value
                halves = over.reshape(2, -1)[1]
                (halves * 2.0).sum()

            use(float(value))
        assert (np.frombuffer(buffer) == value).all()


def test_a_chunk_that_grows_while_the_total_stays_overwrites_nothing() -> None:
    workspace = ds.Workspace("chunks", verify=True)

    def chunks(first: int) -> list[float]:
        one = np.full(first, 1.0)
        two = np.full(4000 - first, 2.0)
        sums = [float((one + 1.0).sum()), float((two + 1.0).sum())]
        assert (one == 1.0).all()
        assert (two == 2.0).all()
        return sums

    for first in (2000, 2000, 3000, 1000, 3999, 2000, 1):
        with workspace.run():
            assert chunks(first) == [first * 2.0, (4000 - first) * 3.0]


def test_a_larger_shape_in_the_tenth_pass_is_right() -> None:
    workspace = ds.Workspace("step", verify=True)
    run_passes(workspace, 9)
    run_passes(workspace, 1, rows=300)
    run_passes(workspace, 3)
    assert len(workspace.statistics().replans) == 1


# Exceptions, nesting, threads, tasks, generators, forks


def test_an_exception_in_a_pass_leaves_the_plan_working() -> None:
    workspace = ds.Workspace("step", verify=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), workspace.run():
            step(np.ones((10, 20)))
            raise ZeroDivisionError
    with pytest.raises(LookupError, match="has recorded no pass"):
        workspace.peak()
    run_passes(workspace, 3)
    hits = workspace.statistics().hits
    held: Any = None
    try:
        with workspace.run():
            held = np.full(5000, 4.0)
            step(np.ones((100, 20)))
            raise ZeroDivisionError
    except ZeroDivisionError as error:
        traceback = error
    run_passes(workspace, 2)
    assert (held == 4.0).all()
    assert traceback is not None
    found = workspace.statistics()
    assert found.hits > hits
    assert found.replans == ()


def test_scopes_inside_a_pass_are_recorded_and_served() -> None:
    workspace = ds.Workspace("nested", verify=True)

    def inner(value: float) -> Array:
        with ds.dispose_scope() as scope:
            x = np.full(3000, value)
            return scope.move_to_outer(x * 2.0)

    for value in range(4):
        with workspace.run():
            assert (inner(float(value)) == 2.0 * value).all()
    found = workspace.statistics()
    assert found.misses == 0
    assert found.hits >= 6


def test_a_pass_inside_a_pass_is_served_by_the_pool() -> None:
    workspace, other = ds.Workspace("outer", verify=True), ds.Workspace("inner", verify=True)
    for _ in range(3):
        with workspace.run():
            with workspace.run(key="inside"):
                step(np.ones((30, 20)))
            with other.run():
                step(np.ones((40, 20)))
            step(np.ones((50, 20)))
    assert workspace.statistics().passes == 6
    assert workspace.peak("inside").nbytes > 0
    assert other.statistics().hits > 0
    assert ds.current_scope() is None


def test_each_thread_has_its_own_plans_and_slab() -> None:
    workspace = ds.Workspace("threads", verify=True)
    errors: list[BaseException] = []
    barrier = threading.Barrier(3)

    def work(rows: int) -> None:
        try:
            barrier.wait()
            run_passes(workspace, 5, rows)
            barrier.wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (40, 60, 80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = workspace.statistics()
    assert (found.passes, found.misses) == (15, 0)


def test_what_another_thread_makes_in_the_scope_of_a_pass_is_served_by_the_pool() -> None:
    import contextvars

    workspace = ds.Workspace("threads", verify=True)
    for value in range(4):
        with workspace.run():
            made: list[Array] = []
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(lambda v, m: m.append(np.full(3000, v)), value, made))
            thread.start()
            thread.join()
            assert (made.pop() == value).all()
            step(np.ones((30, 20)))
    found = workspace.statistics()
    assert found.misses == 0
    assert found.hits > 0


def test_tasks_that_have_passes_open_at_once_do_not_share_bytes() -> None:
    workspace = ds.Workspace("tasks", verify=True)

    async def work(value: float) -> None:
        for _ in range(5):
            with workspace.run():
                x = np.full(3000, value)
                await asyncio.sleep(0)
                y = x * 2.0
                await asyncio.sleep(0)
                assert (x == value).all()
                assert (y == 2.0 * value).all()
                del x, y

    async def main() -> None:
        await asyncio.gather(*(work(float(value)) for value in range(4)))

    asyncio.run(main())
    assert workspace.statistics().hits > 0


def test_a_generator_may_be_suspended_in_a_pass() -> None:
    workspace = ds.Workspace("generators", verify=True)

    def batches() -> Iterator[Array]:
        for value in range(5):
            with workspace.run():
                yield np.full(3000, float(value))

    for value, batch in enumerate(batches()):
        mine = np.full(3000, 9.0)
        assert (batch == value).all()
        assert (mine == 9.0).all()
    assert ds.current_scope() is None


def test_an_array_that_is_resized_in_a_pass_keeps_its_contents() -> None:
    workspace = ds.Workspace("resized", verify=True)

    def work() -> None:
        x = np.full(3000, 5.0)
        x.resize(3001, refcheck=False)
        assert (x[:3000] == 5.0).all()
        x.resize(9000, refcheck=False)
        assert (x[:3000] == 5.0).all()
        assert (x[3000:] == 0.0).all()
        x.resize(10, refcheck=False)
        text = np.fromstring(" ".join("1" * 3000), sep=" ")
        assert text.sum() == 3000

    for _ in range(5):
        with workspace.run():
            work()


def test_a_pass_can_be_left_crosswise_or_its_scope_closed_early() -> None:
    workspace = ds.Workspace("crosswise", verify=True)
    for _ in range(3):
        with workspace.run() as scope:
            step(np.ones((30, 20)))
            scope.close()
            step(np.ones((30, 20)))
    with contextlib.ExitStack() as stack:
        stack.enter_context(workspace.run())
        step(np.ones((30, 20)))
    run = workspace.run()
    with run:
        pass
    with pytest.raises(ds.ScopeNestingError, match="is entered once"):
        run.__enter__()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_begins_anew_and_the_parent_goes_on() -> None:
    workspace = ds.Workspace("forks", verify=True)
    run_passes(workspace, 2)
    with workspace.run():
        x = np.full(3000, 5.0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert (x == 5.0).all()
                step(np.ones((100, 20)))
                assert workspace.statistics().passes == 0
                x[:] = 6.0
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert (x == 5.0).all()
        del x
    run_passes(workspace, 2)
    assert workspace.statistics().hits > 0


def test_a_leak_detector_and_budgets_see_what_the_slab_serves() -> None:
    workspace = ds.Workspace("watched", verify=True)
    kept: list[Array] = []
    with ds.LeakDetector() as detector:
        for value in range(4):
            with workspace.run() as scope:
                step(np.ones((30, 20)))
                assert scope.nbytes == 0
                (lambda v: kept.append(np.full(3000, v)) if v == 3 else np.full(3000, v).sum())(value)
                assert (len(kept), scope.nbytes) in ((0, 0), (1, 24_000))
                assert not kept or kept[0] in scope
        assert [record.nbytes for record in ds.live_tensors() if record.nbytes == 24_000] == [24_000]
        detector.report()
    assert (kept[0] == 3).all()
    for _ in range(3):
        with ds.dispose_scope(budget="100 kB"), workspace.run(key="budget"):
            step(np.ones((30, 20)))
            with pytest.raises(MemoryError):
                np.ones(20_000)
    assert workspace.statistics().misses == 0


# The rest of the surface


def test_save_writes_a_table_that_the_planner_reads(tmp_path: Path) -> None:
    workspace = ds.Workspace("step")
    run_passes(workspace, 2)
    workspace.save(tmp_path / "step.csv")
    rows = (tmp_path / "step.csv").read_text().splitlines()
    assert rows[0] == "id,lower,upper,size,offset"
    buffers = [tuple(int(value) for value in row.split(","))[1:4] for row in rows[1:]]
    found = ds.plan(buffers, time_limit=0.5)
    assert workspace.statistics().slab_nbytes >= found.height


def test_plan_looks_for_lower_plans_between_passes() -> None:
    workspace = ds.Workspace("step", verify=True)
    run_passes(workspace, 2)
    before = workspace.statistics().slab_nbytes
    assert workspace.plan(time_limit=0.1).slab_nbytes <= before
    run_passes(workspace, 2)
    assert workspace.statistics().misses == 0
    with workspace.run(), pytest.raises(RuntimeError, match="plan between passes"):
        workspace.plan()


def test_texts_say_what_was_found() -> None:
    workspace = ds.Workspace("step")
    run_passes(workspace, 2)
    run_passes(workspace, 1, rows=150)
    assert repr(workspace) == "<Workspace 'step', 3 passes>"
    text = str(workspace.statistics())
    assert text.startswith("3 passes: ")
    assert "missed once: " in text
    assert "planned anew after pass 3" in text
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(workspace)
    with pytest.raises(TypeError, match="name must be a str"):
        ds.Workspace(3)  # type: ignore[arg-type]


def test_slabs_go_with_their_workspace() -> None:
    workspace = ds.Workspace("step", verify=True)
    run_passes(workspace, 3)
    held: list[Array] = []
    with workspace.run():
        (lambda: held.append(np.full(100, 7.0)))()
    del workspace
    gc.collect()
    assert (held[0] == 7.0).all()


def test_the_example_program_is_served_as_planned() -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "numpy_transformer.py"
    done = subprocess.run([sys.executable, example, "--passes", "9"], check=True, capture_output=True, text=True)
    assert ", 0 missed, 9 escapes\n" in done.stdout
    assert "peak of passes with key 192: 2.6 MB at " in done.stdout
    refused = subprocess.run([sys.executable, example, "--limit", "2MB"], check=False, capture_output=True, text=True)
    assert "MemoryError: workspace 'inference' has a limit of 2.0 MB, which a pass exceeds: peak" in refused.stderr


# The limit holds for every pass, however it differs from the one that was planned


def several_new_sizes(workspace: ds.Workspace) -> None:
    for number in range(1, 10):
        with workspace.run():
            np.ones(100 * number) + 1.0
    with workspace.run():
        np.ones(100_000) + 1.0


def more_of_a_known_line(workspace: ds.Workspace) -> None:
    for count in (1, 2, 3, 100):
        with workspace.run():
            [np.ones(1000) for _ in range(count)]


def grown_block(workspace: ds.Workspace) -> None:
    for count in (10, 10, 100_000):
        with workspace.run():
            np.fromiter((1.0 for _ in range(count)), float)


def on_another_thread(workspace: ds.Workspace) -> None:
    for count in (10, 10, 100_000):
        with workspace.run():
            run = contextvars.copy_context().run
            thread = threading.Thread(target=run, args=(lambda n: float(np.ones(n).sum()), count))
            thread.start()
            thread.join()


def inside_of_another_pass(workspace: ds.Workspace) -> None:
    with workspace.run("outside"), workspace.run():
        np.ones(100_000) + 1.0


def ended_by_an_exception(workspace: ds.Workspace) -> None:
    with contextlib.suppress(KeyError), workspace.run():
        np.ones(100_000) + 1.0
        raise KeyError


@pytest.mark.parametrize(
    "passes",
    [
        several_new_sizes,
        more_of_a_known_line,
        grown_block,
        on_another_thread,
        inside_of_another_pass,
        ended_by_an_exception,
    ],
)
def test_a_pass_that_exceeds_the_limit_is_the_last(passes: Callable[[ds.Workspace], None]) -> None:
    workspace = ds.Workspace("limited", limit="100 kB")
    passes(workspace)
    with pytest.raises(MemoryError, match=r"limit of 100.0 kB, which a pass exceeds: peak [0-9.]+ [kM]B at"):
        workspace.run().__enter__()
    assert ds.current_scope() is None


# Whatever happens while a pass ends, later ones are planned and served


def test_an_interrupt_while_planning_leaves_it_to_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    workspace = ds.Workspace("interrupted", verify=True)
    for rows in (100, 120):
        with monkeypatch.context() as context:
            context.setattr("disposescope.workspace.workspace.plan", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run_passes(workspace, 1, rows)
        run_passes(workspace, 1, rows)
        before = workspace.statistics()
        run_passes(workspace, 3, rows)
        after = workspace.statistics()
        assert after.misses == before.misses
        assert after.hits - before.hits >= 3 * 4


def test_what_an_exception_keeps_costs_no_later_pass_its_slab() -> None:
    workspace = ds.Workspace("kept", strict=True, verify=True)
    kept: list[BaseException] = []

    def work(fails: bool) -> float:
        hidden = np.ones(3000)
        result = hidden * 2.0
        if fails:
            raise KeyError
        return float(result.sum())

    for number in range(8):
        try:
            with workspace.run():
                work(number == 3)
        except KeyError as error:
            kept.append(error)
    assert workspace.statistics().misses == 0
    traceback = kept[0].__traceback__
    assert traceback is not None
    assert traceback.tb_next is not None
    # A plain array: its scope has ended, and its bytes are its own.
    assert traceback.tb_next.tb_frame.f_locals["result"].sum() == 6000.0


def test_a_pass_without_memory_for_the_slab_says_so_and_the_next_one_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from disposescope.workspace import workspace as room

    def refuse(*_arguments: object) -> None:
        raise MemoryError

    workspace = ds.Workspace("lacking", strict=True)
    run_passes(workspace, 1)
    with monkeypatch.context() as context:
        context.setattr(room._Thread, "slab_for", refuse)
        with pytest.raises(ds.WorkspaceError, match="once there was no memory for the slab"):
            run_passes(workspace, 1)
    before = workspace.statistics()
    assert before.reasons == {"there was no memory for the slab": 1}
    run_passes(workspace, 2)
    after = workspace.statistics()
    assert (after.misses, after.hits > before.hits) == (1, True)


def test_a_planned_pass_inside_another_is_a_miss_as_the_pool_serves_it() -> None:
    workspace = ds.Workspace("inside", strict=True)

    def run_both() -> None:
        with workspace.run("outer"):
            float(np.ones(1000).sum())
            with workspace.run("inner"):
                float(np.ones(5000).sum())

    run_both()
    with pytest.raises(ds.WorkspaceError, match="missed 1 birth:\n  once another pass of this thread was open"):
        run_both()
    found = workspace.statistics()
    assert (found.misses, list(found.reasons.values())) == (1, [1])


def test_planning_takes_nothing_from_the_scope_around() -> None:
    workspace = ds.Workspace("inner")
    with ds.dispose_scope(budget="100 kB") as scope:
        for _ in range(2):
            with workspace.run():
                for _ in range(10_000):
                    np.ones(3)
        workspace.plan(time_limit=0.01)
        assert scope.arena is not None
        assert scope.arena.peak_nbytes < 1000
    assert workspace.statistics().hits > 0


def test_passes_of_tasks_that_overlap_are_counted_and_recorded() -> None:
    workspace = ds.Workspace("tasks")

    async def work(key: int) -> None:
        with workspace.run(key):
            kept = np.ones(100 + key)
            await asyncio.sleep(0)
            assert float(kept.sum()) == 100 + key

    async def main() -> None:
        await asyncio.gather(*(work(key) for key in range(5)))

    asyncio.run(main())
    assert workspace.statistics().passes == 5
    # NumPy's sum may take a number or two for itself, as its version has it.
    [own] = {workspace.peak(key).nbytes - (100 + key) * 8 for key in range(5)}
    assert own in (0, 8, 16)


def test_the_peak_of_a_key_is_known_after_its_thread_has_ended() -> None:
    workspace = ds.Workspace("ended")
    thread = threading.Thread(target=run_passes, args=(workspace, 2, 100, "key"))
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert workspace.peak("key").nbytes > 0


@pytest.mark.parametrize("here", ["before", "after", "never"])
def test_the_peak_of_a_key_is_the_highest_of_all_threads(here: str) -> None:
    workspace = ds.Workspace("threads")
    if here == "before":
        run_passes(workspace, 2, 10, "key")
    for rows in (20, 100, 30):
        thread = threading.Thread(target=run_passes, args=(workspace, 2, rows, "key"))
        thread.start()
        thread.join()
    if here == "after":
        run_passes(workspace, 2, 10, "key")
    alone = ds.Workspace("alone")
    run_passes(alone, 2, 100, "key")
    assert workspace.peak("key").nbytes == workspace.peak().nbytes == alone.peak().nbytes
    assert workspace.peak().key == "key"
    workspace.forget()
    with pytest.raises(LookupError, match="recorded no pass with key 'key'"):
        workspace.peak("key")


def test_the_peak_of_a_key_is_the_highest_where_the_limit_has_fallen_below_it() -> None:
    workspace = ds.Workspace("limited", limit=1_000_000)
    run_passes(workspace, 1, 200)
    highest = workspace.peak().nbytes
    kept = workspace.persistent("kept", 80_000)
    run_passes(workspace, 1, 150)
    with pytest.raises(MemoryError, match=r"which a pass exceeds: peak 1\.2 MB"):
        run_passes(workspace, 1, 10)
    assert workspace.peak().nbytes == highest + kept.nbytes


def test_verify_finds_what_is_written_past_an_array_that_outlives_the_pass() -> None:
    import ctypes

    workspace = ds.Workspace("verified", verify=True)
    kept: list[Array] = []

    def work(is_due: bool) -> None:
        x = np.zeros(3000, np.uint8)
        if is_due:
            ctypes.memset(x.ctypes.data + 3000, 7, 1)
            kept.append(x)

    for _ in range(2):
        with workspace.run():
            work(False)
    with pytest.raises(ds.WorkspaceError, match="past the end"), workspace.run():
        work(True)
    assert kept[0].sum() == 0


def test_a_refused_allocation_is_no_miss() -> None:
    workspace = ds.Workspace("refused", strict=True)
    for number in range(3):
        with ds.dispose_scope(budget="1 MB"), workspace.run():
            if number:
                with pytest.raises(MemoryError):
                    np.empty(1 << 21, np.uint8)
            step(np.ones((10, 20)))
    assert workspace.statistics().reasons == {}


def test_numbers_of_numpy_are_shapes_of_persistent_arrays() -> None:
    workspace = ds.Workspace("counts")
    counts = workspace.persistent("counts", np.int64(4))
    assert counts.shape == (4,)
    assert workspace.persistent("counts", (np.int32(4),)) is counts
    with pytest.raises(TypeError):
        workspace.persistent("wrong", 1.5)  # type: ignore[arg-type]  # wrong on purpose
    assert workspace.persistent("wrong", 3).shape == (3,)


@pytest.mark.parametrize(("limit", "error"), [(None, TypeError), ("1", TypeError), (-1, ValueError), (True, TypeError)])
def test_a_time_limit_that_is_none_is_refused_before_anything_is_planned(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"plan: time_limit is a number of seconds.*{limit!r}"):
        ds.Workspace("step").plan(time_limit=limit)


def test_a_limit_that_is_no_number_of_bytes_is_called_the_limit() -> None:
    with pytest.raises(ValueError, match="Workspace: limit '1 XB' is not a number with a unit"):
        ds.Workspace("step", limit="1 XB")


def test_a_pass_that_misses_and_exceeds_the_limit_is_told_with_its_own_lines() -> None:
    workspace = ds.Workspace("both", limit="100 kB")

    def work(large: bool) -> None:
        first = [np.ones(10) for _ in range(20)]
        if large:
            np.ones(100_000)
        assert len(first) == 20

    for large in (False, False, True):
        with workspace.run():
            work(large)
    with pytest.raises(MemoryError, match=rf"peak 801.6 kB at .*:{work.__code__.co_firstlineno + 3} in "):
        workspace.run().__enter__()


def test_memory_that_was_refused_is_in_no_peak() -> None:
    workspace = ds.Workspace("refused", limit="100 kB")
    for _ in range(3):
        with ds.dispose_scope(budget="1 MB"), workspace.run():
            with pytest.raises(MemoryError):
                np.empty(1 << 21, np.uint8)
            step(np.ones((10, 20)))
    assert workspace.statistics().passes == 3


def assert_later_passes_are_served(workspace: ds.Workspace) -> None:
    before = workspace.statistics().hits
    run_passes(workspace, 2)
    assert workspace.statistics().hits > before
    workspace.plan(time_limit=0)


def test_an_interrupt_at_the_end_of_a_pass_leaves_later_ones_served(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = ds.Workspace("interrupted")
    run_passes(workspace, 2)
    with monkeypatch.context() as patched:

        def interrupted(_run: object, _is_whole: bool) -> None:
            raise KeyboardInterrupt

        patched.setattr(Run, "_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_passes(workspace, 1)
    assert_later_passes_are_served(workspace)


def test_a_pass_whose_exit_is_interrupted_before_its_first_line_is_left() -> None:
    workspace = ds.Workspace("interrupted")
    run_passes(workspace, 2)
    tracer = sys.gettrace()

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "__exit__" and frame.f_code.co_filename.endswith("workspace.py"):
            sys.settrace(tracer)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with workspace.run() as scope:
            step(np.ones((10, 20)))
            sys.settrace(interrupt)
    assert scope.closed
    assert ds.current_scope() is None
    assert_later_passes_are_served(workspace)


def test_a_pass_that_was_not_entered_is_not_left() -> None:
    workspace = ds.Workspace("unopened")
    with pytest.raises(ds.ScopeNestingError, match="'unopened' was left without having been entered"):
        workspace.run().__exit__(None, None, None)


def test_figures_can_be_asked_for_while_a_thread_meets_new_keys() -> None:
    workspace = ds.Workspace("keys")
    done = threading.Event()

    def run() -> None:
        for key in range(60):
            with workspace.run(key):
                step(np.ones((2, 2)))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    # With pauses: the thread needs the lock of the workspace, too.
    while not done.wait(0.001):
        assert workspace.statistics().passes <= 60
    thread.join()
    assert workspace.statistics().passes == 60


def test_reasons_have_a_bound_and_their_text_is_short() -> None:
    workspace = ds.Workspace("longer and longer")
    for length in range(1, 700):
        with workspace.run():
            np.ones(64 * length)
    found = workspace.statistics()
    assert len(found.reasons) == 501
    assert sum(found.reasons.values()) == found.misses
    assert found.reasons["other lines or sizes"] > 100
    assert len(str(found).splitlines()) < 40
    assert "481 reasons more" in str(found)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((3, 2), "name must be a str, not 3"),
        (("x", 1.5), "shape must be an int or a sequence of them, not 1.5"),
        (("x", (2, "3")), r"not \(2, '3'\)"),
        (("x", -1), "no length of a shape is negative, as in -1"),
        (("x", 2, "U"), "an element of dtype 'U' has no size"),
        (("x", 2, "3f8"), "an element of dtype '3f8' has no size, or is an array"),
        (("x", 2, "zz"), "zz"),
    ],
)
def test_a_persistent_array_that_cannot_be_made_changes_nothing(arguments: Any, error: str) -> None:
    workspace = ds.Workspace("persistent")
    with pytest.raises((TypeError, ValueError), match=error):
        workspace.persistent(*arguments)
    assert workspace.statistics().persistent_nbytes == 0
    assert workspace.persistent("x", np.array([2, 3]).tolist()).shape == (2, 3)
    assert workspace.persistent("y", np.array([2, 3])).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ds.Workspace("x", strict="no"), "strict must be True or False, not 'no'"),
        (lambda: ds.Workspace("x", verify="false"), "verify must be True or False, not 'false'"),
        (lambda: ds.Workspace("x").run([1]), r"run: key must be hashable, not \[1\]"),
        (lambda: ds.Workspace("x").peak([1]), r"peak: key must be hashable, not \[1\]"),
        (lambda: ds.Workspace("x").save("file.csv", [1]), r"save: key must be hashable, not \[1\]"),
        (lambda: ds.Workspace("x").save(3), "save: path must be a str or a Path, not 3"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        call()


def test_a_pass_that_is_forgotten_while_it_is_open_counts_nowhere() -> None:
    workspace = ds.Workspace("forgotten")
    run_passes(workspace, 2)
    with workspace.run():
        step(np.ones((10, 20)))
        workspace.forget()
    found = workspace.statistics()
    assert (found.passes, found.hits, found.misses, found.escapes) == (0, 0, 0, 0)


def test_a_pass_that_cannot_be_entered_counts_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_scope: object) -> None:
        raise ZeroDivisionError

    workspace = ds.Workspace("refused")
    run_passes(workspace, 2)
    before = workspace.statistics()
    with monkeypatch.context() as patched:
        patched.setattr(ds.DisposeScope, "__enter__", refuse)
        with pytest.raises(ZeroDivisionError):
            workspace.run().__enter__()
    assert workspace.statistics() == before
    assert_later_passes_are_served(workspace)


def test_a_pass_keeps_what_is_held_where_it_is_asked_to() -> None:
    workspace = ds.Workspace("keeps")
    held: list[ds.Tensor] = []
    with workspace.run(escapes="keep") as scope:
        held.append(ds.zeros(3))
    assert scope.escaped == (held[0],)
    with workspace.run():
        held.append(ds.zeros(3))
    assert [ds.is_disposed(tensor) for tensor in held] == [False, True]
    with pytest.raises(ValueError, match=r'^run: escapes must be "dispose", "keep" or "raise"'):
        workspace.run(escapes="all")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    assert ds.Workspace("x", limit=np.int64(5)).limit == 5
    assert ds.Workspace("x").plan(time_limit=np.float32(0)).passes == 0
    assert ds.Workspace("x").plan(time_limit=10**400).passes == 0


def test_the_peak_of_a_first_pass_that_was_refused_is_known() -> None:
    workspace = ds.Workspace("refused", limit="1 kB")
    with pytest.raises(ValueError, match="of the step"), workspace.run("key"):
        np.ones(1000)
        raise ValueError("of the step")
    with pytest.raises(MemoryError, match="a limit of 1"):
        workspace.run("key").__enter__()
    assert workspace.peak().nbytes >= 8000
    assert workspace.peak("key").nbytes >= 8000


def test_a_pass_in_which_nothing_is_born_says_so() -> None:
    workspace = ds.Workspace("empty")
    with workspace.run():
        pass
    assert str(workspace.peak()) == "peak 0 bytes: nothing was born"


# What holds for a key, on all threads and over all passes.


def test_a_key_over_the_limit_is_refused_on_every_thread() -> None:
    workspace = ds.Workspace("limited", limit="100 kB")
    entered: list[int] = []

    def work() -> None:
        with contextlib.suppress(MemoryError), workspace.run(key="long"):
            entered.append(len(entered))
            np.ones(100_000).sum()

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert entered == [0]
    workspace.forget()
    work()
    assert entered == [0, 1]


def test_the_peak_is_that_of_the_highest_pass_although_no_new_plan_is_made() -> None:
    workspace = ds.Workspace("grows")

    def many(count: int) -> float:
        return float(sum(part[0] for part in [np.ones(10_000) for _ in range(count)]))

    for count in (1, 2, 3, 50, 50, 20):
        with workspace.run():
            many(count)
        if count == 20:
            # Another line, and a new plan, of a lower pass.
            with workspace.run():
                np.zeros(100).sum()
    assert workspace.peak().nbytes == pytest.approx(50 * 80_000, rel=0.01)


def test_a_slab_that_has_become_too_large_is_given_up_with_a_new_plan() -> None:
    workspace = ds.Workspace("smaller")

    def branches(is_large: bool) -> float:
        if is_large:
            return float((np.ones(400_000) + 1.0).sum())
        return float((np.full(1000, 2.0) * 3.0).sum())

    for is_large in (True, True):
        with workspace.run():
            branches(is_large)
    large = workspace.statistics()
    assert large.slab_nbytes > 3_000_000
    with workspace.run():
        branches(False)
    found = workspace.statistics()
    assert (len(found.replans), found.slab_nbytes < 100_000, found.ratio < 1.2) == (1, True, True)


def test_births_that_miss_for_one_reason_are_counted_each() -> None:
    workspace = ds.Workspace("misses")
    for count in (1, 5, 9):
        with workspace.run():
            for _ in range(count):
                np.ones(100)
    found = workspace.statistics()
    assert sum(found.reasons.values()) == found.misses > 0
    strict = ds.Workspace("strict", strict=True)
    with pytest.raises(ds.WorkspaceError, match=r"missed \d+ births:\n  4 times [^\n]*: 800 bytes"):
        for count in (1, 5):
            with strict.run():
                for _ in range(count):
                    np.ones(100)


def make_ones() -> Array:
    return np.ones(4000)


def few_ones() -> float:
    few = np.ones(4000)
    return float(few.mean())


def many_ones() -> float:
    many = np.ones(4000)
    roots = np.sqrt(many)
    return float(np.sqrt(roots).sum())


def few_by_helper() -> float:
    few = make_ones()
    return float(few.mean())


def many_by_helper() -> float:
    many = make_ones()
    roots = np.sqrt(many)
    return float(np.sqrt(roots).sum())


@pytest.mark.parametrize(("few", "many"), [(few_ones, many_ones), (few_by_helper, many_by_helper)])
def test_lines_and_advice_are_those_of_the_pass_where_a_function_has_several_callers(
    few: Callable[[], float], many: Callable[[], float]
) -> None:
    def peak_of(*steps: Callable[[], float]) -> str:
        workspace = ds.Workspace("callers")
        for step in steps:
            with workspace.run():
                step()
        return str(workspace.peak())

    assert "del many after" in peak_of(many)
    assert peak_of(few, many) == peak_of(many)


def test_lines_are_those_of_the_pass_where_the_loop_itself_makes_arrays() -> None:
    def peak_of(*flags: bool) -> str:
        workspace = ds.Workspace("inline")
        for is_long in flags:
            with workspace.run():
                if is_long:
                    many = np.ones(4000)
                    roots = np.sqrt(many)
                    del many, roots
                else:
                    few = np.ones(4000)
                    del few
        return str(workspace.peak())

    assert peak_of(False, True) == peak_of(True)


class PassOfEachCall(contextlib.ContextDecorator):
    def __init__(self, workspace: ds.Workspace) -> None:
        self.workspace = workspace

    def __enter__(self) -> None:
        self.run = self.workspace.run()
        self.run.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.run.__exit__(*error)


def test_lines_are_those_of_the_pass_where_library_code_runs_around_it() -> None:
    workspace = ds.Workspace("decorated")
    # At a birth there are, from the innermost: a frame of `numpy`, one of `contextlib`, the line.
    ones = PassOfEachCall(workspace)(np.ones)
    for is_long in (False, False, True, True):
        if is_long:
            ones(1000)
        else:
            ones(1000)
    [replan] = workspace.statistics().replans
    line = sys._getframe().f_code.co_firstlineno + 6
    assert replan.number == 3
    assert f"{Path(__file__).name}:{line} in" in replan.line


@pytest.mark.parametrize("file", ["<frozen importlib._bootstrap>", importlib.__file__])
def test_what_an_import_makes_is_told_at_the_line_of_the_import(file: str) -> None:
    workspace = ds.Workspace("importing")
    importing = compile("make(1000)", file, "exec")
    with workspace.run():
        exec(importing, {"make": np.ones, "__name__": "importlib"})
    peak = workspace.peak()
    assert f"{Path(__file__).name}:" in peak.line


class Rows:
    @property
    def first(self) -> Array:
        return np.ones(1000)

    def __getitem__(self, number: int) -> Array:
        return np.full(1000, float(number))

    def __call__(self, *numbers: int) -> Iterator[Array]:
        for number in numbers:
            yield np.full(1000, float(number))


def test_a_pass_that_is_entered_at_another_line_fits_the_plan() -> None:
    workspace = ds.Workspace("entered", strict=True)
    rows = Rows()

    def work() -> float:
        # The compiler makes other instructions of these once they have run often.
        return float(sum(row.sum() for row in rows(1, 2)) + rows.first.sum() + rows[3].sum())

    for _ in range(30):
        with workspace.run():
            work()
        with contextlib.ExitStack() as stack:
            stack.enter_context(workspace.run())
            work()
    assert workspace.statistics().misses == 0


def test_a_plan_that_another_loop_makes_anew_fits_from_then_on() -> None:
    workspace = ds.Workspace("loops")

    def work(n: int) -> float:
        return float((np.ones(n) * 2.0).sum())

    def loop(n: int) -> None:
        for _ in range(3):
            with workspace.run():
                work(n)

    def longer_loop(n: int) -> None:
        for _ in range(3):
            with workspace.run():
                work(n)

    loop(1000)
    longer_loop(2000)
    assert len(workspace.statistics().replans) == 1
