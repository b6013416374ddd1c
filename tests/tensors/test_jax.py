"""JAX's arrays are resources: born in the current scope, deleted at its end, refused afterwards."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import disposescope as ds

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax: Any = pytest.importorskip("jax")
jnp: Any = pytest.importorskip("jax.numpy")


@pytest.fixture(autouse=True)
def _taught() -> None:
    # Whatever was born before the first scope that JAX is known in is nobody's.
    with ds.dispose_scope():
        pass


# ---------------------------------------------------------------------- births

WAYS = {
    "ones": lambda: jnp.ones(3),
    "arange": lambda: jnp.arange(5.0),
    "array": lambda: jnp.array([1.0, 2.0]),
    "asarray": lambda: jnp.asarray(np.ones(3)),
    "device_put": lambda: jax.device_put(np.ones(3)),
    "operator": lambda: jnp.ones(3) * 2 + 1,
    "jit": lambda: jax.jit(lambda: jnp.zeros(7))(),
    "grad": lambda: jax.grad(lambda x: (x * x).sum())(jnp.ones(3)),
    "vmap": lambda: jax.vmap(lambda x: x * 2)(jnp.ones(3)),
    "scan": lambda: jax.lax.scan(lambda c, x: (c + x, c), jnp.float32(0), jnp.ones(3))[1],
    "random": lambda: jax.random.normal(jax.random.key(0), (3,)),
    "indexing": lambda: jnp.arange(5.0)[1:3],
    "at": lambda: jnp.zeros(3).at[0].set(1),
    "unpickled": lambda: pickle.loads(pickle.dumps(jnp.ones(3))),
    "from_dlpack": lambda: jax.dlpack.from_dlpack(np.ones(3)),
    "copy": lambda: jnp.ones(3).copy(),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_call_makes_is_born_the_first_time_and_later(way: str) -> None:
    for _ in range(3):
        with ds.dispose_scope() as scope:
            array = WAYS[way]()
            assert array in scope
            assert ds.owner_of(array) is scope
            assert array.is_deleted() is False
        assert ds.is_disposed(array)
        assert array.is_deleted()


def test_a_temporary_dies_by_reference_count_and_what_is_left_is_counted_exactly() -> None:
    with ds.dispose_scope() as scope:
        before = ds.statistics()
        array = jnp.ones((10, 10), dtype="float32")
        (array + 1).sum()
        assert len(scope) == 1
        assert scope.nbytes == 400
        assert [live is array for live in scope.live] == [True]
        now = ds.statistics()
        assert (now.live - before.live, now.live_nbytes - before.live_nbytes) == (1, 400)
        assert now.by_device["cpu:0"].live >= 1
        del array
        assert len(scope) == 0


def test_results_are_moved_out_in_any_tree() -> None:
    step = jax.jit(lambda params: {"w": params["w"] * 2, "b": [params["b"] + 1]})
    with ds.dispose_scope() as outer:
        params = {"w": jnp.ones(3), "b": jnp.zeros(2)}
        for _ in range(2):
            with ds.dispose_scope() as inner:
                result = step(params)
                aside = result["w"] + 1
                assert inner.move_to_outer(result) is result
            assert aside.is_deleted()
            assert result["w"] in outer
            assert result["b"][0].tolist() == [1.0, 1.0]
    assert params["w"].is_deleted()


def test_what_was_there_before_is_unowned_and_unharmed() -> None:
    before = jnp.ones(3)
    with ds.dispose_scope() as scope:
        assert before not in scope
        assert jnp.asarray(before) not in scope
        assert len(scope) == 0
        with ds.dispose_scope(strict=True) as strict:
            with pytest.raises(ds.NotOwnedError):
                strict.move_to_outer(before)
        assert scope.attach(before) in scope
        assert scope.detach(before) not in scope
    assert before.sum() == 3


def test_tracers_and_constants_of_compiled_code_are_not_captured() -> None:
    seen: list[Any] = []
    closed_over = np.arange(100_000.0)

    @jax.jit
    def compiled(x: Any) -> Any:
        seen.append(ds.current_scope())
        y = x + 1
        with jax.ensure_compile_time_eval():
            constant = jnp.sin(jnp.arange(4.0))
            constant = jnp.sin(jnp.arange(4.0)) + constant
        return y + constant.sum() + jnp.asarray(closed_over).sum()

    with ds.dispose_scope() as scope:
        x = jnp.ones(3)
        first = compiled(x)
        assert {id(live) for live in scope.live} <= {id(x), id(first)}
        expected = first.tolist()
    with ds.dispose_scope():
        again = jnp.ones(3)
        assert compiled(again).tolist() == expected
        assert jax.grad(lambda v: compiled(v).sum())(again).tolist() == [1.0, 1.0, 1.0]
    assert seen


def test_an_array_that_a_compiled_function_closes_over_survives_the_scope_of_its_first_call() -> None:
    constant = jnp.arange(7.0)
    compiled = jax.jit(lambda x: x + constant.sum())
    with ds.dispose_scope():
        compiled(jnp.ones(3))
        jax.grad(lambda x: compiled(x).sum())(jnp.ones(3))
    assert constant.tolist() == list(range(7))
    with ds.dispose_scope():
        assert compiled(jnp.ones(3)).tolist() == [22.0] * 3


def test_a_donated_array_is_disposed_and_its_successor_is_not() -> None:
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    with ds.dispose_scope() as scope:
        for _ in range(2):
            array = jnp.ones(1000)
            after = donating(array)
            assert ds.is_disposed(array)
            assert after in scope
            assert float(after.sum()) == 2000
        assert [live is after for live in scope.live] == [True]


def test_each_scope_around_a_call_knows_what_was_donated_to_it() -> None:
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    with ds.dispose_scope() as outer:
        array = jnp.ones(1000)
        with ds.dispose_scope() as inner:
            after = donating(array)
            assert (len(inner), len(outer)) == (1, 0)
            assert [live is after for live in inner.live] == [True]
            assert (outer.live, outer.nbytes) == ((), 0)
            assert ds.statistics().live == 1


def test_keys_of_random_numbers_move_with_their_array() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as inner:
            key, lost = jax.random.split(jax.random.key(0))
            inner.move_to_outer({"rng": key})
        assert len(outer) == 1
        jax.random.normal(key, (3,))
        with pytest.raises(ds.DisposedError):
            jax.random.normal(lost, (3,))
    with pytest.raises(ds.DisposedError):
        jax.random.normal(key, (3,))


def test_a_decorated_function_gives_its_result_out() -> None:
    kept: list[Any] = []

    @ds.dispose_scope()
    def work() -> Any:
        kept.append(jnp.ones(2))
        return jnp.ones(3) + 1

    for _ in range(2):
        result = work()
        assert result.tolist() == [2.0, 2.0, 2.0]
        assert kept.pop().is_deleted()
    with ds.dispose_scope() as scope:
        result = work()
        assert result in scope
    assert result.is_deleted()
    assert ds.tidy(lambda: jnp.ones(2) * 3).tolist() == [3.0, 3.0]


def test_scoped_batches_own_what_the_body_makes() -> None:
    kept = []
    for batch in ds.scoped_batches([np.ones(3), np.ones(3)]):
        kept.append(jnp.asarray(batch) + 1)
    assert [array.is_deleted() for array in kept] == [True, True]


def test_5000_scopes_deep() -> None:
    arrays = []
    scopes = [ds.dispose_scope() for _ in range(5000)]
    for scope in scopes:
        scope.__enter__()
        if len(arrays) < 20:
            arrays.append((jnp.ones(3) + len(arrays), scope))
    assert all(ds.owner_of(array) is scope for array, scope in arrays)
    for scope in reversed(scopes):
        scope.__exit__(None, None, None)
    assert all(array.is_deleted() for array, _ in arrays)


def test_on_an_exception_what_is_owned_is_deleted_also_while_the_traceback_holds_frames() -> None:
    def fail() -> None:
        with ds.dispose_scope():
            array = jnp.ones(3)
            held.append(array)
            raise KeyError

    held: list[Any] = []
    with pytest.raises(KeyError):
        fail()
    assert held[0].is_deleted()


# ---------------------------------------------------------------------- threads, tasks, generators


def test_another_threads_arrays_are_not_captured() -> None:
    made: list[Any] = []

    def work() -> None:
        for size in range(1, 5):
            made.append(jnp.ones(size) * 2)
            made.append(jax.device_put(np.ones(size)))

    with ds.dispose_scope() as scope:
        mine = jnp.ones(3)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(scope) == 1
        assert mine in scope
    assert not any(array.is_deleted() for array in made)


def test_threads_with_scopes_of_their_own_own_what_their_compiled_code_returns() -> None:
    step = jax.jit(lambda x: x * 2 + 1)
    source = jnp.ones(100)
    step(source)
    barrier = threading.Barrier(4)
    failures: list[Any] = []

    def work() -> None:
        for _ in range(30):
            barrier.wait()
            with ds.dispose_scope() as scope:
                array = step(source)
                more = step(array)
                if array not in scope or more not in scope or more[0] != 7:
                    failures.append(scope)
            if not (array.is_deleted() and more.is_deleted()):
                failures.append(array)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert source.sum() == 100


def test_tasks_own_what_their_compiled_code_returns_and_nothing_of_each_other() -> None:
    step = jax.jit(lambda x: x * 2)
    source = jnp.ones(10)
    step(source)

    async def task(rounds: int) -> list[Any]:
        outside = step(source)
        found = []
        with ds.dispose_scope() as scope:
            for _ in range(rounds):
                array = step(source)
                await asyncio.sleep(0)
                found.append(array in scope)
                fresh = jax.device_put(np.ones(3))
                await asyncio.sleep(0)
        return [*found, array.is_deleted(), not outside.is_deleted(), fresh.shape == (3,)]

    async def main() -> list[list[Any]]:
        return await asyncio.gather(*(task(3) for _ in range(3)))

    assert all(all(told) for told in asyncio.run(main()))


def test_a_suspended_generators_scope_does_not_capture_what_its_consumer_makes() -> None:
    def produce() -> Iterator[Any]:
        with ds.dispose_scope("generator") as scope:
            array = jax.device_put(np.ones(3))
            yield array, scope
            later = jax.device_put(np.ones(4))
            assert later in scope

    with ds.dispose_scope("outer") as outer:
        for array, scope in produce():
            mine = jax.device_put(np.ones(5))
            also = jnp.ones(5)
            assert mine in outer
            assert also in outer
            assert array in scope
        assert array.is_deleted()
        assert not mine.is_deleted()


def test_births_are_seen_while_jax_checks_for_nans_and_after() -> None:
    step = jax.jit(lambda x: x / x)
    source = jnp.ones(3)
    step(source)
    with ds.dispose_scope() as scope:
        with jax.debug_nans(True):
            array = step(source)
            with pytest.raises(FloatingPointError):
                step(source * 0)
        jax.vmap(lambda x: x)(source)
        after = step(source)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        assert array in scope
        assert after in scope
    jax.config.update("jax_debug_nans", True)
    try:
        with ds.dispose_scope() as scope, pytest.raises(FloatingPointError):
            array = step(source)
            assert array in scope
            step(source * 0)
    finally:
        jax.config.update("jax_debug_nans", False)


def test_an_exit_stack_that_enters_the_scope_is_seen_through() -> None:
    import contextlib

    with contextlib.ExitStack() as stack:
        scope = stack.enter_context(ds.dispose_scope())
        array = jax.device_put(np.ones(3))
        assert array in scope
    assert array.is_deleted()


def test_a_thread_in_a_copied_context_shares_the_scope() -> None:
    import contextvars

    step = jax.jit(lambda x: x + 1)
    source = jnp.ones(3)
    step(source)
    made: list[Any] = []
    with ds.dispose_scope() as scope:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: made.append(step(source)),))
        thread.start()
        thread.join()
        assert made[0] in scope
    assert made[0].is_deleted()


# ---------------------------------------------------------------------- use afterwards

USES = {
    "operator": lambda x: x + 1,
    "reversed operator": lambda x: 1 + x,
    "function": lambda x: jnp.add(x, 1),
    "with a live one": lambda x: jnp.stack([jnp.ones(3), x]),
    "index": lambda x: x[0],
    "assignment": lambda x: x.at[0].set(1),
    "iteration": lambda x: list(x),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.item(0),
    "numpy": lambda x: np.asarray(x),
    "numpy function": lambda x: np.add(x, 1),
    "dlpack": lambda x: np.from_dlpack(x),
    "pickle": pickle.dumps,
    "copy": lambda x: x.copy(),
    "method": lambda x: x.sum(),
    "reshape": lambda x: x.reshape(1, 3),
    "jit": lambda x: jax.jit(lambda v: v + 1)(x),
    "grad": lambda x: jax.grad(lambda v: v.sum())(x),
    "vmap": lambda x: jax.vmap(lambda v: v * 2)(x),
    "device_get": lambda x: jax.device_get(x),
    "block_until_ready": lambda x: x.block_until_ready(),
    "is_ready": lambda x: x.is_ready(),
    "address": lambda x: x.unsafe_buffer_pointer(),
    "bytes on the device": lambda x: x.on_device_size_in_bytes(),
    "copy_to_host_async": lambda x: x.copy_to_host_async(),
    "shards": lambda x: x.addressable_shards[0].data,
    "tobytes": lambda x: x.tobytes(),
    "truth": lambda x: bool(x == x),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_disposed_array_is_refused(use: str) -> None:
    with ds.dispose_scope():
        array = jnp.ones(3)
    with pytest.raises(ds.DisposedError, match=r"jax.Array \(3,\) float32 has been disposed"):
        USES[use](array)


def test_a_number_is_refused_too() -> None:
    with ds.dispose_scope():
        number = jnp.float32(3) + 1
    for use in (float, int, bool, format, lambda x: f"{x:.2f}", lambda x: [0, 1][x.astype(int)]):
        with pytest.raises(ds.DisposedError):
            use(number)


def test_the_repr_of_a_disposed_array_does_not_raise_and_its_description_stays() -> None:
    with ds.dispose_scope():
        array = jnp.ones(3)
    assert repr(array) == str(array) == "<disposed jax.Array (3,) float32>"
    assert (array.shape, str(array.dtype), array.nbytes, len(array)) == ((3,), "float32", 12, 3)
    assert repr(jnp.ones(2)) == "Array([1., 1.], dtype=float32)"


def test_an_array_that_the_program_deleted_itself_raises_jaxs_own_error() -> None:
    array = jnp.ones(3)
    array.delete()
    for use in (lambda: array + 1, lambda: array.is_ready(), lambda: array.tolist(), lambda: repr(array)):
        with pytest.raises(RuntimeError, match="deleted"):
            use()
    with ds.dispose_scope() as scope:
        mine = jnp.ones(3)
        mine.delete()
        assert ds.is_disposed(mine)
        assert scope.nbytes == 0


def test_disposing_is_idempotent_and_by_hand_too() -> None:
    with ds.dispose_scope() as scope:
        array = jnp.ones(3)
        ds.dispose({"a": array})
        ds.dispose(array)
        assert len(scope) == 0
    assert ds.is_disposed(array)


# ---------------------------------------------------------------------- memory that is shared


def test_memory_of_arrays_and_tensors_goes_to_jax_without_a_copy_50_of_50() -> None:
    for size in range(1, 51):
        with ds.dispose_scope():
            array = np.full(size * 1000, 2.0, dtype="float32")
            tensor = ds.full(size * 1000, 2.0, dtype="float32")
            there, also = jax.dlpack.from_dlpack(array), jax.dlpack.from_dlpack(tensor)
            assert there.unsafe_buffer_pointer() == array.__array_interface__["data"][0]
            assert also.unsafe_buffer_pointer() == tensor.ctypes.data
        assert array.sum() == size * 2000
        assert there.is_deleted()


CONSTRUCTED = {
    "rank 0": lambda: ds.tensor(3.0, dtype="float32"),
    "from bytes": lambda: ds.tensor(np.frombuffer(b"x12345678", dtype="u1")[1:]),
    "empty": lambda: ds.empty((3, 5), dtype="float32"),
    "zeros": lambda: ds.zeros(1000, dtype="int32"),
    "arange": lambda: ds.arange(5, dtype="int32"),
    "unpickled": lambda: pickle.loads(pickle.dumps(ds.arange(9, dtype="int32"))),
    "slice at offset 0": lambda: ds.arange(9, dtype="int32")[:4],
    "asarray, copied": lambda: ds.asarray(np.arange(9, dtype="u1")[1:], align="copy"),
    "packed": lambda: ds.pack_sequence([ds.arange(3, dtype="int32"), ds.arange(2, dtype="int32")]).data,
    "padded": lambda: ds.pad_sequence([ds.arange(3, dtype="int32"), ds.arange(2, dtype="int32")]),
    "collated": lambda: ds.pack_collate()([{"y": np.ones(3, "f4")}, {"y": np.ones(3, "f4")}])["y"],
    "sum": lambda: ds.arange(10, dtype="float32").sum(),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_jax_takes_every_constructors_memory_without_a_copy(name: str) -> None:
    for _ in range(50):
        tensor = CONSTRUCTED[name]()
        there = jax.dlpack.from_dlpack(tensor)
        assert there.unsafe_buffer_pointer() == tensor.ctypes.data
        del there


def test_exported_memory_is_counted_until_jax_is_done_with_it() -> None:
    gc.collect()
    before = len(ds.exported_storages())
    with ds.dispose_scope():
        tensor = ds.ones(1000, dtype="float32")
        there = ds.current_scope().detach(jax.dlpack.from_dlpack(tensor))
        assert len(ds.exported_storages()) == before + 1
    assert there.sum() == 1000
    assert ds.exported_storages()[-1].escaped
    del there
    gc.collect()
    assert len(ds.exported_storages()) == before


def test_deleting_an_alias_leaves_the_memory_of_others_alone() -> None:
    torch = pytest.importorskip("torch")
    array = np.ones(1000, dtype="float32")
    tensor = torch.ones(1000)
    with ds.dispose_scope() as scope:
        jax.dlpack.from_dlpack(array)
        held = [jax.dlpack.from_dlpack(array), jax.dlpack.from_dlpack(tensor)]
        alias = np.asarray(jnp.ones(1000) * 3)
        back = scope.detach(torch.from_dlpack(jnp.ones(1000) * 4))
    assert all(one.is_deleted() for one in held)
    np.empty(1000), torch.empty(1000)
    assert array.sum() == tensor.sum() == 1000
    assert alias.sum() == 3000
    assert back.sum() == 4000


def test_a_verb_on_what_is_not_jaxs_does_not_look_for_jaxs_births(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    verbs = [
        lambda x: ds.move_to_outer(x),
        lambda x: ds.attach(x),
        lambda x: ds.owner_of(x),
        lambda x: ds.detach(x),
        lambda x: ds.attach([{"in": x}, Path("a leaf")]),
        lambda x: ds.current_scope().move_to(ds.current_scope(), x),
        lambda x: x in ds.current_scope(),
        lambda x: ds.is_disposed(x),
        lambda x: ds.dispose(x),
    ]
    with ds.dispose_scope(), ds.dispose_scope():
        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module("disposescope.tensors.jax.births"), "unknown_arrays", None)
            for thing in (torch.ones(3), ds.ones(3)):
                for verb in verbs:
                    verb(thing)
                assert ds.is_disposed(thing)
            with pytest.raises(TypeError, match="NoneType"):
                ds.owner_of(jnp.ones(3))


def test_verbs_find_what_came_into_being_unseen() -> None:
    code = """
import jax, jax.numpy as jnp, pytest, disposescope as ds
other = jax.devices()[1]
class Unknown:
    def __init__(self, hidden):
        self.hidden = hidden
with ds.dispose_scope() as outer:
    with ds.dispose_scope() as scope:
        def unseen():
            return jax.device_put(jnp.ones(3), other)
        array = unseen()
        assert ds.owner_of(array) is scope
        array = unseen()
        assert array in scope and array not in outer
        [moved] = scope.move_to_outer([unseen()])
        assert moved in outer
        assert ds.owner_of(ds.detach({"x": (detached := unseen())})["x"]) is None
        array = unseen()
        ds.attach(array)
        assert array in scope
        array = unseen()
        ds.dispose([array])
        assert ds.is_disposed(array)
        for verb in (ds.move_to_outer, ds.detach, ds.attach, ds.dispose):
            with pytest.raises(ds.UnknownKindError):
                verb([Unknown(unseen())])
        kept = unseen()
        scope.dispose_everything_but([kept])
        assert scope.live == (kept,)
        gone = unseen()
    assert ds.is_disposed(gone) and not ds.is_disposed(detached) and outer.live == (moved,)
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        check=True,
    )


def test_a_sharded_array_is_one_resource() -> None:
    code = """
import jax, jax.numpy as jnp, numpy as np, disposescope as ds
P = jax.sharding.PartitionSpec
sharding = jax.sharding.NamedSharding(jax.make_mesh((2,), ("a",)), P("a"))
for _ in range(2):
    with ds.dispose_scope() as scope:
        array = jax.device_put(np.arange(8.0, dtype="float32"), sharding)
        double = jax.jit(lambda x: x * 2)(array)
        assert array in scope and double in scope and len(scope) == 2, scope.live
        shard = double.addressable_shards[1].data
        assert len(scope) == 2, scope.live
    assert array.is_deleted() and shard.is_deleted() and ds.is_disposed(double)
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        check=True,
    )


def test_nothing_of_jax_is_imported_and_no_backend_started_for_a_program_that_does_not() -> None:
    code = """
import sys, disposescope as ds
with ds.dispose_scope() as scope:
    ds.zeros(3)
assert "jax" not in sys.modules
import jax
from jax._src import xla_bridge
with ds.dispose_scope() as scope:
    len(scope)
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# ---------------------------------------------------------------------- budgets, sites


def test_the_result_that_exceeds_the_budget_is_refused_with_notes_and_the_scope_goes_on() -> None:
    make = jax.jit(lambda x: jnp.broadcast_to(x, (1_000_000,)) + 1)
    small = jax.jit(lambda x: jnp.broadcast_to(x, (100_000,)) + 1)
    source = jnp.float32(1)
    make(source), small(source)
    with pytest.raises(MemoryError, match=r"4000000 bytes for a jax.Array of shape \(1000000,\)") as caught:
        with ds.dispose_scope("tight", budget="1 MiB") as scope:
            kept = small(source)
            assert scope.arena is not None
            assert scope.arena.charged_nbytes == 400_000
            with pytest.raises(MemoryError):
                [small(source) for _ in range(3)]
            gc.collect()
            assert scope.arena.charged_nbytes == 400_000
            ds.dispose(kept)
            assert scope.arena.charged_nbytes == 0
            kept = small(source)
            make(source)
    [note] = caught.value.__notes__
    assert note.startswith(
        "the budget of scope 'tight' refused it: budget 1048576 bytes, live 400000 bytes, requested 4000000 bytes:\n"
        "  400000 bytes in 1 at "
    )
    assert "test_jax.py" in note


def test_the_detector_knows_the_line_of_a_birth_and_of_a_disposal() -> None:
    source = jnp.ones(3)
    source * 3
    with ds.LeakDetector() as detector:
        with ds.dispose_scope():
            array = source * 3
        [record] = detector.take_snapshot()
        assert str(record) == "jax.Array float32 (3,)"
        assert record.site is not None
        assert record.site.file.endswith("test_jax.py")
        with pytest.raises(ds.DisposedError, match=r"born at .*test_jax\.py"):
            array + 1


def test_an_unknown_version_of_jax_is_reported_once_and_scopes_go_on() -> None:
    code = """
import sys, types, warnings
import jax
sys.modules["jax._src.array"] = types.ModuleType("jax._src.array")
import disposescope as ds
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        with ds.dispose_scope() as scope:
            assert len(scope) == 0
assert ["scopes do not own arrays of this version of JAX" in str(one.message) for one in caught] == [True], caught
with ds.LeakDetector() as detector:
    report = detector.report()
assert (report.verdict, report.unwatched) == ("undecided", (f"jax {jax.__version__}: arrays of JAX",)), report
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_version_of_jax_raises_nothing_where_warnings_are_errors() -> None:
    code = """
import sys, types, warnings
import jax
sys.modules["jax._src.array"] = types.ModuleType("jax._src.array")
import disposescope as ds
warnings.simplefilter("error")
with ds.dispose_scope() as scope:
    print(len(scope))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "RuntimeWarning: scopes do not own arrays of this version of JAX: " in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_opens_scopes_without_asking_jax() -> None:
    array = jnp.ones(3)
    child = os.fork()
    if child == 0:
        with ds.dispose_scope() as scope:
            ds.zeros(3)
            os._exit(len(scope))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array.sum() == 3


def test_a_detector_sees_arrays_outside_of_scopes_by_their_line_and_holder() -> None:
    kept: list[Any] = [jnp.ones(1000) + 1.0]
    with ds.LeakDetector() as detector:
        for step in range(20):
            kept.append(kept[0] + step)
            detector.mark("step")
        report = detector.report(of_program=True)
    [leak] = [leak for leak in report.leaks if leak.tensor_kind == "jax.Array"]
    assert leak.kind == "growth"
    assert leak.count >= 19
    assert leak.nbytes == 4000 * leak.count
    assert leak.site is not None
    assert leak.site.file == __file__
    assert "local 'kept'" in leak.holders[0]


def test_what_is_gone_is_forgotten_by_the_detector() -> None:
    first = jnp.ones(100) + 1.0
    with ds.LeakDetector() as detector:
        for _ in range(3):
            first + 1.0
        assert [seen for seen in detector.memory() if seen.kind == "jax.Array"] == []
    first.block_until_ready()
