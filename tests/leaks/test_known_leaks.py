"""Known leaks of libraries are told apart from the program's own.

The library itself provokes each of them.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import sys
import unittest.mock
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks.holders import known
from disposescope.leaks.report.report import Report
from disposescope.leaks.reporters.html_page import packed
from disposescope.leaks.reporters.json_report import json_of, report_from_json

# What is long, all together.
pytestmark = pytest.mark.long

PASSES = 20


@pytest.fixture
def detector() -> Iterator[ds.LeakDetector]:
    gc.collect()
    with ds.LeakDetector() as detector:
        yield detector


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def dynamo(torch: Any) -> Any:
    return importlib.import_module("torch._dynamo")


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


def libraries_of(report: Report) -> set[str | None]:
    """Return the libraries of the known leaks in a report; None for a leak of the program's own."""
    return {None if leak.known is None else leak.known.library for leak in report.leaks}


class Trainer:
    def step(self, batch: object) -> None:
        """Train."""


def test_the_arguments_that_a_mock_keeps_are_told_as_its_leak(detector: ds.LeakDetector) -> None:
    with unittest.mock.patch.object(Trainer, "step", autospec=True) as step:
        trainer = Trainer()
        for _ in range(PASSES):
            trainer.step(np.zeros(1000))
            detector.mark("step")
        report = detector.report()
        [leak] = report.leaks
        assert leak.known is not None
        assert (leak.known.library, leak.count, leak.remedy) == ("unittest.mock", PASSES, leak.known.remedy)
        assert "1 leak, 20 tensors, 160.0 kB (1 known of unittest.mock)" in str(report)
        assert f"known leak of unittest.mock: {leak.known.what} ({leak.known.link})\n" in str(report)
        assert report_from_json(json_of(report)).leaks[0].known == leak.known
        page = packed(report)
        assert page["leaks"][0][page["fields"]["leak"].index("known")]["library"] == "unittest.mock"
    step.reset_mock()


def test_a_known_leak_is_named_also_where_it_is_not_known_whether_it_grows(detector: ds.LeakDetector) -> None:
    mock = unittest.mock.Mock()
    for _ in range(8):
        mock.step(np.zeros(10_000))
    report = detector.report(of_program=True)
    [row] = [row for row in report.kept if row.unjudged == "growth"]
    assert row.known is not None
    assert row.known.library == "unittest.mock"
    assert f"; known leak of unittest.mock: {row.known.what} (" in str(report)
    mock.reset_mock()


def test_the_row_by_holder_of_a_known_leak_says_so(detector: ds.LeakDetector) -> None:
    mock = unittest.mock.Mock()
    kept = []
    for _ in range(PASSES):
        mock.step(np.zeros(1000))
        kept.append(np.ones(500))
        detector.mark("step")
    report = detector.report(of_program=True)
    told = {row.nbytes: row for row in report.retainers}
    known = told[PASSES * 8000].known
    assert known is not None
    assert known.library == "unittest.mock"
    assert str(told[PASSES * 8000]).endswith(f"; {known}")
    assert told[PASSES * 4000].known is None
    assert report_from_json(json_of(report)).retainers == report.retainers
    assert any(text.endswith(f"; {known}") for text in packed(report)["strings"])
    assert len(kept) == PASSES


def test_what_the_program_holds_as_well_is_its_own_leak(detector: ds.LeakDetector) -> None:
    mock = unittest.mock.Mock()
    kept = []
    for _ in range(PASSES):
        kept.append(np.zeros(1000))
        mock.step(kept[-1])
        detector.mark("step")
    assert libraries_of(detector.report()) == {None}


def test_what_only_some_are_held_by_is_the_programs_own_leak(detector: ds.LeakDetector) -> None:
    mock = unittest.mock.Mock()
    kept = []
    for turn in range(PASSES):
        array = np.zeros(1000)
        (kept.append if turn % 2 else mock.step)(array)
        del array
        detector.mark("step")
    assert libraries_of(detector.report()) == {None}


def test_a_graph_that_gradients_keep_is_told_as_a_leak_of_pytorch(torch: Any, detector: ds.LeakDetector) -> None:
    model = torch.nn.Linear(100, 100)
    for _ in range(PASSES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(torch.ones(10, 100)).tanh().sum().backward(create_graph=True)
        detector.mark("step")
    report = detector.report()
    told = [leak for leak in report.leaks if leak.carriers]
    assert told
    assert all(leak.known is not None and "create_graph" in leak.known.what for leak in told)
    model.zero_grad(set_to_none=True)


def test_a_left_over_variable_whose_graph_has_the_last_of_many_is_no_holder(
    torch: Any, detector: ds.LeakDetector
) -> None:
    model, history = torch.nn.Linear(100, 100), []
    for _ in range(PASSES):
        x = torch.ones(10, 100, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
        history.append((gradient**2).sum())
        detector.mark("step")
    rows = [leak for leak in detector.report().leaks if leak.kind == "graph" and leak.count >= PASSES]
    assert rows
    assert {carrier.partition(": ")[2] for leak in rows for carrier in leak.carriers} == {"local 'history'[0].grad_fn"}
    del gradient


def test_models_that_their_gradients_keep_are_told_as_a_leak_of_pytorch(torch: Any, detector: ds.LeakDetector) -> None:
    for _ in range(PASSES):
        model = torch.nn.Linear(30, 30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(torch.ones(1, 30)).tanh().sum().backward(create_graph=True)
        model = None
        detector.mark("model")
    told = [leak for leak in detector.report().leaks if leak.nbytes > 10_000]
    # The gradients and the parameters.
    assert [(leak.kind, leak.known is not None and leak.known.library) for leak in told] == [("cycle", "torch")] * 2
    assert all("never collected" in leak.holder for leak in told)


def test_the_graphs_of_losses_that_a_program_keeps_are_its_own_leak(torch: Any, detector: ds.LeakDetector) -> None:
    class Doubles(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.doubled = x * 2
            return x * 3

    losses = []
    for _ in range(PASSES):
        losses.append(Doubles.apply(torch.ones(1000, requires_grad=True)).sum())
        detector.mark("step")
    assert libraries_of(detector.report()) == {None}


def test_a_result_on_its_own_context_is_told_as_a_leak_of_pytorch(torch: Any, detector: ds.LeakDetector) -> None:
    class Exp(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.result = x.exp()
            return ctx.result

    gc.disable()
    try:
        for _ in range(PASSES):
            Exp.apply(torch.ones(1000, requires_grad=True))
            detector.mark("step")
        leaks = {leak.kind: leak for leak in detector.report().leaks}
    finally:
        gc.enable()
        gc.collect()
    known_leak = leaks["cycle"].known
    assert known_leak is not None
    assert "autograd.Function" in known_leak.what


def test_a_cycle_of_the_program_is_its_own_leak(torch: Any, detector: ds.LeakDetector) -> None:
    gc.disable()
    try:
        for _ in range(PASSES):
            result = torch.ones(1000, requires_grad=True) * 2
            result.own = [result]
            del result
            detector.mark("step")
        leaks = {leak.kind: leak for leak in detector.report().leaks}
    finally:
        gc.enable()
        gc.collect()
    assert leaks["cycle"].known is None


def test_what_torch_compile_keeps_is_told_as_its_leak(torch: Any, dynamo: Any, detector: ds.LeakDetector) -> None:
    def graph_of(_kept: object, graph: Any, _inputs: object) -> Any:
        return graph.forward

    try:
        for _ in range(3):
            backend = functools.partial(graph_of, torch.ones(1000))
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
            del backend
            gc.collect()
        told = [leak for leak in detector.report().leaks if leak.nbytes >= 4000]
    finally:
        dynamo.reset()
    assert told
    assert all(leak.known is not None and "torch.compile" in leak.known.what for leak in told)


def test_a_static_argument_of_jit_is_told_as_a_leak_of_jax(jax: Any, detector: ds.LeakDetector) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = np.ones(1000)

        @functools.partial(jax.jit, static_argnums=0)
        def __call__(self, x: Any) -> Any:
            return x * 2

    x = jax.numpy.ones(3)
    for _ in range(3):
        Model()(x)
    leaks = detector.report().leaks
    jax.clear_caches()
    [leak] = [leak for leak in leaks if leak.nbytes == 24_000]
    assert leak.known is not None
    assert leak.known.library == "jax"


def test_the_traceback_of_a_failed_test_is_told_as_pytests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detector: ds.LeakDetector
) -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        monkeypatch.setattr(sys, name, None, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    file = tmp_path / "test_that_fails.py"
    file.write_text("import numpy as np\ndef test_fails():\n    batch = np.zeros(1000)\n    assert not batch.size\n")
    assert pytest.main([str(file), "-qq", "-s", "--no-summary", f"--rootdir={tmp_path}", f"-c{os.devnull}"]) == 1
    # What is left of the run itself.
    gc.collect()
    told = [leak for leak in detector.report().leaks if leak.nbytes == 8000]
    assert [leak.known is not None and leak.known.library for leak in told] == ["pytest"]


def test_a_version_that_a_row_does_not_name_has_no_known_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "module torch._dynamo.eval_frame.cached_backends"
    found = []
    for version in ("1.13.1+cpu", "2.0.0", "2.13.0a1+git"):
        monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
        sys.modules["torch"].__dict__["__version__"] = version
        found.append(known.known_on([], chain))
    assert [leak is not None for leak in found] == [False, True, True]
    monkeypatch.setitem(sys.modules, "torch", None)
    assert known.known_on([], chain) is None


def test_the_manual_lists_every_known_leak() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "leak-report.md").read_text(encoding="utf-8")
    for row in known.rows():
        assert f"| {row.library} | {row.what} | " in manual
        assert f"[link]({row.link}) |" in manual


def test_the_registry_of_pytrees_is_no_cache_of_jax_that_a_call_empties(jax: Any, detector: ds.LeakDetector) -> None:
    for number in range(PASSES):

        class Config:
            table = np.full(5000, number)

        jax.tree_util.register_pytree_node(Config, lambda _: ((), None), lambda _, __: None)
        detector.mark("step")
    del Config
    [leak] = [leak for leak in detector.report(of_program=True).leaks if leak.nbytes >= PASSES * 40_000 / 2]
    assert leak.known is None
    assert "clear_caches" not in f"{leak.holders}{leak.remedy}"
    assert "register a class as a pytree once" in leak.remedy, leak.holders


def test_a_metric_that_is_in_a_cycle_with_itself_is_no_leak(
    detector: ds.LeakDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchmetrics makes them: each has its own methods, wrapped, as attributes."""

    def update(metric: Any) -> None:
        metric.state = ds.zeros(20_000)

    def made(metric: Any) -> None:
        metric.update = functools.wraps(metric.update)(lambda: None)
        update(metric)

    base = type("Metric", (), {"__module__": "torchmetrics.metric", "update": update})
    accuracy: Any = type("Accuracy", (base,), {"__module__": "torchmetrics.classification.accuracy"})
    monkeypatch.setitem(sys.modules, "torchmetrics", type(sys)("torchmetrics"))
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        for _ in range(3):
            made(accuracy())
        report, of_block = detector.report(of_program=True), detector.report()
    finally:
        gc.set_threshold(*thresholds)
    assert (report.leaks, [(row.kind, row.count) for row in report.kept]) == ((), [("cycle", 3)])
    assert [(leak.kind, leak.known) for leak in of_block.leaks] == [("cycle", None)]


@pytest.mark.long
@pytest.mark.parametrize("is_off", [False, True], ids=["the collector is on", "off"])
def test_cycles_that_pytorch_leaves_are_a_leak_where_nobody_collects_them(
    torch: Any, detector: ds.LeakDetector, is_off: bool
) -> None:
    def traced(make: Any) -> None:
        make(torch.nn.Linear(200, 200).eval())

    thresholds, rows = gc.get_threshold(), torch.ones(1, 200)
    # It comes for nothing here, and is not off.
    gc.set_threshold(0)
    if is_off:
        gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                traced(torch.fx.symbolic_trace)
                traced(torch.nn.utils.parametrizations.spectral_norm)
                traced(functools.partial(torch.jit.trace, example_inputs=rows))
        report = detector.report(of_program=True)
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
    in_cycles = [leak for leak in (*report.leaks, *report.kept) if leak.holder.startswith("cycle:")]
    assert in_cycles
    assert report.leaks == (tuple(in_cycles) if is_off else ())
