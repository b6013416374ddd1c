"""Calls of PyTorch go on as ever under a leak detector, named by what the program calls."""

import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.tensors.torch.exclusions import _hands_out_its_result
from tests.leaks.births import op_of

KEPT: list[Any] = []
HASHED_BEFORE = {torch.ones: "ones", torch.relu: "relu", torch.Tensor.add: "add", torch.nn.functional.linear: "linear"}


@pytest.fixture
def detector() -> Iterator[LeakDetector]:
    with LeakDetector() as detector:
        yield detector


def ops_of(detector: LeakDetector) -> list[str | None]:
    return [op_of(seen) for seen in detector.memory() if seen.kind == "torch.Tensor"]


def test_functions_keep_their_hash_while_a_detector_is_open(detector: LeakDetector) -> None:
    assert HASHED_BEFORE[torch.ones] == "ones"
    assert HASHED_BEFORE[torch.relu] == "relu"
    assert HASHED_BEFORE[torch.Tensor.add] == "add"
    assert HASHED_BEFORE[torch.nn.functional.linear] == "linear"
    assert torch.overrides.get_testing_overrides().keys() >= {torch.relu, torch.Tensor.add}


def test_every_way_to_call_a_function_is_seen(detector: LeakDetector) -> None:
    x = torch.ones(4)
    kept = [
        torch.relu(x),
        torch.relu(input=x),
        torch.relu(*[x]),
        x.relu(),
        torch.Tensor.relu(x),
        x.relu.__call__(),
        *map(torch.relu, [x]),
        *map(x.mul, [x]),
        x * x,
        2 * x,
        x[x > 0],
        x[[0, 1]],
    ]
    operators = ["mul", "mul", "__getitem__", "__getitem__"]
    assert ops_of(detector) == ["ones", *["relu"] * 5, "__call__", None, None, *operators]
    assert len(kept) == 12


def test_constructors_are_seen(detector: LeakDetector) -> None:
    class Own(torch.Tensor):
        def __new__(cls, *args: Any) -> Any:
            return super().__new__(cls, *args)

    kept = [torch.Tensor(3), torch.Tensor([1.0, 2.0]), torch.FloatTensor(4), torch.LongTensor([1]), Own(2)]
    assert [(op_of(seen), seen.nbytes) for seen in detector.memory()] == [
        ("Tensor", 12),
        ("Tensor", 8),
        ("FloatTensor", 16),
        ("LongTensor", 8),
        ("__new__", 8),
    ]
    assert len(kept) == 5


def test_what_goes_wrong_goes_wrong_as_ever(detector: LeakDetector) -> None:
    with pytest.raises(TypeError, match="must be Tensor, not int"):
        torch.relu(1)
    with pytest.raises(TypeError):
        torch.relu()
    with pytest.raises(TypeError):
        torch.relu(torch.ones(1), nothing=1)
    with pytest.raises(RuntimeError, match="size"):
        torch.ones(2) + torch.ones(3)
    with pytest.raises(IndexError):
        torch.ones(2)[5]
    with pytest.raises(TypeError):
        torch.ones(2).cos(1)


def test_a_function_that_calls_itself_without_end_is_stopped(detector: LeakDetector) -> None:
    class Endless:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.relu(Endless())

    with pytest.raises(RecursionError):
        torch.relu(Endless())


def test_others_see_only_the_calls_of_the_program() -> None:
    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func)
            return func(*args, **(kwargs or {}))

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    own = torch.ones(3).as_subclass(Own)
    seen: list[list[Any]] = []
    for detected in (False, True):
        called: list[Any] = []
        with LeakDetector() if detected else ds.dispose_scope(), Spy():
            kept = [torch.ones(3) + 1, torch.max(torch.ones(2, 2), dim=0), own * 2, torch.stack([own, torch.ones(3)])]
        seen.append(called)
        assert len(kept) == 4
    assert seen[0] == seen[1] != []


def test_operators_that_are_looked_up_by_name_are_seen(detector: LeakDetector) -> None:
    kept = [torch.ops.aten.relu(torch.ones(3)), torch.ops.aten.neg.default(torch.ones(3))]
    assert ops_of(detector) == ["relu", "default"]
    assert len(kept) == 2


def test_operators_take_arguments_in_every_way(detector: LeakDetector) -> None:
    x = torch.ones(3)
    assert torch.ops.aten.add(x, other=x, alpha=2)[0] == 3
    assert torch.ops.aten.add.Tensor(self=x, other=x)[0] == 2
    assert len(torch.ops.aten.cat.default([x] * 3, dim=0)) == 9
    assert torch.ops.aten.sum.dim_IntList(x, [0]) == 3
    with pytest.raises(RuntimeError, match="aten::add"):
        torch.ops.aten.add.Tensor(x)
    with pytest.raises(RuntimeError):
        torch.ops.aten.relu(x, nothing=1)
    assert ops_of(detector) == ["ones"]


def test_what_is_compiled_while_a_detector_is_open_has_operators(detector: LeakDetector) -> None:
    def program(x: Any) -> Any:
        return torch.ops.aten.relu(x) + torch.ops.aten.neg.default(x)

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), program(torch.ones(3)))


def test_births_in_a_scope_are_reported_with_their_line_at_the_end_of_the_call(detector: LeakDetector) -> None:
    with ds.dispose_scope() as scope:
        kept = torch.ones(3)
        more = torch.ops.aten.relu.default(torch.ones(4))
        snapshot = detector.take_snapshot()
        lines = {record.shape: record.site.line for record in snapshot if record.site is not None}
        assert lines[4,] == lines[3,] + 1
        scope.move_to_outer([kept, more])


def test_what_no_call_returns_is_reported_with_its_own_line_and_scope(detector: LeakDetector) -> None:
    with ds.dispose_scope("step") as scope:
        kept = scope.move_to_outer(torch.from_numpy(np.ones(5)))
        line = sys._getframe().f_lineno - 1
        more = torch.ones(2)
    [record] = [one for one in detector.take_snapshot() if one.kind == "torch.Tensor" and one.state == "alive"]
    assert record.site is not None
    assert (record.site.line, record.scope, record.shape) == (line, "step", (5,))
    assert len(kept) == 5
    assert ds.is_disposed(more)


def test_what_is_recorded_late_has_as_many_frames_as_are_wanted() -> None:
    def inner() -> Any:
        return torch.from_numpy(np.ones(3))

    with LeakDetector(frames=2) as detector, ds.dispose_scope() as scope:
        kept = scope.move_to_outer(inner())
    [record] = [one for one in detector.take_snapshot() if one.kind == "torch.Tensor"]
    assert [site.function.rpartition(".")[2] for site in record.frames] == ["inner", sys._getframe().f_code.co_name]
    assert len(kept) == 3


def test_memory_of_an_array_is_reported_once_and_its_holder_is_found(detector: LeakDetector) -> None:
    with ds.dispose_scope() as scope:
        KEPT.append(scope.move_to_outer(torch.from_numpy(np.ones(500))))
        KEPT.append(scope.move_to_outer(torch.from_numpy(np.ones(600)[50:])))
    KEPT.append(torch.from_numpy(np.ones(700)))
    KEPT.append(np.ones(800))
    try:
        leaks = [leak for leak in detector.report().leaks if leak.holder.find("KEPT") >= 0]
        found = sorted((leak.records[0].kind, leak.nbytes, leak.holder.rpartition(".")[2]) for leak in leaks)
        assert found == [
            ("numpy.ndarray", 5600, "KEPT[2]"),
            ("numpy.ndarray", 6400, "KEPT[3]"),
            ("torch.Tensor", 4000, "KEPT[0]"),
            ("torch.Tensor", 4400, "KEPT[1]"),
        ]
    finally:
        KEPT.clear()


def test_a_budget_is_kept_while_a_detector_is_open(detector: LeakDetector) -> None:
    with pytest.raises(MemoryError, match="budget"), ds.dispose_scope(budget=1000):
        torch.ones(10_000)
    with ds.dispose_scope(budget=1000):
        assert float(torch.ones(10).sum()) == 10


def test_memory_that_a_tensor_is_given_is_seen(detector: LeakDetector) -> None:
    source = torch.ones(5)
    tensor = torch.empty(0)
    tensor.set_(source)
    tensor.set_(torch.UntypedStorage(64))
    assert sorted(seen.nbytes for seen in detector.memory()) == [20, 64]


def test_a_subclass_that_takes_items_is_itself_again() -> None:
    class Own(torch.Tensor):
        pass

    own = torch.ones(3).as_subclass(Own)
    with LeakDetector() as detector:

        class Later(torch.Tensor):
            pass

        later = torch.ones(4).as_subclass(Later)
        kept = [own[own > 0], later[later > 0]]
        assert ops_of(detector) == ["ones", "__getitem__", "__getitem__"]
    with LeakDetector() as detector:
        assert later[0] == 1
    assert len(kept) == 2
    assert (later[1:].sum(), own[1:].sum()) == (3, 2)


def test_threads_are_seen_that_ran_before() -> None:
    go, done, kept = threading.Event(), threading.Event(), []

    def run() -> None:
        go.wait(500)
        kept.append(torch.ones(6))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    with LeakDetector() as detector:
        go.set()
        done.wait(500)
        thread.join()
        assert ops_of(detector) == ["ones"]
    assert len(kept) == 1


def test_a_tensor_that_each_run_of_a_cuda_graph_hands_out_belongs_to_the_graph():
    """PyTorch makes its tensors for the results once, and has them in a table of its own."""
    made = []

    def graph(x):
        if not made:
            made.append(torch.empty_like(x))
            torch._C._add_cached_tensor(made[0])
        return (made[0].copy_(x.sin()),)

    compiled = torch.compile(lambda x: x.sin(), backend=lambda _graph, _inputs: graph)
    torch._C._set_cached_tensors_enabled(True)
    try:
        for value in (1.0, 2.0, 3.0):
            with ds.dispose_scope() as scope:
                result = compiled(torch.full((4,), value))
                assert result is made[0]
                assert result not in scope
                copied = scope.move_to_outer(result.clone())
            assert torch.equal(copied, torch.full((4,), value).sin())
        assert not ds.is_disposed(made[0])
    finally:
        torch._C._remove_cached_tensor(made[0])
        torch._C._set_cached_tensors_enabled(False)


def test_an_optimizer_and_what_is_compiled_are_let_alone(detector: LeakDetector) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert ops_of(detector) == []
    compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")
    kept = compiled(torch.ones(3))
    # In releases whose call of compiled code does not have the result in a variable, it is seen as
    # it is made.
    sees_calls = _hands_out_its_result(importlib.import_module("torch._dynamo.eval_frame"))
    [op] = ops_of(detector)
    assert (op == "compiled") == sees_calls
    assert kept.shape == (3,)
