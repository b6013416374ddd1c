"""Alignment: the constructors begin at a multiple of 64 bytes; mixed alignments compute what NumPy computes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import disposescope as ds
from disposescope.tensors._arena_arrival import ARENA

pytestmark = pytest.mark.skipif(ARENA is None, reason="there is no arena here")


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
        ds.asarray([1], align="never")  # type: ignore[arg-type]


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
