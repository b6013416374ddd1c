"""Forks, and the workers of a DataLoader."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from typing import Any

import numpy as np

import disposescope as ds

from .detectors import detect_work
from .run import HANG_S, Run, rnn, torch
from .tensors import tensor_work
from .text import NUMBERS, TEXTS, text_work
from .torch_tensors import torch_work


def a_life_of_its_own(arrays: list[Any]) -> None:
    """What a forked child does: it has no scope, and scopes of its own work."""
    assert ds.current_scope() is None
    assert all((array == 7).all() for array in arrays)
    for size in (10, 1000, 100_000):
        with ds.dispose_scope() as scope:
            array, tensor = np.full(size, 3.0), ds.full(size, 4.0)
            assert array in scope
            assert tensor in scope
            assert (np.fromstring(TEXTS[4097], sep=" ") == NUMBERS[:4097]).all()
            made = [tensor]
            if torch is not None:
                made.append(torch.full((size,), 4.0) + 1)
                assert made[1] in scope
                assert float(made[1].sum()) == 5 * size
            assert float((tensor + array).sum()) == 7 * size
        assert all(map(ds.is_disposed, made))
        del array, tensor, made
    with ds.LeakDetector() as detector:
        _kept = ds.full(77, 1.0)
        assert "Tensor float64 (77,)" in map(str, detector.take_snapshot())
    assert ds.current_scope() is None


def forks(run: Run) -> None:
    """Forks in the middle of open scopes, while other threads are in theirs."""
    works = [text_work(run, strict=False), tensor_work(run), detect_work(run)] + (
        [torch_work(run)] if torch is not None else []
    )
    rng = run.random()
    with run.background(*works, *works):
        for _ in range(2):
            with ds.dispose_scope("outer") as outer, ds.dispose_scope("inner") as inner:
                kept = inner.move_to_outer(ds.ones(100))
                arrays = [np.full(size, 7.0) for size in (10, 1000, 100_000)]
                for _ in range(rng.randrange(2000)):
                    pass
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        # A child that hangs is killed, and its status tells.
                        signal.alarm(HANG_S // 2)
                        a_life_of_its_own(arrays)
                        status = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        sys.stderr.flush()
                        os._exit(status)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                if status:
                    run.wrong(f"a forked child ended with status {status}")
                if float(kept.sum()) != 100 or not all((array == 7).all() for array in arrays):
                    run.wrong("the fork changed the contents of the parent")
                if kept not in outer or ds.current_scope() is not inner:
                    run.wrong("the fork changed the scopes of the parent")
                inner.detach(arrays)
            del kept, arrays, inner, outer
    run.did(2)


class Sequences:
    """A data set whose items are made in scopes of their own."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        with ds.dispose_scope() as scope:
            made = torch.full((index % 5 + 1,), float(index)) * 2
            np.ones(5000) * ds.ones(5000)
            return scope.move_to_outer(made)


def workers(run: Run) -> None:
    """A ``DataLoader`` whose workers have scopes, with a scope for each batch.

    Meanwhile, other threads are in scopes of their own.
    """
    collate: Any = ds.pack_collate()
    if run.round % 2:
        collate = ds.ScopedCollate(functools.partial(rnn.pack_sequence, enforce_sorted=False))
    loader = torch.utils.data.DataLoader(
        Sequences(), batch_size=3, num_workers=2, collate_fn=collate, multiprocessing_context="fork"
    )
    with run.background(text_work(run), tensor_work(run)):
        seen, batches = [], []
        for batch in ds.scoped_batches(loader):
            padded, lengths = rnn.pad_packed_sequence(batch, batch_first=True)
            seen += [(float(row[0]) / 2, int(length)) for row, length in zip(padded, lengths, strict=True)]
            batches.append(batch.data)
        if seen != [(float(index), index % 5 + 1) for index in range(12)]:
            run.wrong(f"the batches of the workers are others: {seen}")
        if not all(map(ds.is_disposed, batches)):
            run.wrong("a batch outlived its scope")
    run.did(12)
