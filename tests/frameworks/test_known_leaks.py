"""Known leaks of libraries: see tests/leaks/test_known_leaks.py."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import disposescope as ds
from disposescope.leaks.report.leaks import Leak
from tests.frameworks.rounds import LIBRARIES_WARN

pytestmark = LIBRARIES_WARN

PASSES = 20


@pytest.fixture
def detector() -> Iterator[ds.LeakDetector]:
    gc.collect()
    with ds.LeakDetector() as detector:
        yield detector


def library(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name.partition(".")[0], reason="pip install -e '.[test-frameworks]'")
        return import_module(name)


def told_of(detector: ds.LeakDetector, nbytes: int) -> list[Leak]:
    """Return the leaks of at least so many bytes, each of which is a known one."""
    leaks = [leak for leak in detector.report().leaks if leak.nbytes >= nbytes]
    assert leaks
    assert all(leak.known is not None for leak in leaks), [leak.holders for leak in leaks if leak.known is None]
    return leaks


def test_what_an_accelerator_has_prepared() -> None:
    accelerate = library("accelerate")
    torch = library("torch")
    accelerator = accelerate.Accelerator(cpu=True)
    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            model = torch.nn.Linear(64, 64)
            model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
            accelerator.backward(model(torch.ones(1, 64)).sum())
            optimizer.step()
            del model, optimizer
            detector.mark("model")
        leaks = told_of(detector, 100_000)
        assert {leak.known.library for leak in leaks if leak.known is not None} == {"accelerate"}
        accelerator.free_memory()


def test_the_predictions_of_a_trainer() -> None:
    lightning = library("lightning")
    torch = library("torch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def predict_step(self, batch: Any, _index: int) -> Any:
            return batch.expand(100, -1).clone()

    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with ds.LeakDetector() as detector:
        trainer.predict(Model(), torch.utils.data.DataLoader(torch.ones(40, 8)))
        [leak] = told_of(detector, 40 * 100 * 8 * 4)
    assert leak.known is not None
    assert leak.known.library == "lightning"


def test_the_states_of_a_metric_and_not_what_a_program_adds_to_one() -> None:
    torchmetrics = library("torchmetrics")
    torch = library("torch")

    class Own(torchmetrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.history: list[Any] = []

        def update(self, batch: Any) -> None:
            self.history.append(batch)

        def compute(self) -> int:
            return 0

    metric = torchmetrics.classification.BinaryAUROC()
    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
            detector.mark("step")
        assert {leak.known.library for leak in told_of(detector, 50_000) if leak.known is not None} == {"torchmetrics"}
        metric.reset()
    own = Own()
    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            own.update(torch.rand(1000))
            detector.mark("step")
        [leak] = [leak for leak in detector.report().leaks if leak.nbytes >= 50_000]
        assert leak.known is None


def test_figures_that_pyplot_keeps(detector: ds.LeakDetector) -> None:
    library("matplotlib").use("Agg")
    pyplot = library("matplotlib.pyplot")
    numpy = library("numpy")
    for _ in range(PASSES - 4):
        _, axes = pyplot.subplots()
        axes.plot(numpy.zeros(10_000))
        del axes
        detector.mark("figure")
    leaks = told_of(detector, 500_000)
    assert {leak.known.library for leak in leaks if leak.known is not None} == {"matplotlib"}
    pyplot.close("all")


def test_what_ipython_keeps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    interactive = library("IPython.core.interactiveshell").InteractiveShell
    shell = interactive.instance(user_ns={})
    try:
        with ds.LeakDetector() as detector:
            for _ in range(PASSES):
                shell.run_cell("import numpy as np; np.zeros(10_000)", store_history=True)
            [results] = told_of(detector, 500_000)
        with ds.LeakDetector() as detector:
            shell.run_cell("def f():\n    x = np.zeros(10_000)\n    1 / 0\nf()", store_history=True)
            [of_error] = told_of(detector, 50_000)
    finally:
        interactive.clear_instance()
    assert results.known is not None
    assert "as Out[n]" in results.known.what
    assert of_error.known is not None
    assert "traceback" in of_error.known.what
