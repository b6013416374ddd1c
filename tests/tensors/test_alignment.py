"""Constructors align memory to 64 bytes; mixed alignments compute what NumPy computes."""

from __future__ import annotations

import contextlib
import copy
import gc
import mmap
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import disposescope as ds
from tests.tensors.arrays import address_of


def at_offset(offset: int, values: Any) -> Any:
    """An array of the values that begins `offset` bytes after a multiple of 64."""
    values = np.asarray(values)
    memory = np.empty(values.nbytes + 128, dtype="u1")
    start = -memory.__array_interface__["data"][0] % 64 + offset
    array = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


CONSTRUCTED = {
    "tensor": lambda: ds.tensor([1, 2, 3]),
    "Tensor": lambda: ds.Tensor(np.arange(7)[1:]),
    "rank 0": lambda: ds.tensor(3.0),
    "rank 0, a sum": lambda: ds.arange(10).sum(),
    "from bytes": lambda: ds.tensor(np.frombuffer(b"x12345678", dtype="u1")[1:]),
    "empty": lambda: ds.empty((3, 5)),
    "zeros": lambda: ds.zeros(1000),
    "ones": lambda: ds.ones(1),
    "full": lambda: ds.full(33, 7, dtype="u1"),
    "arange": lambda: ds.arange(5),
    "asarray of a list": lambda: ds.asarray([1.0, 2.0]),
    "asarray, copied": lambda: ds.asarray(at_offset(8, [1.0]), align="copy"),
    "unpickled": lambda: pickle.loads(pickle.dumps(ds.arange(9))),
    "unpickled, protocol 5": lambda: pickle.loads(pickle.dumps(ds.arange(9), protocol=5)),
    "copied": lambda: copy.copy(ds.arange(9)[1:]),
    "copy()": lambda: ds.arange(9)[1:].copy(),
    "slice at offset 0": lambda: ds.arange(9)[:4],
    "packed": lambda: ds.pack_sequence([ds.arange(3), ds.arange(2)]).data,
    "packed, sizes": lambda: ds.pack_sequence([ds.arange(3), ds.arange(2)]).batch_sizes,
    "packed from padded": lambda: ds.pack_padded_sequence(np.ones((3, 2)), [3, 2]).data,
    "padded": lambda: ds.pad_sequence([ds.arange(3), ds.arange(2)]),
    "collated": lambda: ds.pack_collate(["x"])([{"x": np.arange(3)}, {"x": np.arange(2)}])["x"].data,
    "collated, numbers": lambda: ds.pack_collate()([{"y": 1.0}, {"y": 2.0}])["y"],
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_every_constructor_aligns_to_64_bytes_outside_of_scopes_and_inside(name: str) -> None:
    held = []
    for _ in range(20):
        held.append(CONSTRUCTED[name]())
        assert held[-1].alignment >= 64
    with ds.dispose_scope():
        assert CONSTRUCTED[name]().alignment >= 64


@pytest.mark.parametrize("offset", [1, 8, 32, 63])
def test_asarray_keeps_copies_or_refuses_memory_that_is_not_aligned(offset: int) -> None:
    array = at_offset(offset, np.arange(10, dtype="u1"))
    kept = ds.asarray(array)
    assert kept.alignment == offset & -offset
    kept[0] = 9
    assert array[0] == 9
    before = ds.arena_statistics().alignment_copies
    copied = ds.asarray(array, align="copy")
    assert copied.alignment >= 64
    assert copied.tolist() == array.tolist()
    assert ds.arena_statistics().alignment_copies == before + 1
    with pytest.raises(ValueError, match=r'a copy is aligned: align="copy"'):
        ds.asarray(array, align="error")
    with pytest.raises(ValueError, match="a copy is aligned"):
        ds.asarray(array, align="copy", copy=False)


def test_aligned_memory_is_shared_whatever_is_asked() -> None:
    array = at_offset(0, np.arange(10))
    before = ds.arena_statistics().alignment_copies
    ds.asarray(array, align="copy")[0] = 5
    ds.asarray(array, align="error")[1] = 6
    assert array[:2].tolist() == [5, 6]
    assert ds.arena_statistics().alignment_copies == before


def test_an_unknown_way_to_align_is_refused() -> None:
    with pytest.raises(ValueError, match="align must be"):
        ds.asarray([1], align="never")


@given(st.integers(0, 63), st.integers(0, 63), st.sampled_from(["i1", "f4", "f8"]), st.integers(0, 40))
def test_operands_of_any_alignment_compute_what_numpy_computes(a: int, b: int, dtype: str, size: int) -> None:
    left, right = np.arange(size).astype(dtype), np.arange(size, 0, -1).astype(dtype)
    with ds.dispose_scope():
        for operation in (np.add, np.multiply, np.maximum):
            got = operation(ds.asarray(at_offset(a, left)), at_offset(b, right))
            np.testing.assert_array_equal(got.numpy(), operation(left, right))


def test_pytorch_shares_the_memory_of_arrays_born_in_a_scope() -> None:
    torch = pytest.importorskip("torch")
    with ds.dispose_scope():
        for size in (1, 1000, 1_000_000):
            array = np.ones(size)
            tensor = ds.ones(size)
            assert torch.from_dlpack(array).data_ptr() == array.__array_interface__["data"][0]
            assert torch.from_dlpack(tensor).data_ptr() % 64 == 0


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_pytorch_takes_every_constructors_memory_without_a_copy_50_of_50(name: str) -> None:
    torch = pytest.importorskip("torch")
    for _ in range(50):
        tensor = CONSTRUCTED[name]()
        there = torch.from_dlpack(tensor)
        assert there.data_ptr() == tensor.ctypes.data
        assert there.data_ptr() % 64 == 0


def test_exported_memory_is_counted_until_pytorch_is_done_with_it() -> None:
    torch = pytest.importorskip("torch")
    gc.collect()
    before = len(ds.exported_storages())
    with ds.dispose_scope() as scope:
        tensor = ds.zeros(1000)
        there = scope.detach(torch.from_dlpack(tensor)[:3])
        assert len(ds.exported_storages()) == before + 1
    assert ds.exported_storages()[-1].escaped
    del there
    gc.collect()
    assert len(ds.exported_storages()) == before


ARRAY_LIKES = {
    "list": lambda _: [[1.0, 2.0], [3.0, 4.0]],
    "number": lambda _: 3.5,
    "bytes": lambda _: b"some bytes",
    "memoryview": lambda _: memoryview(bytearray(b"x some bytes"))[1:],
    "read-only": lambda _: read_only(at_offset(8, np.arange(4.0))),
    "Fortran order": lambda _: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": lambda _: at_offset(8, np.arange(20.0))[::3],
    "zero size": lambda _: np.empty((0, 3)),
    "objects": lambda _: np.array([None, "a", 1.5], dtype=object),
    "structured": lambda _: np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i1"), ("b", "f8")]),
    "unaligned for its own type": lambda _: at_offset(3, np.arange(5.0)),
    "memory map of a file": lambda path: np.memmap(path / "map", dtype="u1", mode="w+", shape=100)[1:],
    "mmap": lambda path: mapped(path / "raw"),
    "Tensor": lambda _: ds.arange(9)[1:],
}


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def mapped(path: Any) -> Any:
    path.write_bytes(b"some bytes")
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype="u1")


@pytest.mark.parametrize("kind", ARRAY_LIKES)
def test_asarray_aligns_every_kind_of_input_and_changes_no_value(kind: str, tmp_path: Any) -> None:
    given = ARRAY_LIKES[kind](tmp_path)
    plain = given.numpy() if isinstance(given, ds.Tensor) else np.asarray(given)
    for scope in (contextlib.nullcontext(), ds.dispose_scope()):
        with scope:
            before = ds.arena_statistics().alignment_copies
            got = ds.asarray(given, align="copy")
            copies = ds.arena_statistics().alignment_copies - before
            assert got.size == 0 or got.alignment >= 64
            assert (got.shape, got.dtype) == (plain.shape, plain.dtype)
            np.testing.assert_array_equal(got.numpy(), plain)
            shared = np.shares_memory(got.numpy(), plain)
            if isinstance(given, (np.ndarray, ds.Tensor)) and plain.size:
                assert shared == (address_of(plain) % 64 == 0)
                assert copies == (not shared)
                if not shared:
                    with pytest.raises(ValueError, match="a copy is aligned"):
                        ds.asarray(given, align="error")
