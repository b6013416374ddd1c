"""Memory that existed before makes no birth, whatever way a tensor came to it."""

import copy
import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from disposescope.leaks import LeakDetector
from tests.leaks.births import op_of


class Own(torch.Tensor):
    pass


@pytest.fixture
def old() -> Any:
    return torch.arange(24.0).reshape(4, 6).clone()


@pytest.fixture
def detector(old: Any) -> Iterator[LeakDetector]:
    with LeakDetector() as detector:
        yield detector


def told(detector: LeakDetector) -> list[tuple[str, int]]:
    return sorted((op_of(seen) or "", seen.nbytes) for seen in detector.memory() if seen.kind == "torch.Tensor")


def test_hooks_on_a_tensor_that_was_there_are_no_birth(old: Any, detector: LeakDetector) -> None:
    old.requires_grad_()
    old.register_hook(abs)
    old._backward_hooks = None
    assert told(detector) == []


def test_a_storage_that_was_there_is_not_born_with_another_tensor(old: Any, detector: LeakDetector) -> None:
    kept = [
        torch.empty(0).set_(old.untyped_storage()),
        torch.Tensor(old.untyped_storage()),
        copy.copy(old),
    ]
    assert told(detector) == []
    assert all(tensor.untyped_storage() is old.untyped_storage() for tensor in kept)


def test_a_storage_that_nobody_has_is_born_with_its_first_tensor(old: Any, detector: LeakDetector) -> None:
    file = io.BytesIO()
    torch.save([old, old[1:]], file)
    file.seek(0)
    kept = [torch.load(file, weights_only=True), torch.Tensor(torch.UntypedStorage(64))]
    assert [nbytes for _, nbytes in told(detector)] == [64, 96]
    assert len(kept) == 2


def test_memory_of_an_array_is_no_birth_of_a_tensor(detector: LeakDetector) -> None:
    array = np.ones(5)
    kept = [torch.from_numpy(array), torch.as_tensor(array), torch.frombuffer(array, dtype=torch.float64)]
    assert told(detector) == []
    assert len(kept) == 3


def test_memory_of_a_buffer_is_a_birth(detector: LeakDetector) -> None:
    kept = [
        torch.frombuffer(bytearray(8), dtype=torch.float32),
        torch.frombuffer(buffer=memoryview(bytearray(4)), dtype=torch.int8),
    ]
    assert told(detector) == [("frombuffer", 4), ("frombuffer", 8)]
    assert len(kept) == 2


def test_a_gradient_is_one_birth(detector: LeakDetector) -> None:
    weight = torch.nn.Parameter(torch.ones(6))
    (weight * 2).sum().backward()
    gradient = weight.grad
    assert gradient is not None
    kept = [gradient.detach(), gradient.data, gradient[1:], weight.detach()]
    assert sorted(told(detector)) == [("backward", 24), ("ones", 24)]
    assert len(kept) == 4


def test_a_few_elements_of_a_buffer_count_with_all_that_they_keep(detector: LeakDetector) -> None:
    kept = [torch.frombuffer(bytearray(4_000_000), dtype=torch.uint8, count=10)]
    [seen] = [seen for seen in detector.memory() if seen.kind == "torch.Tensor"]
    assert seen.nbytes == 4_000_000
    [leak] = detector.report().leaks
    assert (leak.kind, leak.nbytes, leak.used_nbytes) == ("view", 4_000_000, 10)
    kept.clear()
    assert told(detector) == []


def test_elements_of_a_buffer_that_the_program_holds_too_count_by_themselves(detector: LeakDetector) -> None:
    content, view = bytearray(4000), memoryview(bytearray(8000))
    kept = [torch.frombuffer(buffer, dtype=torch.uint8, count=10) for buffer in (content, view)]
    assert told(detector) == [("frombuffer", 10), ("frombuffer", 10)]
    assert len(content) + len(view) + len(kept) == 12_002


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_memory_of_the_parent_is_not_born_in_a_forked_child(old: Any, detector: LeakDetector) -> None:
    last = torch.ones(3)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        kept = [old.detach(), last.detach(), torch.zeros(2)]
        os.write(writing, repr([nbytes for _, nbytes in told(detector)]).encode() + b"." * len(kept))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"[8]..."


def test_views_of_a_subclass_are_no_births(old: Any, detector: LeakDetector) -> None:
    own = old.as_subclass(Own)
    kept = [
        *torch.broadcast_tensors(own, own[:1]),
        *torch.meshgrid([own[0], own[1]], indexing="ij"),
        *torch.atleast_3d(own, own),
    ]
    assert told(detector) == []
    assert {type(tensor) for tensor in kept} == {Own}


def test_a_function_of_the_program_that_returns_what_it_keeps_makes_no_birth(old: Any, detector: LeakDetector) -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return old

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    result = Keeps.apply(torch.ones(4, 6, requires_grad=True))
    assert ("apply", 96) not in told(detector)
    assert result.shape == (4, 6)


def test_gradients_that_operators_make_are_no_births(old: Any, detector: LeakDetector) -> None:
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.ops.aten.mul.Tensor(x, 2)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            made.append(torch.ops.aten.mul.Tensor(gradient, 2))
            return made[-1]

    made: list[Any] = []
    old.requires_grad_()
    Doubles.apply(old).sum().backward()
    assert ("mul.Tensor", 96) not in told(detector)
    assert len(made) == 1


def test_parameters_that_get_memory_are_no_births(old: Any, detector: LeakDetector) -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(3, 3)
    module.to_empty(device="cpu")
    assert told(detector) == []


def test_what_wraps_tensors_has_no_memory_of_its_own(old: Any, detector: LeakDetector) -> None:
    own = old.as_subclass(Own)
    nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged)
    twice = nested * 2
    assert [nbytes for op, nbytes in told(detector) if "mul" in op] == [twice.values().nbytes]
    more = own * 2
    assert ("mul", more.nbytes) in told(detector)


def test_an_interrupt_is_not_lost(old: Any, detector: LeakDetector, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(storage: Any) -> Any:
        raise KeyboardInterrupt

    meta = torch.ones(3, device="meta")
    with monkeypatch.context() as patched:
        patched.setattr(torch.UntypedStorage, "device", property(interrupt), raising=False)
        with pytest.raises(KeyboardInterrupt):
            meta.clone()
    assert meta.clone().shape == (3,)


def test_batches_of_a_worker_are_seen_outside_of_every_scope() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    with LeakDetector() as detector:
        kept = list(torch.utils.data.DataLoader(data, batch_size=4, num_workers=1))
        found = [seen.nbytes for seen in detector.memory() if seen.kind == "torch.Tensor"]
    assert found == [16] * 3
    assert len(kept) == 3
