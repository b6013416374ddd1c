"""What ``Optimizer.zero_grad`` does is told to no mode of ours while a detector is open, and is as ever."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.tensors.torch.births import LOCAL
from disposescope.tensors.torch.watching import CALLS, ZEROING

zero_grad = torch.optim.Optimizer.zero_grad


@pytest.fixture(autouse=True)
def by_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only there it matters: calls that are seen by themselves are not told to a mode."""
    LeakDetector().__enter__().__exit__(None, None, None)
    monkeypatch.setattr(CALLS, "is_possible", False)


def model_and_optimizer() -> tuple[Any, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    return model, optimizer


class Counting(torch.overrides.TorchFunctionMode):
    """A mode of somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.depths: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.depths.append(torch._C._len_torch_function_stack())
        return func(*args, **(kwargs or {}))


def test_gradients_are_zeroed_and_the_mode_is_there_again() -> None:
    for options in ({}, {"set_to_none": False}):
        model, optimizer = model_and_optimizer()
        with LeakDetector() as detector:
            depth = torch._C._len_torch_function_stack()
            optimizer.zero_grad(**options)
            assert torch._C._len_torch_function_stack() == depth == 1
            kept = torch.ones(5)
            assert [record.nbytes for record in detector.take_snapshot()] == [20]
        grads = [parameter.grad for parameter in model.parameters()]
        assert all(grad is None if not options else not grad.any() for grad in grads)
        assert len(kept) == 5


def test_the_modes_of_others_are_told_as_ever() -> None:
    counts = []
    for detector in (None, LeakDetector()):
        _, optimizer = model_and_optimizer()
        if detector is not None:
            detector.__enter__()
        with Counting() as mode:
            optimizer.zero_grad()
        counts.append(mode.count)
        if detector is not None:
            assert set(mode.depths) == {0}, "ours was not beneath"
            detector.__exit__(None, None, None)
    assert counts[0] == counts[1] > 0


def test_the_mode_comes_back_when_it_raises_and_inside_of_a_scope() -> None:
    _, optimizer = model_and_optimizer()
    with LeakDetector(), ds.dispose_scope() as scope:
        with pytest.raises(TypeError):
            optimizer.zero_grad(no_such_option=True)
        optimizer.zero_grad()
        assert not LOCAL.here.stepping
        torch.ones(3)
        kept = torch.ones(4)
        assert len(scope) == 1
        assert len(kept) == 4


def test_the_method_is_its_own_again_when_no_detector_is_open() -> None:
    signature = inspect.signature(zero_grad)
    with LeakDetector():
        with LeakDetector():
            assert torch.optim.Optimizer.zero_grad is not zero_grad
            assert inspect.signature(torch.optim.Optimizer.zero_grad) == signature
        assert torch.optim.Optimizer.zero_grad is not zero_grad
    assert torch.optim.Optimizer.zero_grad is zero_grad


def test_what_somebody_else_put_over_it_stays() -> None:
    _, optimizer = model_and_optimizer()
    called = []
    with LeakDetector():
        ours = torch.optim.Optimizer.zero_grad

        def theirs(self: Any, *args: Any) -> None:
            called.append(self)
            ours(self, *args)

        torch.optim.Optimizer.zero_grad = theirs
    try:
        optimizer.zero_grad()
        with LeakDetector():
            optimizer.zero_grad()
        assert torch.optim.Optimizer.zero_grad is theirs
        assert called == [optimizer] * 2
    finally:
        torch.optim.Optimizer.zero_grad = ours
        ZEROING.end()
    assert torch.optim.Optimizer.zero_grad is zero_grad
