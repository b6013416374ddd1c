"""The order of a batch sorted by length: that of the given sequences where lengths are equal."""

from __future__ import annotations

import numpy as np
import pytest

import disposescope as ds


def test_arrays_of_one_length_are_packed_in_the_order_given() -> None:
    lengths = [2, 3] * 20
    packed = ds.pack_sequence([np.arange(length) for length in lengths], enforce_sorted=False)
    padded = ds.pack_padded_sequence(np.ones((3, 40)), lengths, enforce_sorted=False)
    wanted = [*range(1, 40, 2), *range(0, 40, 2)]
    assert packed.sorted_indices.tolist() == padded.sorted_indices.tolist() == wanted


def test_tensors_of_one_length_are_packed_in_the_order_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rnn = torch.nn.utils.rnn
    for count in (16, 17, 100, 1000):
        for largest in (1, 2, 40):
            lengths = np.random.default_rng(count).integers(1, largest + 1, count).tolist()
            sequences = [torch.full((length,), place) for place, length in enumerate(lengths)]
            ours, theirs = (of.pack_sequence(sequences, enforce_sorted=False) for of in (ds, rnn))
            padded = rnn.pad_sequence(sequences)
            again = ds.pack_padded_sequence(padded, lengths, enforce_sorted=False)
            for mine in (ours, again):
                assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
