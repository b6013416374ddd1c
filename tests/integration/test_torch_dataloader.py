"""PyTorch's own tensors through its DataLoader: packed by the hook, owned batch by batch, and gone after the epoch."""

from __future__ import annotations

import gc
import os
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")
rnn = pytest.importorskip("torch.nn.utils.rnn")

# Newer Pythons warn of a fork in a process that has threads; and there is no accelerator to pin memory for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

LENGTHS = [3, 5, 2, 2, 4, 1, 6]
SAMPLES = [{"text": torch.arange(length), "label": length} for length in LENGTHS]
CONTEXTS = [(0, None), (1, "fork"), (2, "fork"), (1, "spawn")]


def shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    before = ds.statistics(process=True).live, shared_files()
    yield
    gc.collect()
    assert (ds.statistics(process=True).live, shared_files()) == before


@pytest.mark.parametrize(("workers", "context"), CONTEXTS)
@pytest.mark.parametrize("pin_memory", [False, True])
def test_batches_come_as_torch_packed_sequences_and_go_with_their_scope(
    workers: int, context: str | None, pin_memory: bool
) -> None:
    loader = data.DataLoader(
        SAMPLES,
        batch_size=2,
        collate_fn=ds.pack_collate(pack=["text"]),
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
    )
    for _epoch in range(2):
        lengths: list[int] = []
        seen: list[Any] = []
        for batch in ds.scoped_batches(loader):
            assert type(batch["text"]) is rnn.PackedSequence
            scope = ds.current_scope()
            assert scope is not None
            assert len(scope) == 2
            assert batch["text"] in scope
            assert all(map(ds.is_disposed, seen))
            seen += [batch["text"], batch["label"], *batch["text"]]
            padded, counts = rnn.pad_packed_sequence(batch["text"], batch_first=True)
            assert padded.sum() == sum(sum(range(count)) for count in counts.tolist())
            assert batch["label"].tolist() == counts.tolist()
            lengths += counts.tolist()
        assert lengths == LENGTHS
        assert all(map(ds.is_disposed, seen))


class Stream(data.IterableDataset):  # type: ignore[misc,name-defined]
    def __iter__(self) -> Any:
        return (torch.full((length,), length) for length in LENGTHS)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset_is_read_as_any_other(workers: int) -> None:
    loader = data.DataLoader(Stream(), batch_size=3, collate_fn=ds.pack_collate("all"), num_workers=workers)
    sizes = [batch.batch_sizes.tolist() for batch in ds.scoped_batches(loader)]
    assert sizes == [[3, 3, 2, 1, 1], [3, 2, 1, 1], [1] * 6]


class Broken(data.Dataset):  # type: ignore[misc,name-defined]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise KeyError("sample 3 is broken")
        return torch.arange(index + 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_worker_raises_arrives_and_nothing_is_left(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    loader = data.DataLoader(Broken(), batch_size=2, collate_fn=ds.pack_collate("all"), num_workers=workers)
    seen: list[Any] = []
    with pytest.raises(KeyError, match="sample 3 is broken"):
        for batch in ds.scoped_batches(loader):
            seen.append(batch)
    assert [ds.is_disposed(batch) for batch in seen] == [True]


def test_no_process_grows_over_fifty_epochs() -> None:
    samples = [torch.ones(1 + index % 50, 64) for index in range(64)]
    loader = data.DataLoader(
        samples, batch_size=16, collate_fn=ds.pack_collate("all"), num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    sizes: list[list[int]] = []
    here = psutil.Process()
    for epoch in range(50):
        for batch in ds.scoped_batches(loader):
            batch.data.sum()
        if epoch in (9, 49):
            gc.collect()
            sizes.append([process.memory_info().rss for process in (here, *here.children())])
    # One epoch is 0.4 MB: forty that were kept would be 16.
    grown = [after - before for before, after in zip(*sizes, strict=True)]
    assert max(grown) < 8 * 2**20, grown


class BatchEncoding(UserDict[str, Any]):
    """As that of Hugging Face's tokenizers."""


@dataclass
class Batch:
    text: Any
    label: Any


def test_user_dicts_and_dataclasses_of_torch_tensors_move_as_trees() -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            text = rnn.pack_sequence([torch.ones(3), torch.ones(2)])
            kept = scope.move_to_outer([BatchEncoding(ids=torch.ones(2)), Batch(text, torch.ones(1))])
            lost = torch.ones(4)
        assert ds.is_disposed(lost)
        assert len(outer) == 3
        assert kept[0]["ids"].tolist() == [1.0, 1.0]
        assert kept[1].text.data.sum() == 5
    assert ds.is_disposed(kept[1].text)


def test_stacked_packed_sequences_are_refused_where_default_collate_makes_them() -> None:
    samples = [rnn.pack_sequence([torch.ones(2), torch.ones(1)], enforce_sorted=False) for _ in range(2)]
    with pytest.raises(ValueError, match="fields of packed sequences were stacked"):
        ds.ScopedCollate(data.default_collate)(samples)
    with pytest.raises(TypeError, match="is a PackedSequence, which is a batch already"):
        ds.pack_collate()(samples)


def test_fields_are_packed_or_stacked_in_the_dtype_that_holds_all() -> None:
    samples = [(torch.arange(2), torch.ones(2), 0.5), (torch.ones(3), torch.zeros(2), 2)]
    text, vector, number = ds.pack_collate()(samples)
    assert text.data.dtype == torch.float32
    assert torch.equal(vector, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert torch.equal(number, torch.tensor([0.5, 2.0], dtype=torch.float64))


def test_a_collate_that_would_mix_devices_is_refused() -> None:
    with pytest.raises(ds.DeviceMismatchError, match=r"sample 0 is on cpu:0 and .*sample 1 on meta:0"):
        ds.pack_collate()([torch.ones(2), torch.ones(2, device="meta")])
