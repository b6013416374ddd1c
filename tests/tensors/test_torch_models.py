"""Models as a leak detector sees them: each as one thing, at the line that made it."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import disposescope as ds
from disposescope.tensors.torch import framework
from disposescope.tensors.torch.disposal import PENDING
from disposescope.tensors.torch.models import Models


class Block(nn.Module):
    """A model that has others in it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self._build(width)

    def _build(self, width: int) -> None:
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.register_buffer("mask", torch.ones(width))


class Deep(Block):
    """A model whose base class makes parts."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)


@pytest.fixture
def detector() -> Iterator[ds.LeakDetector]:
    gc.collect()
    with ds.LeakDetector() as opened:
        yield opened


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def models(detector: ds.LeakDetector) -> list[tuple[str, int, int | None]]:
    """What is told of models: the name, the bytes, the line."""
    return [
        (record.kind, record.nbytes, None if record.site is None else record.site.line)
        for record in detector.take_snapshot()
        if record.kind not in ("torch.Tensor", "numpy.ndarray")
    ]


LINEAR = (64 + 8) * 4


def test_a_model_is_one_thing_at_the_line_that_made_it(detector: ds.LeakDetector) -> None:
    model, line = Block(), here()
    assert models(detector) == [("Block", 2 * LINEAR + 32, line)]
    assert [record for record in detector.take_snapshot() if record.kind == "torch.Tensor"] == []
    del model
    assert models(detector) == []


def test_the_line_is_that_outside_of_every_constructor_of_the_class(detector: ds.LeakDetector) -> None:
    model, line = Deep(), here()
    assert models(detector) == [("Deep", 3 * LINEAR + 32, line)]
    del model


def test_the_constructor_of_a_copy_of_a_file_is_another_one(detector: ds.LeakDetector) -> None:
    source = """
class Copied(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.add_module("layer", nn.Linear(8, 8))
        if PARTS:
            made.append(PARTS[0](made))
"""
    kept: list[Any] = []
    parts: list[Any] = []
    for file in ("inner.py", "outer.py"):
        names: dict[str, Any] = {"nn": nn, "PARTS": parts[:], "__name__": file}
        exec(compile(source, file, "exec"), names)
        parts.append(names["Copied"])
    kept.append(parts[1](kept))
    sites = [record.site for record in detector.take_snapshot() if record.kind == "Copied"]
    assert [site and site.file for site in sites] == [__file__, "outer.py"]


def test_modules_of_pytorch_say_what_they_are_made_with(detector: ds.LeakDetector) -> None:
    kept = [nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Sequential(nn.Linear(8, 8), nn.ReLU())]
    names = [name for name, _, _ in models(detector)]
    assert sorted(names) == ["Linear(8, 8)", "Linear(8, 8, bias=False)", "Sequential"]
    del kept


def test_gradients_and_the_state_of_optimizers_count_with_their_model(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8)
    model(torch.ones(2, 8)).sum().backward()
    assert models(detector)[0][1] == 2 * LINEAR
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    # Two moments, and the number of steps of each parameter.
    assert models(detector)[0][1] == 4 * LINEAR + 2 * 4
    optimizer.zero_grad()
    del optimizer
    assert models(detector)[0][1] == LINEAR


def test_what_models_share_counts_once(detector: ds.LeakDetector) -> None:
    first = nn.Sequential(nn.Linear(8, 8))
    second = nn.Sequential(first[0])
    assert [nbytes for _, nbytes, _ in models(detector)] == [LINEAR, LINEAR]
    assert detector.report(of_program=True).kept_nbytes == LINEAR
    del first, second


def test_a_model_in_a_cycle_takes_no_memory_from_one_that_shares_it(detector: ds.LeakDetector) -> None:
    kept: list[nn.Module] = []
    for _ in range(20):
        model: Any = nn.Sequential(nn.Linear(64, 64))
        model.itself = [model]
        kept.append(nn.Sequential(model[0]))
        del model
        detector.mark("trial")
    [leak] = [leak for leak in detector.report(of_program=True).leaks if leak.kind == "model"]
    assert (leak.count, leak.nbytes) == (20, 20 * 64 * 65 * 4)
    assert "'kept'" in leak.holder


def test_a_list_of_models_is_models(detector: ds.LeakDetector) -> None:
    pool = nn.ModuleList()
    for _ in range(3):
        pool.append(nn.Linear(8, 8))
    assert [name for name, _, _ in models(detector)] == ["Linear(8, 8)"] * 3
    leak = detector.report().leaks[0]
    assert leak.count == 3
    assert "pool" in leak.holder
    assert leak.tensor_kind == "torch.nn.Module"


def test_a_model_without_tensors_is_not_told(detector: ds.LeakDetector) -> None:
    kept = nn.Sequential(nn.ReLU(), nn.Dropout())
    assert models(detector) == []
    del kept


def test_what_was_there_before_is_not_told_nor_what_is_added_to_it() -> None:
    model = Block()
    with ds.LeakDetector() as detector:
        model.extra = nn.Linear(8, 8)
        assert models(detector) == []


def test_copies_and_what_is_unpickled_have_the_line_that_asked(detector: ds.LeakDetector) -> None:
    data = pickle.dumps(nn.Linear(8, 8))
    assert models(detector) == []
    loaded, first = pickle.loads(data), here()
    copied, second = copy.deepcopy(loaded), here()
    assert [line for _, _, line in models(detector)] == [first, second]
    del loaded, copied


def test_a_sampled_detector_keeps_every_model() -> None:
    with ds.LeakDetector(sample_nbytes=1 << 30) as detector:
        kept = [nn.Linear(8, 8) for _ in range(5)]
        assert [nbytes for _, nbytes, _ in models(detector)] == [LINEAR] * 5
        assert detector.report().leaks[0].count == 5
        del kept


def test_a_test_that_leaves_a_model_behind_fails_and_one_that_uses_a_model_does_not() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    with ds.assert_no_leaks():
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    kept: list[Any] = []
    with pytest.raises(ds.LeakError, match=r"1 × Linear\(8, 8\)"), ds.assert_no_leaks():
        kept.append(nn.Linear(8, 8))


def tensors(detector: ds.LeakDetector) -> list[tuple[int, int]]:
    """What is told of tensors by themselves: the line and the bytes."""
    return [
        (record.site.line, record.nbytes)
        for record in detector.take_snapshot()
        if record.kind == "torch.Tensor" and record.site is not None
    ]


def test_parameters_that_outlive_their_model_are_told_with_the_line_that_made_them(
    detector: ds.LeakDetector,
) -> None:
    model, line = nn.Linear(8, 8), here()
    kept = [model.weight]
    assert tensors(detector) == []
    del model
    assert tensors(detector) == [(line, 256)]
    assert models(detector) == []
    assert len(kept) == 1


def test_gradients_that_are_kept_are_told_and_those_of_a_model_are_not(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8, bias=False)
    model(torch.ones(2, 8)).sum().backward()
    line = here() - 1
    gradient = model.weight.grad
    assert gradient is not None
    assert tensors(detector) == []
    model.zero_grad()
    assert tensors(detector) == [(line, 256)]


def test_a_gradient_that_an_optimizer_reads_first_has_the_line_of_its_backward_pass(
    detector: ds.LeakDetector,
) -> None:
    weight = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    kept: list[Any] = []
    torch.autograd.backward((weight * 2).sum())
    passed = here() - 1
    [other] = torch.autograd.grad((weight * 3).sum(), weight)
    optimizer.step()
    stepped = here() - 1
    kept += [weight.grad, *optimizer.state[weight].values()]
    del weight, other
    optimizer.param_groups[0]["params"].clear()
    optimizer.state.clear()
    assert sorted(tensors(detector)) == [(passed, 32), (stepped, 32)]
    assert len(kept) == 2


def test_gradients_of_threads_have_the_lines_of_their_own_backward_passes(detector: ds.LeakDetector) -> None:
    kept: list[Any] = []

    def other_thread() -> None:
        weight = torch.ones(8, requires_grad=True)
        (weight * 2).sum().backward()
        kept.append(weight.grad)

    weight = torch.ones(8, requires_grad=True)
    (weight * 2).sum().backward()
    line = here() - 1
    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    kept.append(weight.grad)
    del weight
    assert sorted(tensors(detector)) == [(line - 4, 32), (line, 32)]
    assert len(kept) == 2


def test_a_gradient_that_a_thread_without_a_pass_reads_has_the_line_of_the_last_one(
    detector: ds.LeakDetector,
) -> None:
    weight = torch.ones(8, requires_grad=True)
    loss = (weight * 2).sum()

    def other_thread() -> None:
        loss.backward()

    thread = threading.Thread(target=other_thread)
    line = here() - 3
    thread.start()
    thread.join()
    gradient = weight.grad
    assert gradient is not None
    del weight
    assert (line, 32) in tensors(detector)


def test_a_gradient_of_an_unwatched_pass_has_no_line_of_an_earlier_one() -> None:
    weight = torch.ones(8, requires_grad=True)
    with ds.LeakDetector():
        (weight * 2).sum().backward()
    weight.grad = None
    (weight * 2).sum().backward()
    with ds.LeakDetector() as detector:
        gradient = weight.grad
        line = here() - 1
        assert gradient is not None
        del weight
        assert tensors(detector) == [(line, 32)]


def test_a_look_at_models_is_no_birth_of_their_gradients(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8, bias=False)
    model(torch.ones(2, 8)).sum().backward()
    detector.report()
    model.zero_grad()
    assert tensors(detector) == []


@pytest.mark.parametrize("has_looked", [False, True])
def test_gradients_that_nobody_has_read_are_told_where_their_models_are_gone(
    detector: ds.LeakDetector, has_looked: bool
) -> None:
    kept: list[Any] = []
    for _ in range(3):
        model = nn.Linear(8, 8, bias=False)
        model(torch.ones(2, 8)).sum().backward()
        line = here() - 1
        kept.append(model.weight)
    if has_looked:
        # The model of the last gradient is there.
        assert tensors(detector).count((line, 256)) == 2
    del model
    assert tensors(detector).count((line, 256)) == 3
    ages = [record.age_s for record in detector.take_snapshot().records]
    assert all(age is not None and age >= 0 for age in ages)
    gradients = [weight.grad for weight in kept]
    kept.clear()
    assert tensors(detector) == [(line, 256)] * 3
    assert len(gradients) == 3


def test_reports_of_a_closed_window_list_a_gradient_that_one_of_them_has_read() -> None:
    with ds.LeakDetector() as detector:
        weight = nn.Linear(8, 8, bias=False).weight
        weight.sum().backward()
    # What is read is recorded as long as any detector is open.
    with ds.LeakDetector():
        assert [[nbytes for _, nbytes in tensors(detector)] for _ in range(2)] == [[256, 256]] * 2
    assert weight.is_leaf


def during_the_search_for_models(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Have another thread call a function while a report looks for what belongs to models."""
    memory_of_models = Models.memory_of_models

    def with_another_thread(*args: Any) -> Any:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
        return memory_of_models(*args)

    monkeypatch.setattr(Models, "memory_of_models", with_another_thread)


def test_what_another_thread_makes_meanwhile_is_in_no_report_of_a_closed_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others: list[Any] = []
    with ds.LeakDetector() as detector:
        kept = torch.ones(100)
        line = here() - 1
    during_the_search_for_models(monkeypatch, lambda: others.append(torch.ones(200)))
    with ds.LeakDetector() as later:
        assert tensors(detector) == [(line, 400)]
        assert [nbytes for _, nbytes in tensors(later)].count(800) == 1
    assert len(others) == 2
    assert len(kept) == 100


def test_a_gradient_that_another_report_has_read_meanwhile_is_in_the_report(
    detector: ds.LeakDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = nn.Linear(8, 8, bias=False).weight
    weight.sum().backward()
    line = here() - 1
    reports: list[list[tuple[int, int]]] = []

    def settle_after_another_report() -> None:
        if not reports:
            reports.append([])
            reports[0] = tensors(detector)
        PENDING.settle()

    # The window of the report is known by then, and nothing has been listed.
    stand_in = SimpleNamespace(settle=settle_after_another_report, waiting=PENDING.waiting)
    monkeypatch.setattr(framework, "PENDING", stand_in)
    assert tensors(detector).count((line, 256)) == 1
    assert reports[0].count((line, 256)) == 1


def test_a_gradient_that_a_report_has_read_is_told_when_the_program_keeps_it(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8, bias=False)
    model(torch.ones(2, 8)).sum().backward()
    line = here() - 1
    assert tensors(detector) == []
    gradient = model.weight.grad
    model.zero_grad()
    assert tensors(detector) == [(line, 256)]
    assert gradient is not None


def test_an_optimizer_that_outlives_its_model_is_told_with_all_that_belongs_to_it(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer, line = torch.optim.SGD(model.parameters(), momentum=0.9), here()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert tensors(detector) == []
    assert models(detector)[0][:2] == ("Linear(8, 8, bias=False)", 3 * 256)
    del model
    # The parameter, its gradient and its momentum.
    assert models(detector) == [("SGD with its parameters", 3 * 256, line)]
    assert tensors(detector) == []
    leak = next(leak for leak in detector.report().leaks if leak.site is not None and leak.site.line == line)
    assert "local 'optimizer'" in leak.holder
    optimizer.param_groups[0]["params"].clear()
    optimizer.state.clear()
    assert models(detector) == tensors(detector) == []


def test_what_an_optimizer_was_given_after_it_was_made_is_told_by_itself(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    head, line = nn.Linear(8, 8, bias=False), here()
    optimizer.add_param_group({"params": head.parameters()})
    del model, head
    assert [nbytes for _, nbytes in tensors(detector)] == [256, 256]
    assert (line, 256) in tensors(detector)
    assert models(detector) == []


def test_an_optimizer_of_a_model_that_is_there_in_part_is_no_model(detector: ds.LeakDetector) -> None:
    body = nn.Linear(8, 8, bias=False)
    head, line = nn.Linear(8, 8, bias=False), here()
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], momentum=0.9)
    del head
    assert tensors(detector) == [(line, 256)]
    assert [name for name, _, _ in models(detector)] == ["Linear(8, 8, bias=False)"]
    del optimizer


def test_a_tensor_that_an_optimizer_steps_is_a_tensor(detector: ds.LeakDetector) -> None:
    image, line = torch.ones(64, requires_grad=True), here()
    optimizer = torch.optim.SGD([image], momentum=0.9)
    assert tensors(detector) == [(line, 256)]
    assert models(detector) == []
    del image, optimizer


def test_a_copied_optimizer_has_the_line_that_asked(detector: ds.LeakDetector) -> None:
    optimizer = torch.optim.SGD(nn.Linear(8, 8, bias=False).parameters(), momentum=0.9)
    copied, line = copy.deepcopy(optimizer), here()
    del optimizer
    assert models(detector) == [("SGD with its parameters", 256, line)]
    del copied


def test_a_line_that_makes_a_model_and_its_optimizer_makes_each_apart(detector: ds.LeakDetector) -> None:
    kept = []
    for _ in range(20):
        model = nn.Linear(64, 64); optimizer = torch.optim.SGD(model.parameters())  # fmt: skip  # noqa: E702
        kept.append((model, optimizer))
        detector.mark("step")
    [leak] = [leak for leak in detector.report(of_program=True).leaks if leak.kind == "model"]
    assert leak.trend is not None
    assert (leak.count, leak.trend.count_per_pass) == (20, pytest.approx(1.0))


def test_of_two_optimizers_of_a_model_that_is_gone_the_first_one_has_it(detector: ds.LeakDetector) -> None:
    model = nn.Linear(8, 8, bias=False)
    first, line = torch.optim.SGD(model.parameters(), momentum=0.9), here()
    second = torch.optim.Adam(model.parameters())
    del model
    assert models(detector) == [("SGD with its parameters", 256, line)]
    del first
    assert [name for name, _, _ in models(detector)] == ["Adam with its parameters"]
    del second


def test_the_state_and_gradients_of_what_was_there_before_are_not_told() -> None:
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1))
    with ds.LeakDetector() as detector:
        (weight * 2).sum().backward()
        optimizer.step()
        assert weight.grad is not None
        assert tensors(detector) == []


def test_what_a_hook_of_a_gradient_makes_is_born_in_the_hook(detector: ds.LeakDetector) -> None:
    kept = []
    model = nn.Linear(8, 8, bias=False)
    model.weight.register_hook(lambda gradient: kept.append(gradient * 2))
    line = here() - 1
    model(torch.ones(2, 8)).sum().backward()
    assert tensors(detector) == [(line, 256)]
    assert len(kept) == 1


def test_models_that_grow_are_told_with_their_bytes_a_pass(detector: ds.LeakDetector) -> None:
    kept = []
    for _ in range(30):
        kept.append(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
        detector.mark("step")
    report = detector.report(of_program=True)
    assert str(report).splitlines()[0] == "1 leak, 30 models, 998.4 kB"
    assert "(list, +1 model and 33.3 kB a pass)" in str(report.retainers[0])
    [leak] = report.leaks
    assert (leak.kind, leak.sure, leak.count, leak.nbytes) == ("model", "certain", 30, 30 * 2 * (64 * 64 + 64) * 4)
    assert leak.trend is not None
    assert leak.trend.count_per_pass == pytest.approx(1.0)
    assert leak.trend.nbytes_per_pass == pytest.approx(2 * (64 * 64 + 64) * 4)
    assert "local 'kept'" in leak.holder


@pytest.mark.long
def test_a_cycle_of_models_is_a_cycle(detector: ds.LeakDetector) -> None:
    gc.disable()
    try:
        for _ in range(3):
            model = nn.Linear(256, 256)
            model.hook = [model]
        del model
        [leak] = detector.report(of_program=True).leaks
        assert (leak.kind, leak.count) == ("cycle", 3)
    finally:
        gc.enable()


@pytest.mark.unmeasured
@pytest.mark.long
def test_one_model_in_a_cycle_with_its_hook_is_no_leak_of_a_program(detector: ds.LeakDetector) -> None:
    class Recording(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(200, 200)
            self.body.register_forward_hook(lambda *_: setattr(self, "seen", True))

    gc.disable()
    try:
        for _ in range(2):
            assert detector.report(of_program=True, object_limit=10**8).leaks == ()
            Recording()
        [leak] = detector.report(of_program=True, object_limit=10**8).leaks
    finally:
        gc.enable()
        gc.collect()
    assert (leak.kind, leak.count) == ("cycle", 2)


def test_what_scripted_modules_hold_is_told(detector: ds.LeakDetector) -> None:
    kept = []
    for _ in range(20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept.append(torch.jit.script(nn.Linear(64, 64)))
        detector.mark("step")
    [leak] = [leak for leak in detector.report().leaks if leak.kind in ("model", "growth")]
    assert (leak.count, leak.nbytes) == (20, 20 * (64 * 64 + 64) * 4)
    assert "local 'kept'[0]" in leak.holder


def test_what_a_model_is_given_after_it_was_made_is_told_by_itself_where_it_is_much(detector: ds.LeakDetector) -> None:
    model, line = Block(), here()
    for _ in range(20):
        model.layers.append(nn.Linear(64, 64))
        detector.mark("step")
    assert models(detector)[0] == ("Block", 2 * LINEAR + 32, line)
    assert models(detector)[1:] == [("Linear(64, 64)", (64 * 64 + 64) * 4, line + 2)] * 20
    [leak] = detector.report(of_program=True).leaks
    assert (leak.kind, leak.sure, leak.count, leak.nbytes) == ("growth", "likely", 20, 20 * (64 * 64 + 64) * 4)
    assert "local 'model'.layers[" in leak.holder
    assert leak.explanation.startswith("The model that holds them grows: 20 modules were added to it")


def test_gradients_and_state_of_added_parameters_count_with_their_model(detector: ds.LeakDetector) -> None:
    model, line = nn.ParameterList([nn.Parameter(torch.ones(8))]), here()
    for _ in range(10):
        model.append(nn.Parameter(torch.ones(8)))
    for parameter in model:
        parameter.sum().backward()
    told = [(record.nbytes, record.site and record.site.line) for record in detector.take_snapshot()]
    assert sorted(told) == sorted([(32 + 11 * 32, line), *[(32, line + 2)] * 10])


@pytest.mark.parametrize("change", ["exchange", "few", "taken out"])
def test_other_changes_of_a_model_are_no_growth(detector: ds.LeakDetector, change: str) -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)])
    for number in range(20):
        if change == "exchange":
            model[number % 10] = nn.Linear(8, 8)
        elif change == "few":
            model.register_buffer(f"mask{number % 7}", torch.ones(8))
        else:
            model.append(nn.Linear(8, 8))
            model.pop(-1)
        detector.mark("step")
    [record] = detector.take_snapshot()
    assert record.kind == "Sequential"
    assert detector.report(of_program=True).leaks == ()
    del model
