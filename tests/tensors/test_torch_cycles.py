"""Cycles through PyTorch's tensors are said to wait for the garbage collector.

That is said exactly where it frees them.
"""

import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.multiprocessing.reductions import StorageWeakRef

import disposescope as ds


class KeepsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.kept = [x * 2]
        return ctx.kept[0]


class CallsMethod(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, x: Any, *parameters: Any) -> Any:
        ctx.function = function
        return function(x)


def result_on_its_context() -> Any:
    return KeepsResult.apply(torch.ones(100, requires_grad=True))


def method_on_a_context() -> Any:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(100))
            self.solution = CallsMethod.apply(self.forward, torch.ones(100), self.weight)

        def forward(self, x: Any) -> Any:
            return self.weight * x

    return Model().solution


def hook_of_a_leaf() -> Any:
    weight = torch.ones(100, requires_grad=True)
    weight.register_hook(lambda grad: weight * grad)
    return weight


def hook_of_a_result() -> Any:
    result = torch.ones(100, requires_grad=True) * 2
    result.register_hook(lambda grad: result * grad)
    return result


def attribute_of_itself() -> Any:
    result = torch.ones(100, requires_grad=True) * 2
    result.own = [result]
    return result


def gradients_with_their_graph() -> Any:
    model = torch.nn.Linear(10, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(torch.ones(1, 10)).tanh().sum().backward(create_graph=True)
    return model.weight


def in_an_ordered_dict() -> Any:
    result = torch.ones(100, requires_grad=True) * 2
    parts = OrderedDict(result=result)
    result.parts = parts
    return result


def beside_a_cycle_through_an_ordered_dict() -> Any:
    kept = torch.ones(100)
    around = torch.ones(1)
    around.parts = OrderedDict(kept=kept, around=around)
    return kept


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        result_on_its_context,
        method_on_a_context,
        hook_of_a_leaf,
        hook_of_a_result,
        attribute_of_itself,
        gradients_with_their_graph,
        in_an_ordered_dict,
        beside_a_cycle_through_an_ordered_dict,
    ],
)
def test_a_cycle_is_said_to_be_collected_where_it_is(make: Callable[[], Any]) -> None:
    gc.collect()
    with ds.LeakDetector() as detector:
        memory = StorageWeakRef(make().untyped_storage())
        cycles = [leak for leak in detector.report().leaks if leak.kind == "cycle"]
    assert not memory.expired()
    gc.collect()
    waits = ["until the next gc.collect()" in leak.holder for leak in cycles]
    assert waits, "no cycle was told"
    assert set(waits) == {memory.expired()}


@pytest.mark.long
def test_what_only_a_hook_of_a_graph_keeps_is_not_collected() -> None:
    with ds.LeakDetector() as detector:
        hook_of_a_result()
        [leak] = [leak for leak in detector.report().leaks if leak.kind == "cycle"]
    assert leak.holder.endswith("never collected, because a graph holds a part of it")
    assert leak.remedy == "refer weakly to tensors in hooks and functions of a graph"
