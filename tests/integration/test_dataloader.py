"""PyTorch's DataLoader with the collate hook and a scope for each batch, also with workers."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

# Newer Pythons warn of a fork in a process that has threads, and PyTorch's own are enough for that.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

# Plain data and the library's own functions only: they can be pickled wherever the tests are run
# from.
LENGTHS = [3, 5, 2, 2, 4, 1, 6]
SAMPLES = [{"text": np.arange(length), "label": length, "id": f"n{length}"} for length in LENGTHS]
CONTEXTS = [(0, None), (2, "fork"), (2, "spawn")]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    ds.reset_statistics(process=True)
    before = ds.statistics(process=True).live
    yield
    gc.collect()
    assert ds.statistics(process=True).live == before
    assert ds.current_scope() is None


@pytest.mark.parametrize(("workers", "context"), CONTEXTS)
def test_batches_come_packed_and_go_with_their_scope(workers: int, context: str | None) -> None:
    loader = data.DataLoader(
        SAMPLES,
        batch_size=2,
        collate_fn=ds.pack_collate(pack=["text"]),
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
    )
    batches = ds.scoped_batches(loader)
    assert len(batches) == 4
    with ds.dispose_scope("run") as run:
        for _epoch in range(2):
            seen: list[Any] = []
            lengths: list[int] = []
            for batch in batches:
                scope = ds.current_scope()
                assert scope is not None
                assert set(map(id, scope.live)) == {id(batch["text"]), id(batch["label"])}
                assert all(map(ds.is_disposed, seen))
                seen += [batch["text"], batch["label"]]
                padded, counts = ds.pad_packed_sequence(batch["text"], batch_first=True)
                assert padded.shape == (len(batch["id"]), int(counts.max()))
                assert batch["label"].tolist() == counts.tolist()
                lengths += counts.tolist()
            assert lengths == LENGTHS
            assert len(seen) == 8
            assert all(map(ds.is_disposed, seen))
            assert len(run) == 0
    now = ds.statistics(process=True)
    assert now.created_in_scope == now.disposed_in_scope
    assert now.created_unscoped == 0


@pytest.mark.parametrize(("workers", "context"), CONTEXTS[:2])
def test_any_collate_function_can_be_wrapped(workers: int, context: str | None) -> None:
    collate = ds.ScopedCollate(functools.partial(ds.pad_sequence, batch_first=True, padding_value=-1))
    loader = data.DataLoader(
        [sample["text"] for sample in SAMPLES],
        batch_size=3,
        collate_fn=collate,
        num_workers=workers,
        multiprocessing_context=context,
    )
    shapes = [batch.shape for batch in ds.scoped_batches(loader)]
    assert shapes == [(3, 5), (3, 4), (1, 6)]
    kept = [ds.move_to_outer(batch) for batch in ds.scoped_batches(loader)]
    assert not any(map(ds.is_disposed, kept))
    assert kept[0].tolist()[2] == [0, 1, -1, -1, -1]
    ds.dispose(kept)


@pytest.mark.parametrize(("workers", "context"), CONTEXTS[:2])
def test_what_a_worker_raises_arrives_and_nothing_is_left(
    workers: int, context: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A loader that was left by an exception waits this many seconds for each worker.
    monkeypatch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    loader = data.DataLoader(
        [*SAMPLES[:2], {"text": np.arange(3), "label": "three", "id": "n3"}, SAMPLES[0]],
        batch_size=2,
        collate_fn=ds.pack_collate(pack=["text"]),
        num_workers=workers,
        multiprocessing_context=context,
    )
    seen = []
    with pytest.raises(TypeError, match="field 'label' of sample 1"):
        for batch in ds.scoped_batches(loader):
            seen.append(batch["text"])
    assert len(seen) == 1
    assert ds.is_disposed(seen[0])
    gc.collect()


def test_batches_that_were_fetched_ahead_survive_a_break_only_as_long_as_the_loader() -> None:
    loader = data.DataLoader(
        SAMPLES,
        batch_size=1,
        collate_fn=ds.pack_collate(pack=["text"]),
        num_workers=2,
        multiprocessing_context="fork",
        prefetch_factor=3,
    )
    with ds.dispose_scope() as around:
        for number, batch in enumerate(ds.scoped_batches(loader)):
            kept = ds.move_to_outer(batch["text"])
            if number == 2:
                break
        del batch
        gc.collect()
        assert kept.data.tolist() == [0, 1]
        assert kept in around


def test_a_worker_does_not_inherit_the_scope_it_was_forked_in() -> None:
    loader = data.DataLoader(SAMPLES, batch_size=4, collate_fn=Owned(), num_workers=1, multiprocessing_context="fork")
    with ds.dispose_scope():
        assert [owned for owned, _ in ds.scoped_batches(loader)] == [False, False]


class Owned:
    """A collate function that tells with each batch whether a scope is current in its worker.

    Workers are forked, so that they need not import this class.
    """

    def __call__(self, samples: list[Any]) -> tuple[bool, ds.Tensor]:
        return ds.current_scope() is not None, ds.pad_sequence([sample["text"] for sample in samples])
