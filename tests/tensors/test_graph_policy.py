"""``dispose_scope(graph=...)``: what happens to the graph of a tensor that leaves its scope."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these are graphs of PyTorch")

import disposescope as ds


def leaf() -> Any:
    return torch.arange(1.0, 5.0, requires_grad=True)


def computed(weight: Any) -> Any:
    return (weight * weight).exp().sum()


@pytest.fixture
def outer() -> Iterator[ds.DisposeScope]:
    with ds.dispose_scope("outer") as scope:
        yield scope


@pytest.mark.parametrize("option", ["Keep", "", None, 0, True, "raise"])
def test_an_unknown_option_is_refused_by_name(option: Any) -> None:
    with pytest.raises(ValueError, match="graph must be") as caught:
        ds.dispose_scope(graph=option)
    assert repr(option) in str(caught.value)


def test_the_option_shows_in_the_repr_only_where_it_is_not_the_default() -> None:
    assert "graph" not in repr(ds.dispose_scope("a"))
    assert repr(ds.dispose_scope("a", graph="error")) == "<DisposeScope 'a' unopened, graph='error'>"
    with ds.dispose_scope(graph="detach") as scope:
        assert repr(scope) == "<DisposeScope open, graph='detach', owns 0, 0 bytes>"


# ---------------------------------------------------------------------- keep


def test_a_kept_graph_runs_backward_after_its_scope_and_is_counted(outer: ds.DisposeScope) -> None:
    weight, twin = leaf(), leaf()
    computed(twin).backward()
    ds.reset_statistics()
    with ds.dispose_scope() as scope:
        middle = weight * weight
        loss = scope.move_to_outer(middle.exp().sum())
        scope.move_to_outer(weight.detach() * 2)
    assert ds.is_disposed(middle)
    assert ds.statistics().graphs_kept == 1
    assert ds.graph_nbytes(loss) == 32
    loss.backward()
    assert torch.equal(weight.grad, twin.grad)


# ---------------------------------------------------------------------- detach


def test_detach_leaves_the_same_object_with_the_same_storage_and_no_history(outer: ds.DisposeScope) -> None:
    weight = leaf()
    ds.reset_statistics()
    with ds.dispose_scope(graph="detach") as scope:
        result = weight.exp()
        before, values = result.data_ptr(), result.tolist()
        assert scope.move_to_outer(result) is result
        assert result in outer
    assert result.grad_fn is None
    assert not result.requires_grad
    assert result.is_leaf
    assert (result.data_ptr(), result.tolist()) == (before, values)
    assert ds.graph_nbytes(result) == 0
    assert ds.statistics().graphs_kept == 0


def test_detach_takes_views_and_leaves_their_bases_as_they_are(outer: ds.DisposeScope) -> None:
    weight = leaf()
    with ds.dispose_scope("inner", graph="detach") as scope:
        base = outer.attach(weight * 3)
        view = base[1:3]
        scope.move_to_outer(view)
        assert base.grad_fn is not None
    assert view.grad_fn is None
    assert view.data_ptr() == base.data_ptr() + 4
    base.sum().backward()
    assert weight.grad.tolist() == [3.0] * 4


def test_detach_takes_nothing_from_a_graph_that_saved_the_tensor(outer: ds.DisposeScope) -> None:
    weight, twin = leaf(), leaf()
    expected = torch.autograd.grad((twin.exp() * twin.exp()).sum(), twin, create_graph=True)[0]
    with ds.dispose_scope("inner", graph="detach") as scope:
        middle = weight.exp()
        loss = outer.attach((middle * middle).sum())
        scope.move_to_outer(middle)
    assert middle.grad_fn is None
    first = torch.autograd.grad(loss, weight, create_graph=True)[0]
    assert torch.allclose(first, expected)
    second = torch.autograd.grad(first.sum(), weight)[0]
    assert torch.allclose(second, torch.autograd.grad(expected.sum(), twin)[0])


def test_detach_frees_what_only_the_graph_held(outer: ds.DisposeScope) -> None:
    gone: list[str] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, features: Any) -> Any:
            ctx.sentinel = Sentinel()
            return features * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    class Sentinel:
        def __del__(self) -> None:
            gone.append("gone")

    with ds.dispose_scope(graph="detach") as scope:
        result = Watched.apply(leaf())
        assert not gone
        scope.move_to_outer(result)
        assert gone


def test_a_tensor_that_retains_its_gradient_is_detached_and_a_view_that_does_is_refused(outer: ds.DisposeScope) -> None:
    with ds.dispose_scope(graph="detach") as scope:
        retaining = leaf() * 2
        retaining.retain_grad()
        scope.move_to_outer(retaining)
        assert retaining.grad_fn is None
        plain, base = leaf() * 2, leaf() * 2
        view = base[:2]
        view.retain_grad()
        with pytest.raises(ds.GraphRetainedError, match="retain_grad"):
            scope.move_to_outer([plain, retaining, view])
        # All or nothing: what had been detached before the view was met is as it was.
        assert plain.grad_fn is not None
        assert plain in scope
        assert view in scope
        plain.sum().backward()


def test_detach_is_for_tensors_with_a_history_only(outer: ds.DisposeScope) -> None:
    with ds.dispose_scope(graph="detach") as scope:
        weight = leaf()
        plain = torch.ones(2)
        scope.move_to_outer((weight, plain))
    assert weight.requires_grad
    assert weight.is_leaf


# ---------------------------------------------------------------------- error


def test_error_names_the_tensor_the_bytes_the_ops_and_the_line_and_changes_nothing(outer: ds.DisposeScope) -> None:
    with ds.dispose_scope("step", graph="error") as scope:
        plain = torch.ones(3)
        loss = computed(leaf())
        with pytest.raises(ds.GraphRetainedError) as caught:
            scope.move_to_outer([plain, loss])
        line = (
            test_error_names_the_tensor_the_bytes_the_ops_and_the_line_and_changes_nothing.__code__.co_firstlineno + 5
        )
        error = caught.value
        assert (error.nbytes, error.nodes, error.first_op, error.last_op) == (32, 4, "MulBackward0", "SumBackward0")
        assert f"test_graph_policy.py:{line} in " in error.site
        for told in (
            "scope 'step'",
            "torch.Tensor () torch.float32",
            "32 bytes",
            "4 nodes",
            "MulBackward0",
            "SumBackward0",
            error.site,
        ):
            assert told in str(error)
        assert plain in scope
        assert loss in scope
        assert loss.grad_fn is not None
        assert not any(isinstance(value, torch.Tensor) for value in vars(error).values())
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))
        loss.backward()


def test_error_names_the_line_of_birth_if_it_is_known(outer: ds.DisposeScope) -> None:
    with ds.LeakDetector(), ds.dispose_scope(graph="error") as scope:
        here = test_error_names_the_line_of_birth_if_it_is_known.__code__.co_firstlineno
        loss = leaf() * 2
        with pytest.raises(ds.GraphRetainedError) as caught:
            scope.move_to_outer(loss)
    assert f":{here + 3} in " in caught.value.site
    assert f"born at {caught.value.site}" in str(caught.value)
    assert f":{here + 5} in " in str(caught.value)
    with torch.autograd.set_detect_anomaly(True), ds.dispose_scope(graph="error") as scope:
        loss = leaf() * 2
        with pytest.raises(ds.GraphRetainedError) as caught:
            scope.move_to_outer(loss)
    assert f":{here + 10} in " in caught.value.site


def test_error_lets_tensors_without_a_graph_pass(outer: ds.DisposeScope) -> None:
    with ds.dispose_scope(graph="error") as scope:
        loss = computed(leaf())
        kept = scope.move_to_outer({"value": loss.detach(), "leaf": leaf(), "number": loss.item()})
        with torch.no_grad():
            scope.move_to_outer(computed(leaf()))
    assert not ds.is_disposed(kept["value"])


# ---------------------------------------------------------------------- every way out


@pytest.mark.parametrize("way", ["move_to_outer", "move_to", "detach", "module move_to_outer", "module detach"])
def test_every_verb_that_lets_something_out_asks(way: str, outer: ds.DisposeScope) -> None:
    def leave(scope: ds.DisposeScope, tree: Any) -> Any:
        if way == "move_to":
            return scope.move_to(outer, tree)
        if way.startswith("module"):
            return getattr(ds, way.removeprefix("module "))(tree)
        return getattr(scope, way)(tree)

    with ds.dispose_scope(graph="error") as scope:
        loss = computed(leaf())
        with pytest.raises(ds.GraphRetainedError):
            leave(scope, loss)
        assert loss in scope
    with ds.dispose_scope(graph="detach") as scope:
        result = leave(scope, [computed(leaf())])[0]
        assert result not in scope
        assert result.grad_fn is None


def test_what_stays_or_belongs_to_others_is_not_asked(outer: ds.DisposeScope) -> None:
    foreign = computed(leaf())
    with ds.dispose_scope(graph="error") as scope:
        loss = computed(leaf())
        scope.dispose_everything_but(loss)
        scope.move_to_outer(foreign)
        assert loss in scope
        outer.attach(loss)
    assert loss.grad_fn is not None
    assert foreign.grad_fn is not None


def test_decorated_functions_of_every_sort_ask() -> None:
    @ds.dispose_scope(graph="detach")
    def function() -> Any:
        return computed(leaf())

    @ds.dispose_scope(graph="detach")
    def generator() -> Iterator[Any]:
        yield computed(leaf())

    @ds.dispose_scope(graph="detach")
    async def coroutine() -> Any:
        return computed(leaf())

    @ds.dispose_scope(graph="error")
    def refused() -> Any:
        return computed(leaf())

    with ds.dispose_scope():
        assert function().grad_fn is None
        assert next(iter(generator())).grad_fn is None
        assert asyncio.run(coroutine()).grad_fn is None
        with pytest.raises(ds.GraphRetainedError):
            refused()


def test_the_members_of_a_composite_are_asked_one_by_one(outer: ds.DisposeScope) -> None:
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    ds.register_kind(Pair, members=lambda pair: {"left": pair.left, "right": pair.right})
    with ds.dispose_scope(graph="detach") as scope:
        pair = scope.move_to_outer(scope.attach(Pair(torch.ones(2), leaf() * 2)))
    assert pair.right.grad_fn is None
    with ds.dispose_scope(graph="error") as scope:
        pair = scope.attach(Pair(torch.ones(2), leaf() * 2))
        with pytest.raises(ds.GraphRetainedError):
            scope.move_to_outer(pair)
        assert pair in scope


def test_a_fresh_scope_of_a_decorator_has_the_same_option() -> None:
    seen: list[str] = []

    @ds.dispose_scope(graph="error")
    def function() -> None:
        scope = ds.current_scope()
        assert scope is not None
        seen.append(scope.graph)

    function()
    assert seen == ["error"]


def test_a_disposed_tensor_has_no_graph_to_be_asked_for() -> None:
    with ds.dispose_scope():
        loss = computed(leaf())
    with pytest.raises(ds.DisposedError):
        ds.graph_nbytes(loss)


def test_what_scopes_disposed_stays_counted_while_a_graph_holds_it(outer: ds.DisposeScope) -> None:
    weight = leaf()
    with ds.dispose_scope() as scope:
        loss = scope.move_to_outer(computed(weight))
        before = ds.graph_nbytes(loss)
    assert ds.graph_nbytes(loss) == before == 32
    with (
        ds.dispose_scope() as scope,
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor], lambda packed: packed[0]),
    ):
        packed = scope.move_to_outer(computed(weight))
    ds.graph_summary(packed)


def test_a_subclass_is_detached_and_keeps_its_class_and_attributes(outer: ds.DisposeScope) -> None:
    class Labelled(torch.Tensor):
        pass

    with ds.dispose_scope(graph="detach") as scope:
        result = scope.attach((leaf() * 2).as_subclass(Labelled))
        result.label = "kept"
        scope.move_to_outer(result)
    assert type(result) is Labelled
    assert result.label == "kept"
    assert result.grad_fn is None
    assert result.tolist() == [2.0, 4.0, 6.0, 8.0]


def view_of_which_nothing_is_said() -> tuple[Any, Any]:
    """Return a tensor, and a view of it.

    PyTorch warns, and refuses to say whether the view has a graph.
    """
    with torch.enable_grad():
        base = torch.ones(4, requires_grad=True) * 1
        with torch.no_grad():
            view = base[:2]
        base.add_(1)
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        assert view.is_leaf
    return base, view


@pytest.mark.parametrize("graph", ["keep", "detach", "error", "none"])
def test_a_view_of_which_pytorch_says_nothing_is_released_kept_and_moved_out(graph: Any) -> None:
    with ds.dispose_scope(graph=graph):
        view_of_which_nothing_is_said()
    kept: list[Any] = []
    with ds.dispose_scope(graph=graph, escapes="keep"):
        kept.append(view_of_which_nothing_is_said()[1])
    with ds.dispose_scope(graph=graph) as scope:
        moved = scope.move_to_outer(view_of_which_nothing_is_said()[1])
    assert (kept[0].shape, moved.shape) == ((2,), (2,))
    assert ds.graph_nbytes(moved) == 0
