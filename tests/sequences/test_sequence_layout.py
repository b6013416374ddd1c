from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disposescope.sequences.inputs import batch_sizes_of, inverse_of, rows_at, steps_of


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12).map(lambda given: sorted(given, reverse=True)))
def test_batch_sizes_and_steps_agree_with_a_count_by_hand(lengths: list[int]) -> None:
    sizes = batch_sizes_of(np.array(lengths))
    assert sizes.tolist() == [sum(length > step for length in lengths) for step in range(lengths[0])]
    starts, times, places = steps_of(sizes)
    rows = [(step, place) for step in range(lengths[0]) for place in range(sizes[step])]
    assert list(zip(times.tolist(), places.tolist(), strict=True)) == rows
    assert starts.tolist() == [rows.index((step, 0)) for step in range(lengths[0])]


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2), (3, 4, 0)])
def test_rows_are_picked_alike_in_every_layout(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    first, second = np.array([2, 0, 2]), np.array([3, 1, 3])
    for laid_out in (array, np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2]):
        picked = rows_at(laid_out, first, second)
        assert np.array_equal(picked, array[first, second])
        assert not np.shares_memory(picked, laid_out)


def test_an_inverse_undoes_a_permutation() -> None:
    permutation = np.random.default_rng(0).permutation(20)
    assert permutation[inverse_of(permutation)].tolist() == list(range(20))
