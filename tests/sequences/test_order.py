"""What holds without PyTorch; test_against_torch.py compares the order of ties with it."""

from __future__ import annotations

import numpy as np
import pytest

from disposescope.sequences.pack import descending_order


@pytest.mark.parametrize("count", [0, 1, 2, 16, 17, 100, 3000])
def test_the_order_sorts_from_the_longest_to_the_shortest(count: int) -> None:
    lengths = np.random.default_rng(count).integers(-5, 50, count)
    before = lengths.copy()
    order = descending_order(lengths)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(lengths[order], np.sort(lengths)[::-1])
    assert np.array_equal(lengths, before)


def test_up_to_sixteen_lengths_keep_the_order_of_ties() -> None:
    assert descending_order(np.array([2, 3, 2, 3] * 4)).tolist() == [*range(1, 16, 2), *range(0, 16, 2)]


def test_extreme_lengths_do_not_overflow() -> None:
    limits = np.iinfo(np.int64)
    assert descending_order(np.array([limits.min, limits.max, 0])).tolist() == [1, 2, 0]
