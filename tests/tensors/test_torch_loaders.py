"""Batches of workers are owned where they are handed over, in whatever order they install."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds


class Late(torch.utils.data.Dataset):
    """The first batch comes after the second: its worker waits until the other is at the fourth."""

    def __init__(self):
        self.is_second_done = torch.multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 0:
            assert self.is_second_done.wait(500)
        if index == 3:
            self.is_second_done.set()
        return torch.full((3,), float(index))


@pytest.mark.filterwarnings("ignore")
def test_a_batch_that_was_received_early_outlives_the_scope_of_that_moment():
    loader = torch.utils.data.DataLoader(Late(), num_workers=2, multiprocessing_context="fork")
    iterator = iter(loader)
    with ds.dispose_scope() as scope:
        first = next(iterator)
        assert first in scope
        assert len(scope) == 1
    assert [int(batch[0, 0]) for batch in iterator] == [1, 2, 3]
    assert ds.is_disposed(first)
