"""``torch.compile`` under scopes: no graph break and no recompilation because of one, and what comes out is owned."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.tensors._torch_extension import TORCH_HOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh():
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


class Backend:
    """Counts what is compiled, and runs it as it is."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


def step(x, weight):
    hidden = torch.relu(x @ weight)
    return hidden.sum(), [hidden, {"double": hidden * 2}]


def test_a_function_is_compiled_once_for_the_inside_and_the_outside():
    backend = Backend()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    x, weight = torch.rand(3, 3), torch.rand(3, 3)

    outside = compiled(x, weight)[0]
    with ds.dispose_scope() as scope:
        inside = scope.move_to_outer(compiled(x, weight)[0])
        with ds.dispose_scope():
            compiled(x, weight)
    compiled(x, weight)

    assert backend.graphs == 1
    assert torch.equal(outside, inside)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1


def test_a_function_that_is_compiled_first_in_a_scope():
    backend = Backend()
    with ds.dispose_scope():
        compiled = torch.compile(step, backend=backend, fullgraph=True)
        compiled(torch.rand(3, 3), torch.rand(3, 3))
    compiled(torch.rand(3, 3), torch.rand(3, 3))
    assert backend.graphs == 1


def test_what_a_compiled_function_returns_is_born():
    compiled = torch.compile(step, backend="eager")
    x, weight = torch.rand(3, 3), torch.rand(3, 3)
    with ds.dispose_scope() as scope:
        total, (hidden, rest) = compiled(x, weight)
        assert set(scope.live) == {total, hidden, rest["double"]}
        assert torch._C._len_torch_function_stack() == (1 if TORCH_HOT is None else 0)
        after = x + 1
        assert after in scope
    for tensor in (total, hidden, rest["double"], after):
        with pytest.raises(ds.DisposedError):
            tensor + 1
    assert x.sum() > 0


def test_what_a_compiled_function_returns_of_its_arguments_is_no_birth():
    compiled = torch.compile(lambda x: (x, x + 1), backend="eager")
    x = torch.rand(3)
    with ds.dispose_scope() as scope:
        same, other = compiled(x)
        assert same is x
        assert scope.live == (other,)
    assert x.sum() > 0


def test_a_graph_break_is_the_functions_own():
    backend = Backend()

    def breaks(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    compiled = torch.compile(breaks, backend=backend)
    compiled(torch.rand(3))
    outside = backend.graphs
    with ds.dispose_scope() as scope:
        result = compiled(torch.rand(3))
        assert scope.live == (result,)
    assert backend.graphs == outside == 2


def test_a_compiled_module_trains_as_it_does_without_scopes():
    def run(scoped):
        torch._dynamo.reset()
        torch.manual_seed(0)
        backend = Backend()
        model = torch.compile(
            torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)), backend=backend
        )
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            with ds.dispose_scope() if scoped else torch.enable_grad():
                model(torch.rand(5, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return backend.graphs, [parameter.detach().clone() for parameter in model.parameters()]

    (graphs, plain), (scoped_graphs, scoped) = run(False), run(True)
    assert graphs == scoped_graphs == 1
    assert all(torch.equal(one, other) for one, other in zip(plain, scoped, strict=True))


def test_an_exception_in_a_compiled_function_leaves_the_scope_watching():
    @torch.compile(backend="eager")
    def fails(x):
        y = x + 1
        raise KeyError(y.shape[0])

    with ds.dispose_scope() as scope:
        with pytest.raises(KeyError):
            fails(torch.rand(3))
        tensor = torch.rand(3)
        assert tensor in scope
    assert torch._C._len_torch_function_stack() == 0


def test_a_dead_tensor_is_refused_by_a_compiled_function():
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.rand(3))
    with ds.dispose_scope():
        dead = torch.rand(3)
    with pytest.raises(ds.DisposedError):
        compiled(dead)
    assert compiled(torch.zeros(3)).tolist() == [1, 1, 1]


def test_a_transform_in_a_compiled_function_is_in_its_graph():
    backend = Backend()
    compiled = torch.compile(lambda x: torch.vmap(lambda row: row * 2)(x), backend=backend, fullgraph=True)
    with ds.dispose_scope() as scope:
        result = compiled(torch.ones(2, 3))
        assert scope.live == (result,)
    compiled(torch.ones(2, 3))
    assert backend.graphs == 1


def test_dynamo_may_be_imported_inside_of_a_scope():
    program = """
import sys, torch
import disposescope as ds
assert "torch._dynamo" not in sys.modules
with ds.dispose_scope() as scope:
    compiled = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
    result = compiled(torch.ones(3))
    assert result in scope
compiled(torch.ones(3))
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
