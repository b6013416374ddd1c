"""A variable that names what was disposed is no leak; a history of disposed batches is one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, Report

BOX: dict[str, Any] = {}


@dataclass
class Batch:
    inputs: ds.Tensor


def batch_of(wrap: Callable[[ds.Tensor], object], passes: int = 3) -> Report:
    with LeakDetector() as detector:
        for _ in range(passes):
            with ds.dispose_scope("step"):
                batch = wrap(ds.zeros(3))
        report = detector.report()
    assert batch is not None
    return report


WRAPS: list[Callable[[ds.Tensor], object]] = [
    lambda t: t,
    lambda t: (t, t),
    lambda t: [t],
    lambda t: {"inputs": t},
    lambda t: {"inputs": [t, {t}]},
    lambda t: Batch(t),
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_variable_that_names_the_last_batch_is_no_leak(wrap: Callable[[ds.Tensor], object]) -> None:
    report = batch_of(wrap)
    assert report.leaks == ()
    [left] = report.leftovers
    assert (left.count, left.state, left.nbytes) == (1, "disposed", 0)
    assert ": local 'batch'" in left.holder


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_history_of_disposed_batches_is_a_leak(wrap: Callable[[ds.Tensor], object]) -> None:
    history: list[object] = []
    with LeakDetector() as detector:
        for _ in range(3):
            with ds.dispose_scope("step"):
                history.append(wrap(ds.zeros(3)))
        report = detector.report()
    [group] = report.leaks
    assert (group.count, group.state, report.leftovers) == (3, "disposed", ())
    assert ": local 'history'[0]" in group.holder


def test_a_disposed_tensor_in_a_closure_is_a_leak() -> None:
    def make() -> Callable[[], object]:
        with ds.dispose_scope():
            batch = ds.zeros(3)
        return lambda: batch

    with LeakDetector() as detector:
        hook = make()
        [group] = detector.report().leaks
    assert "cell 'batch'" in group.holder
    assert hook() is not None


def test_an_attribute_of_an_ordinary_object_is_no_variable() -> None:
    class Trainer:
        batch: object = None

    trainer = Trainer()
    with LeakDetector() as detector:
        with ds.dispose_scope():
            trainer.batch = ds.zeros(3)
        [group] = detector.report().leaks
    assert group.holder.endswith(": local 'trainer'.batch")


def test_a_composite_that_was_disposed_counts_once() -> None:
    with LeakDetector() as detector:
        for _ in range(2):
            with ds.dispose_scope():
                packed = ds.pack_sequence([ds.ones(3), ds.ones(2)])
        report = detector.report()
    assert report.leaks == ()
    assert [group.records[0].kind for group in report.leftovers] == ["PackedSequence"]
    assert ds.is_disposed(packed)


def test_more_disposed_than_are_looked_at_are_a_leak() -> None:
    history = []
    with LeakDetector() as detector:
        with ds.dispose_scope():
            history.extend(ds.zeros(1) for _ in range(1_001))
        report = detector.report()
    assert report.count == len(history)
