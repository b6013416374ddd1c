"""``torch.compile`` under scopes: they break and recompile no graph, and own what comes out."""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from tests.patched import guard_fails
from tests.programs import run_program

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


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
        assert torch._C._len_torch_function_stack() == 0
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
    x = torch.ones(2, 3)
    with ds.dispose_scope() as scope:
        result = compiled(x)
        assert scope.live == (result,)
    compiled(x)
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
    subprocess.run([sys.executable, "-c", program], check=True)


# ------------------------------------------------------ scopes inside of a compiled function

seen = []
"""What a compiled function made in its scope, and what was current there."""


# Dynamo would look at all that is in the list, disposed tensors included.
@torch.compiler.disable
def note(tensor):
    seen.append((tensor, ds.current_scope()))
    return tensor


def moves_out_with_as(x):
    before = x * 3
    with ds.dispose_scope() as scope:
        hidden = note(torch.relu(x * 2))
        return scope.move_to_outer(hidden + before)


def moves_out_without_as(x):
    with ds.dispose_scope():
        hidden = note(torch.relu(x * 2))
        result = ds.move_to_outer(hidden + 1)
    return result * 2


def calls_tidy(x):
    return ds.tidy(lambda y: note(torch.exp(y)) + 1, x) * 2 + ds.tidy(torch.exp, x)


@ds.dispose_scope("decorated")
def decorated(x):
    return note(torch.exp(x)) + 1, [x * 2]


def calls_a_decorated_function(x):
    total, [double] = decorated(x + 1)
    return total + double


def nests(x):
    with ds.dispose_scope("outer") as outer:
        first = note(x + 1)
        with ds.dispose_scope("inner") as inner:
            second = note(first * 2)
            third = inner.move_to_outer(second + first)
        return outer.move_to_outer(third * 2)


def is_strict(x):
    with ds.dispose_scope(strict=True) as scope:
        hidden = note(torch.sin(x))
        with contextlib.suppress(ds.NotOwnedError):
            scope.move_to_outer(x)
        return scope.move_to_outer(hidden * 2)


def loops_over_scoped_batches(x):
    total = torch.zeros(())
    for (batch,) in ds.scoped_batches([(x * 1,), (x + 1,)]):
        total = ds.move_to_outer(total + note(batch * 2).sum())
    return total


def enters_an_exit_stack(x):
    with contextlib.ExitStack() as stack:
        scope = stack.enter_context(ds.dispose_scope())
        hidden = note(torch.sin(x))
        return scope.move_to_outer(hidden * 2)


@contextlib.contextmanager
def step_scope():
    with ds.dispose_scope("a manager's") as scope:
        yield scope


def enters_by_a_context_manager(x):
    with step_scope() as scope:
        hidden = note(torch.sin(x))
        return scope.move_to_outer(hidden * 2)


def leaves_by_an_exception(x):
    try:
        with ds.dispose_scope():
            note(torch.sin(x))
            raise KeyError("on the way")
    except KeyError:
        return x * 2


INSIDE = [
    moves_out_with_as,
    moves_out_without_as,
    calls_tidy,
    decorated,
    calls_a_decorated_function,
    nests,
    is_strict,
    loops_over_scoped_batches,
    enters_an_exit_stack,
    enters_by_a_context_manager,
    leaves_by_an_exception,
]


@pytest.fixture
def noted():
    seen.clear()
    yield seen
    seen.clear()


def leaves(result):
    return [result] if isinstance(result, torch.Tensor) else [result[0], *result[1]]


BACKENDS = ["eager", "aot_eager"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "backend"),
    [*itertools.product(INSIDE, BACKENDS), (moves_out_with_as, "inductor"), (decorated, "inductor")],
)
def test_a_scope_inside_of_a_compiled_function_does_as_it_does_outside(function, backend, noted):
    compiled = torch.compile(function, backend=backend)
    for shape in ((3,), (3,), (5,), (2, 4), (2, 4)):
        x = torch.rand(shape)
        expected = leaves(function(x))
        as_is = [scope.name for _, scope in noted]
        noted.clear()
        with ds.dispose_scope("around") as around:
            result = leaves(compiled(x))
            if guard_fails("_maybe_set_eval_frame"):
                # What it made was born, and compiling has left some of it in cycles.
                gc.collect()
            assert all(torch.allclose(one, other) for one, other in zip(result, expected, strict=True))
            assert set(around.live) == set(result)
            assert ds.current_scope() is around
            assert [scope.name for _, scope in noted] == as_is
            assert all(scope is not around and scope.closed for _, scope in noted)
            assert all(ds.is_disposed(tensor) for tensor, _ in noted)
        assert all(ds.is_disposed(tensor) for tensor in result)
        assert not ds.is_disposed(x)
        noted.clear()
    assert ds.current_scope() is None


@pytest.mark.parametrize("function", INSIDE)
def test_a_scope_inside_of_a_compiled_function_is_the_only_one(function, noted):
    compiled = torch.compile(function, backend="eager")
    for _ in range(2):
        result = leaves(compiled(torch.rand(3)))
        assert ds.current_scope() is None
        assert noted
        assert all(ds.is_disposed(tensor) for tensor, _ in noted)
        assert all(ds.owner_of(tensor) is None and tensor.isfinite().all() for tensor in result)
        noted.clear()


def test_a_scope_inside_of_a_compiled_function_keeps_nothing_alive(noted):
    compiled = torch.compile(moves_out_with_as, backend="eager")
    ends = []
    with ds.dispose_scope() as around:
        for _ in range(4):
            compiled(torch.rand(3))
            ends.extend(weakref.ref(scope) for _, scope in noted)
            noted.clear()
            assert len(around) == 0
    gc.collect()
    assert [end() for end in ends] == [None] * 4


@pytest.mark.parametrize("backend", [*BACKENDS, "inductor"])
def test_a_compiled_module_whose_forward_opens_a_scope_trains_as_it_does_uncompiled(backend):
    class Scoped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

        def forward(self, x):
            with ds.dispose_scope() as scope:
                hidden = torch.relu(self.first(x))
                return scope.move_to_outer(self.second(hidden))

    def run(compile):
        torch.manual_seed(0)
        model = Scoped()
        forward = compile(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for size in (5, 5, 6):
            with ds.dispose_scope() as step:
                loss = forward(torch.rand(size, 3)).square().sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss))
                assert loss in step
            assert ds.is_disposed(loss)
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    losses, parameters = run(lambda model: torch.compile(model, backend=backend))
    expected_losses, expected = run(lambda model: model)
    assert losses == pytest.approx(expected_losses)
    assert all(torch.allclose(one, other) for one, other in zip(parameters, expected, strict=True))


@pytest.mark.parametrize("backend", [*BACKENDS, "inductor"])
@pytest.mark.parametrize("momentum", [False, True])
def test_a_compiled_training_step_with_its_scope(backend, momentum):
    def run(compile):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if momentum
            else torch.optim.Adam(model.parameters())
        )

        def train(x):
            with ds.dispose_scope() as step:
                loss = model(x).square().sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return step.move_to_outer(loss.detach())

        train = compile(train)
        losses = [train(torch.rand(size, 3)) for size in (5, 5, 6)]
        assert not any(ds.is_disposed(loss) for loss in losses)
        return [float(loss) for loss in losses], [parameter.detach().clone() for parameter in model.parameters()]

    losses, parameters = run(lambda train: torch.compile(train, backend=backend))
    expected_losses, expected = run(lambda train: train)
    assert losses == pytest.approx(expected_losses)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(parameters, expected, strict=True))


@pytest.mark.parametrize("backend", [*BACKENDS, "inductor"])
def test_a_graph_that_left_a_scope_of_a_compiled_function_runs_backward(backend):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 1))

    def loss_of(x):
        with ds.dispose_scope() as scope:
            return scope.move_to_outer(model(x).square().sum())

    compiled = torch.compile(loss_of, backend=backend)
    for _ in range(2):
        x = torch.rand(5, 3)
        expected = torch.autograd.grad(loss_of(x), list(model.parameters()))
        gradients = torch.autograd.grad(compiled(x), list(model.parameters()))
        assert all(torch.allclose(one, other) for one, other in zip(gradients, expected, strict=True))


def test_a_scope_inside_of_a_compiled_function_keeps_to_its_budget():
    @torch.compile(backend="eager")
    def refused(x):
        with ds.dispose_scope(budget="1MiB"):
            torch.zeros(1000)
            return torch.zeros(1_000_000) + x

    for _ in range(2):
        with pytest.raises(MemoryError, match="budget"):
            refused(torch.ones(1))
        assert ds.current_scope() is None
        assert torch._C._len_torch_function_stack() == 0


def test_a_leak_detector_sees_the_births_in_a_scope_inside_of_a_compiled_function(noted):
    with ds.LeakDetector():
        compiled = torch.compile(moves_out_with_as, backend="eager")
        for _ in range(2):
            compiled(torch.ones(3))
        with pytest.raises(ds.DisposedError, match=r"born at .*test_torch_compile\.py"):
            noted[-1][0] + 1
    assert torch._C._len_torch_function_stack() == 0


def test_a_compiled_function_may_be_decorated():
    compiled = ds.dispose_scope("around")(torch.compile(lambda x: (x + 1, [x * 2]), backend="eager"))
    for size in (3, 3, 4):
        total, [double] = compiled(torch.ones(size))
        assert (total == 2).all()
        assert (double == 2).all()


def test_what_a_tidied_function_computes_is_compiled():
    backend = Backend()
    compiled = torch.compile(lambda x: ds.tidy(lambda y: torch.exp(y) + 1, x), backend=backend)
    for _ in range(3):
        compiled(torch.ones(3))
    assert backend.graphs == 1


@pytest.mark.long
def test_the_first_scope_of_a_program_may_be_inside_of_a_compiled_function():
    program = """
import torch
import disposescope as ds
@torch.compile(backend="eager")
def step(x):
    with ds.dispose_scope() as scope:
        hidden.append(x * 2)
        return scope.move_to_outer(hidden[-1] + 1)
hidden = []
assert step(torch.ones(2)).tolist() == [3, 3]
assert ds.is_disposed(hidden[0])
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
    late = program.replace("import torch\n", "import torch, torch._dynamo\n")
    subprocess.run([sys.executable, "-W", "error", "-c", late], check=True)


def test_a_compiled_function_records_nothing_under_graph_none():
    model = torch.nn.Linear(3, 3)
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.ones(2, 3)
    with ds.dispose_scope(graph="none"):
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    with ds.dispose_scope(graph="none"):
        assert not compiled(x).requires_grad


def test_what_a_compiled_function_recorded_is_refused_where_it_is_used_next():
    model = torch.nn.Linear(3, 3)
    compiled = torch.compile(model, backend="aot_eager")
    frozen = torch.compile(torch.nn.Linear(3, 3).requires_grad_(False), backend="aot_eager")
    x = torch.ones(2, 3)
    with ds.dispose_scope(graph="refuse"):
        with torch.no_grad():
            compiled(x)
        frozen(x).sum()
        output = compiled(x)
        with pytest.raises(ds.GraphRetainedError, match="compiled code recorded as CompiledFunctionBackward") as caught:
            output.sum()
    assert caught.value.leaf == "weight"


def test_scopes_that_limit_recording_inside_of_a_compiled_function():
    model = torch.nn.Linear(3, 3)

    @torch.compile(backend="aot_eager")
    def without(x):
        with ds.dispose_scope(graph="none") as scope:
            y = scope.move_to_outer(model(x) * 2)
        return y, model(x)

    @torch.compile(backend="aot_eager")
    def refusing(x):
        with ds.dispose_scope(graph="refuse"):
            return (model(x) * 2).sum().item()

    x = torch.ones(2, 3)
    for _ in range(3):
        inside, after = without(x)
        assert not inside.requires_grad
        assert after.requires_grad
        assert torch.is_grad_enabled()
        with pytest.raises(ds.GraphRetainedError):
            refusing(x)


def test_memory_of_buffers_is_found_where_compiled_functions_run() -> None:
    program = """
import torch, torch._dynamo, disposescope as ds
with ds.LeakDetector() as detector:
    kept = torch.frombuffer(bytearray(4_000_000), dtype=torch.uint8, count=10)
    print([seen.nbytes for seen in torch._dynamo.run(detector.memory)()])
"""
    assert run_program(program) == "[4000000]\n"
