"""Without PyTorch; the comparison with it is in test_against_torch.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import disposescope as ds

SEQUENCES = [np.array([1, 2]), np.array([3, 4, 5]), np.array([6])]


def test_padding_in_every_layout() -> None:
    assert ds.pad_sequence(SEQUENCES).tolist() == [[1, 3, 6], [2, 4, 0], [0, 5, 0]]
    assert ds.pad_sequence(SEQUENCES, True, 9).tolist() == [[1, 2, 9], [3, 4, 5], [6, 9, 9]]
    assert ds.pad_sequence(SEQUENCES, True, -1, "left").tolist() == [[-1, 1, 2], [3, 4, 5], [-1, -1, 6]]


def test_a_packed_batch_is_padded_in_the_order_in_which_it_was_packed() -> None:
    packed = ds.pack_sequence(SEQUENCES, enforce_sorted=False)
    padded, lengths = ds.pad_packed_sequence(packed)
    assert padded.tolist() == [[1, 3, 6], [2, 4, 0], [0, 5, 0]]
    assert lengths.tolist() == [2, 3, 1]
    assert lengths.dtype == np.int64
    padded, _ = ds.pad_packed_sequence(packed, batch_first=True, padding_value=7, total_length=4)
    assert padded.tolist() == [[1, 2, 7, 7], [3, 4, 5, 7], [6, 7, 7, 7]]


def test_unpacking_and_unpadding_give_the_sequences_back() -> None:
    packed = ds.pack_sequence(SEQUENCES, enforce_sorted=False)
    wanted = [sequence.tolist() for sequence in SEQUENCES]
    assert [sequence.tolist() for sequence in ds.unpack_sequence(packed)] == wanted
    padded = ds.pad_sequence(SEQUENCES)
    for lengths in ([2, 3, 1], np.array([2, 3, 1]), ds.asarray([2, 3, 1]), (2, 3, 1)):
        assert [sequence.tolist() for sequence in ds.unpad_sequence(padded, lengths)] == wanted
    assert padded.shape == (3, 3)


def test_results_outlive_the_packed_sequence_and_one_another() -> None:
    with ds.dispose_scope() as scope:
        packed = ds.pack_sequence(SEQUENCES, enforce_sorted=False)
        padded, lengths = ds.pad_packed_sequence(packed)
        unpacked = ds.unpack_sequence(packed)
        unpadded = ds.unpad_sequence(padded, lengths)
        packed.dispose()
        padded.dispose()
        unpacked[0].dispose()
        assert unpacked[1].tolist() == unpadded[1].tolist() == [3, 4, 5]
        assert lengths.tolist() == [2, 3, 1]
        # Each sequence has memory of its own.
        assert scope.nbytes == 8 * (3 + 4 + 6)


def test_only_the_results_are_born() -> None:
    with ds.dispose_scope() as scope:
        packed = ds.pack_sequence([ds.asarray(sequence) for sequence in SEQUENCES], enforce_sorted=False)
        ds.reset_statistics()
        results = [*ds.pad_packed_sequence(packed), *ds.unpack_sequence(packed), ds.pad_sequence(packed[:2])]
        assert ds.statistics().created_in_scope == len(results) == 6
        assert scope.live == (packed, *results)


def test_nothing_of_the_argument_is_shared_or_changed() -> None:
    sequence = np.arange(3)
    padded = ds.pad_sequence([sequence])
    sequence[:] = 9
    assert padded.tolist() == [[0], [1], [2]]
    unpadded = ds.unpad_sequence(padded, [3])
    padded[:] = 9
    assert unpadded[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ds.pad_sequence([]), RuntimeError, "pad_sequence: received an empty list"),
        (lambda: ds.pad_sequence(3), RuntimeError, "expected an iterable of sequences, but got 3"),
        (lambda: ds.pad_sequence(SEQUENCES, padding_side="up"), RuntimeError, "'left' or 'right', not 'up'"),
        (lambda: ds.pad_sequence(SEQUENCES, padding_value=1e30), RuntimeError, r"1e\+30 does not fit into int64"),
        (lambda: ds.pad_sequence(SEQUENCES, padding_value="a"), TypeError, "must be a number, not a str"),
        (lambda: ds.pad_packed_sequence(3), TypeError, "expected a PackedSequence, not a builtins.int"),
        (lambda: ds.unpack_sequence((1, 2)), TypeError, "expected a PackedSequence"),
        (lambda: ds.pad_packed_sequence(ds.pack_sequence([np.ones(3)]), total_length=2), ValueError, "3, but is 2"),
        (lambda: ds.unpad_sequence(np.ones((3, 2)), [1]), ValueError, "got 1 lengths for 2 sequences"),
        (lambda: ds.unpad_sequence(np.ones((3, 2)), [[1], [2]]), TypeError, "one dimension"),
        (lambda: ds.unpad_sequence(np.ones((3, 2)), [1j, 2]), TypeError, "real numbers"),
        (lambda: ds.unpad_sequence([[1]], [1]), TypeError, "must be a Tensor or a NumPy array, not a list"),
    ],
)
def test_a_refusal_says_what_was_wrong_and_leaves_nothing(call: Any, error: type[Exception], message: str) -> None:
    with ds.dispose_scope() as scope:
        with pytest.raises(error, match=message):
            call()
        assert len(scope) == 0
