"""PyTorch's own tensors through its DataLoader.

They are packed by the hook, owned batch by batch, and gone after the epoch.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
from collections import UserDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")
rnn = pytest.importorskip("torch.nn.utils.rnn")

# Newer Pythons warn of a fork in a process that has threads; and there is no accelerator to pin
# memory for.
pytestmark = [
    pytest.mark.unmeasured,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

LENGTHS = [3, 5, 2, 2, 4, 1, 6]
SAMPLES = [{"text": torch.arange(length), "label": length} for length in LENGTHS]
CONTEXTS = [(0, None), (1, "fork"), (2, "fork"), (1, "spawn")]


def shared_files(*pids: int) -> set[str]:
    """Return the files of shared memory that processes have made and nobody has removed.

    Without arguments they are those of this process.
    """
    return {path.name for pid in pids or (os.getpid(),) for path in Path("/dev/shm").glob(f"torch_{pid}_*")}


def open_files_of_shared_memory() -> int:
    """Return how many files in ``/dev/shm`` this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        # The one that lists the folder is closed by now.
        with suppress(FileNotFoundError):
            count += str(link.readlink()).startswith("/dev/shm/torch_")
    return count


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    before = ds.statistics(process=True).live, shared_files()
    yield
    gc.collect()
    assert (ds.statistics(process=True).live, shared_files()) == before


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the default of PyTorch is to send files on Linux only")
def test_a_batch_that_is_kept_keeps_a_file_open_and_a_scope_lets_it_go() -> None:
    # As docs/how-to/messages-about-memory.md says.
    loader = data.DataLoader(torch.ones(60, 3), batch_size=2, num_workers=1, multiprocessing_context="fork")
    kept = list(loader)
    assert open_files_of_shared_memory() == 30
    del kept
    # The variable holds disposed batches.
    kept = list(ds.scoped_batches(loader))
    assert (len(kept), open_files_of_shared_memory()) == (30, 0)
    with ds.dispose_scope():
        kept = [ds.move_to_outer(batch.clone()) for batch in ds.scoped_batches(loader)]
        assert open_files_of_shared_memory() == 0


@pytest.mark.long
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


def packed_plainly(samples: list[Any]) -> Any:
    return rnn.pack_sequence([sample["text"] for sample in samples], enforce_sorted=False)


def packed_in_a_dict(samples: list[Any]) -> dict[str, Any]:
    return {"text": packed_plainly(samples), "more": [torch.tensor([sample["label"] for sample in samples])]}


@pytest.mark.long
@pytest.mark.parametrize(("workers", "context"), CONTEXTS)
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize(("collate", "each"), [(packed_plainly, 1), (packed_in_a_dict, 2)])
def test_what_a_plain_loader_packs_is_one_resource(
    workers: int, context: str | None, pin_memory: bool, collate: Any, each: int
) -> None:
    loader = data.DataLoader(
        SAMPLES, batch_size=2, collate_fn=collate, num_workers=workers, multiprocessing_context=context,
        pin_memory=pin_memory,
    )  # fmt: skip
    kept: list[Any] = []
    labels: list[Any] = []
    with ds.dispose_scope() as scope:
        ds.reset_statistics()
        for batch in loader:
            packed = batch if collate is packed_plainly else batch["text"]
            kept.append(packed)
            if collate is packed_in_a_dict:
                labels += batch["more"]
            assert len(scope) == each * len(kept)
            assert {ds.owner_of(resource) for resource in (packed, *packed)} == {scope}
            now = ds.statistics()
            assert now.live == now.created_in_scope - now.disposed_in_scope == len(scope)
        del batch, packed
        ds.dispose(kept[0].batch_sizes)
        assert all(map(ds.is_disposed, (kept[0], *kept[0])))
        assert len(scope) == each * len(kept) - 1
        assert [len(rnn.unpack_sequence(packed)) for packed in kept[1:]] == [2, 2, 1]
    assert all(ds.is_disposed(resource) for packed in kept for resource in (packed, *packed))
    for _batch in ds.scoped_batches(loader):
        current = ds.current_scope()
        assert current is not None
        assert len(current) == each


class Stream(data.IterableDataset):
    def __iter__(self) -> Any:
        return (torch.full((length,), length) for length in LENGTHS)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset_is_read_as_any_other(workers: int) -> None:
    loader = data.DataLoader(Stream(), batch_size=3, collate_fn=ds.pack_collate("all"), num_workers=workers)
    sizes = [batch.batch_sizes.tolist() for batch in ds.scoped_batches(loader)]
    assert sizes == [[3, 3, 2, 1, 1], [3, 2, 1, 1], [1] * 6]


class Broken(data.Dataset):
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


@pytest.mark.parametrize("workers", [0, 2])
def test_no_process_grows_over_fifty_epochs(workers: int) -> None:
    samples = [torch.ones(1 + index % 50, 64) for index in range(64)]
    loader = data.DataLoader(
        samples, batch_size=16, collate_fn=ds.pack_collate("all"), num_workers=workers,
        persistent_workers=workers > 0, multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    sizes: list[list[int]] = []
    here = psutil.Process()
    for epoch in range(50):
        for batch in ds.scoped_batches(loader):
            batch.data.sum()
        if epoch % 10 == 9:
            gc.collect()
            sizes.append([process.memory_info().rss for process in (here, *here.children())])
    # One epoch is 0.4 MB: ten that were kept would be 4 each time. The C library takes some now and
    # then.
    for resident in zip(*sizes, strict=True):
        assert min(after - before for before, after in itertools.pairwise(resident)) < 2 * 2**20, resident


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


@pytest.mark.long
@pytest.mark.parametrize(("workers", "context"), CONTEXTS)
def test_a_wrapped_collate_of_pytorchs_own_leaves_the_batch_alone(workers: int, context: str | None) -> None:
    loader = data.DataLoader(
        [sample["text"] for sample in SAMPLES],
        batch_size=3,
        collate_fn=ds.ScopedCollate(functools.partial(rnn.pack_sequence, enforce_sorted=False)),
        num_workers=workers,
        multiprocessing_context=context,
    )
    seen: list[Any] = []
    for batch in ds.scoped_batches(loader):
        scope = ds.current_scope()
        assert scope is not None
        assert scope.live == (batch,)
        assert int(batch.batch_sizes[0]) == len(ds.unpack_sequence(batch))
        seen.append(batch)
    assert len(seen) == 3
    assert all(map(ds.is_disposed, seen))


class Reporting(data.Dataset):
    """Samples that tell which process made them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 5, 256), float(index)), os.getpid()


# With named files, what was fetched ahead and never asked for is removed by PyTorch when the
# process ends.
@pytest.mark.parametrize(
    ("strategy", "leave"),
    [
        ("file_descriptor", "at the end"),
        ("file_descriptor", "by break"),
        ("file_descriptor", "by an exception"),
        ("file_system", "at the end"),
    ],
)
def test_no_file_of_shared_memory_is_left_by_any_worker(strategy: str, leave: str) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    pids: set[int] = set()
    try:
        loader = data.DataLoader(
            Reporting(), batch_size=2, collate_fn=ds.pack_collate(pack=["0"]), num_workers=2,
            multiprocessing_context="fork",
        )  # fmt: skip
        with suppress(ZeroDivisionError):
            for number, (text, makers) in enumerate(ds.scoped_batches(loader)):
                pids |= set(makers.tolist())
                assert text.data.shape[1] == 256
                if number == 3 and leave != "at the end":
                    if leave == "by break":
                        break
                    raise ZeroDivisionError
        assert ds.is_disposed(text)
        assert os.getpid() not in pids
        del loader
        gc.collect()
        assert len(pids) == 2
        assert shared_files(*pids) == set()
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


class Encoded:
    """A collate function that makes what Hugging Face's tokenizers make.

    Workers that are spawned find it, too.
    """

    def __call__(self, samples: list[Any]) -> BatchEncoding:
        texts = [sample["text"] for sample in samples]
        return BatchEncoding(ids=rnn.pad_sequence(texts, batch_first=True), packed=rnn.pack_sequence(texts, False))


class Listed:
    """A collate function whose batch is a dataclass."""

    def __call__(self, samples: list[Any]) -> Batch:
        texts = [sample["text"] for sample in samples]
        return Batch(rnn.pack_sequence(texts, False), torch.tensor([sample["label"] for sample in samples]))


@pytest.mark.parametrize("collate", [Encoded, Listed])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_user_dicts_and_dataclasses_come_through_a_loader_as_trees(
    collate: Any, workers: int, pin_memory: bool
) -> None:
    loader = data.DataLoader(
        SAMPLES, batch_size=3, collate_fn=ds.ScopedCollate(collate()), num_workers=workers, pin_memory=pin_memory,
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    kept: list[Any] = []
    with ds.dispose_scope("run") as run:
        for batch in ds.scoped_batches(loader):
            scope = ds.current_scope()
            assert scope is not None
            parts = list(batch.values()) if isinstance(batch, UserDict) else [batch.text, batch.label]
            assert len(scope) == 2
            assert all(part in scope for part in parts)
            if not kept:
                kept.append(ds.move_to_outer(batch))
        assert len(run) == 2
        assert all(map(ds.is_disposed, parts))
    assert ds.is_disposed(kept[0]["packed"] if collate is Encoded else kept[0].text)


def test_without_an_accelerator_pinning_is_what_it_is_without_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch 2.5 has no torch.accelerator.
    if getattr(torch, "accelerator", torch.cuda).is_available():
        pytest.skip("there is an accelerator, which pins")
    packed = rnn.pack_sequence([torch.ones(3), torch.ones(2)], enforce_sorted=False)
    with pytest.raises(RuntimeError) as plain:
        packed.pin_memory()
    with ds.dispose_scope() as scope, pytest.raises(RuntimeError) as scoped:
        scope.attach(packed)
        packed.pin_memory()
    assert str(plain.value) == str(scoped.value)
    # Where there is one, what comes back is a copy.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = ds.pack_sequence([torch.ones(3), torch.ones(2)], enforce_sorted=False)
            pinned = scope.move_to_outer(packed.pin_memory())
        assert ds.is_disposed(packed)
        assert outer.live == (pinned,)
        assert [row.tolist() for row in ds.unpack_sequence(pinned)] == [[1.0] * 3, [1.0] * 2]
    assert all(map(ds.is_disposed, pinned))


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
