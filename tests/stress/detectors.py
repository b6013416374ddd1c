"""Leak detectors, while other threads are in scopes."""

from __future__ import annotations

import random

import numpy as np

import disposescope as ds

from .packed import pack_work, torch_pack_work
from .run import Run, Work, torch
from .tensors import tensor_work
from .text import text_work
from .torch_tensors import torch_work


def detect_work(run: Run) -> Work:
    """Threads that look.

    What a report looks at it holds, so that beside it arrays may escape from strict scopes.
    """

    def work(_number: int, rng: random.Random) -> int:
        for _ in range(2):
            frames, sample = rng.choice((1, 4)), rng.choice((None, None, 512, 1 << 16))
            with ds.LeakDetector(frames=frames, sample_nbytes=sample) as detector:
                with ds.dispose_scope("step") as step:
                    kept = step.move_to_outer(ds.full(77, 1.0))
                    np.ones(7777)
                for _ in range(2):
                    snapshot = detector.take_snapshot()
                    if sample is None and not any(str(record) == "Tensor float64 (77,)" for record in snapshot):
                        run.wrong("a snapshot lacks a Tensor that was born under the detector and is alive")
                    str(snapshot)
                    detector.mark("pass")
                    detector.memory()
                match rng.randrange(3):
                    case 0:
                        str(detector.report(object_limit=2000))
                    case 1:
                        str(ds.live_tensors())
                    case 2:
                        before = ds.take_snapshot()
                        ds.take_snapshot().compare_to(before)
                        del before
                del snapshot, kept, step
            repr(detector)
        return 2

    return work


def detectors(run: Run) -> None:
    """Detectors opened and closed, snapshots and reports, while other threads are in scopes."""
    works = [text_work(run, strict=False), tensor_work(run), pack_work(run)]
    if torch is not None:
        works += [torch_work(run), torch_work(run), torch_pack_work(run)]
    with run.background(*works, detect_work(run)):
        run.did(detect_work(run)(-1, run.random()))
