"""Without PyTorch; the comparison with it is in test_against_torch.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import disposescope as ds


def fields(packed: ds.PackedSequence) -> list[Any]:
    return [None if field is None else field.tolist() for field in packed]


def test_a_list_is_packed_step_by_step() -> None:
    packed = ds.pack_sequence([np.array([1, 2, 3]), np.array([4, 5]), np.array([6])])
    assert fields(packed) == [[1, 4, 6, 2, 5, 3], [3, 2, 1], None, None]
    unsorted = ds.pack_sequence([np.array([6]), np.array([1, 2, 3]), np.array([4, 5])], enforce_sorted=False)
    assert fields(unsorted) == [[1, 4, 6, 2, 5, 3], [3, 2, 1], [1, 2, 0], [2, 0, 1]]
    assert packed.batch_sizes.dtype == unsorted.sorted_indices.dtype == np.int64


def test_a_padded_batch_is_packed_in_either_layout() -> None:
    padded = np.array([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
    expected = [[4, 1, 3, 5, 2, 6], [3, 2, 1], [2, 0, 1], [1, 2, 0]]
    assert fields(ds.pack_padded_sequence(padded, [2, 1, 3], True, False)) == expected
    assert fields(ds.pack_padded_sequence(padded.T, [2, 1, 3], enforce_sorted=False)) == expected


def test_packing_makes_one_resource_and_nothing_else() -> None:
    with ds.dispose_scope() as scope:
        sequences = [ds.arange(3), ds.arange(2)]
        ds.reset_statistics()
        packed = ds.pack_sequence(sequences)
        padded = ds.pack_padded_sequence(ds.asarray(np.ones((3, 2))), ds.asarray([3, 2]))
        assert ds.statistics().created_in_scope == 4
        assert scope.live == (*sequences, packed, padded)


def test_the_result_shares_no_memory_with_the_arguments() -> None:
    sequence = np.arange(3)
    padded = np.arange(3).reshape(3, 1)
    alone, batch = ds.pack_sequence([sequence]), ds.pack_padded_sequence(padded, [3])
    sequence[:] = padded[:] = 9
    assert alone.data.tolist() == batch.data.tolist() == [0, 1, 2]


def test_a_batch_of_thousands_of_steps() -> None:
    lengths = np.random.default_rng(0).integers(1, 5000, 64)
    sequences = [np.arange(length) for length in lengths]
    packed = ds.pack_sequence(sequences, enforce_sorted=False)
    assert packed.batch_sizes.shape == (lengths.max(),)
    for unpacked, sequence in zip(ds.unpack_sequence(packed), sequences, strict=True):
        assert np.array_equal(unpacked.numpy(), sequence)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ds.pack_sequence([]), RuntimeError, "pack_sequence: received an empty list"),
        (lambda: ds.pack_sequence([np.ones(1), np.ones(2)]), RuntimeError, "pass enforce_sorted=False"),
        (lambda: ds.pack_sequence([np.ones(2), np.ones(0)]), RuntimeError, "one has length 0"),
        (lambda: ds.pack_sequence([np.ones((2, 3)), np.ones((2, 4))]), RuntimeError, r"sequence 1 has shape \(2, 4\)"),
        (
            lambda: ds.pack_sequence([np.ones(2), 3]),
            TypeError,
            "sequence 1 must be a Tensor or a NumPy array, not a int",
        ),
        (lambda: ds.pack_sequence([np.array(["a"])]), TypeError, "dtype <U1"),
        (lambda: ds.pack_padded_sequence(np.ones((3, 2)), [1, 1, 1]), RuntimeError, r"got 3 \(batch size 2\)"),
        (lambda: ds.pack_padded_sequence(np.ones(3), [3]), IndexError, r"but has shape \(3,\)"),
        (lambda: ds.pack_padded_sequence(np.ones((3, 2)), ["a", "b"]), ValueError, "one of them is 'a'"),
        (lambda: ds.pack_padded_sequence(np.ones((3, 2)), [[3], [2, 1]]), ValueError, "one number for each"),
        (lambda: ds.pack_padded_sequence(np.ones((3, 2)), [3, 2], 1), TypeError, "batch_first must be a bool"),
    ],
)
def test_a_refusal_says_what_was_wrong_and_leaves_nothing(call: Any, error: type[Exception], message: str) -> None:
    with ds.dispose_scope() as scope:
        with pytest.raises(error, match=message):
            call()
        assert len(scope) == 0


def test_a_disposed_argument_raises() -> None:
    tensor, lengths = ds.ones(2), ds.asarray([2])
    padded = ds.ones((2, 1))
    ds.dispose([tensor, lengths])
    for call in (
        lambda: ds.pack_sequence([np.ones(2), tensor]),
        lambda: ds.pack_padded_sequence(padded, lengths),
        lambda: ds.pad_sequence([tensor]),
        lambda: ds.unpad_sequence(padded, lengths),
    ):
        with pytest.raises(ds.DisposedError):
            call()
    padded.dispose()
