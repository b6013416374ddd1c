"""What an autograd graph pins, counted by a walk: reference figures, and PyTorch's own hooks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these are graphs of PyTorch")

import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import disposescope as ds
from disposescope import graph_nbytes, graph_summary
from disposescope.tensors.torch.graphs import walk as graph_walk
from disposescope.tensors.torch.graphs.walk import SHOWS_SAVED, beside_no_backward, saved_under
from tests.programs import run_program

ACTIVATION = 8 * 64 * 56 * 56 * 4


def counted_by_hooks(compute: Callable[[], Any]) -> tuple[int, Any]:
    """The bytes that ``saved_tensors_hooks`` sees, each storage once, and what was computed."""
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(storages.values()), result


def agree(compute: Callable[[], Any]) -> None:
    seen, hooked = counted_by_hooks(compute)
    plain = compute()
    assert graph_nbytes(hooked) == seen
    assert graph_nbytes(plain) == seen


# ---------------------------------------------------------------------- the reference figures


class Standardise(nn.Module):
    """Batch normalisation in eval mode, written out.

    PyTorch's own refuses running statistics that want gradients.
    """

    def __init__(self, *, learnable: bool) -> None:
        super().__init__()
        if learnable:
            self.mean, self.variance = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.ones(64))
        else:
            self.register_buffer("mean", torch.zeros(64))
            self.register_buffer("variance", torch.ones(64))

    def forward(self, features: Any) -> Any:
        return (features - self.mean[:, None, None]) / torch.sqrt(self.variance[:, None, None] + 1e-5)


def test_learnable_running_statistics_pin_an_activation_where_buffers_pin_nothing() -> None:
    features = torch.randn(8, 64, 56, 56)
    assert graph_nbytes(Standardise(learnable=True).eval()(features)) == 6_422_784
    assert graph_nbytes(Standardise(learnable=False).eval()(features)) == 0
    assert graph_nbytes(nn.BatchNorm2d(64, affine=False).eval()(features)) == 0


def test_a_network_in_eval_mode_pins_its_activations_unless_gradients_are_off() -> None:
    blocks = [(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(20)]
    network = nn.Sequential(*(layer for block in blocks for layer in block)).eval()
    features = torch.randn(8, 64, 56, 56)
    result = network(features)
    assert graph_nbytes(result) == 266_288_128
    summary = graph_summary(result)
    assert (summary.first_op, summary.last_op) == ("ConvolutionBackward0", "ReluBackward0")
    rows = {row.op: row for row in summary.ops}
    assert rows["ConvolutionBackward0"].nodes == 20
    assert len(rows["ConvolutionBackward0"].modules) == 20
    assert "Sequential.57" in rows["ConvolutionBackward0"].modules
    assert sum(row.nbytes for row in summary.ops) == summary.nbytes
    del result
    with torch.no_grad():
        assert graph_nbytes(network(features)) == 0
    with torch.inference_mode():
        assert graph_nbytes(network(features)) == 0


def test_a_total_of_losses_grows_by_three_nodes_a_step_and_a_total_of_numbers_by_none() -> None:
    weight = torch.randn(4, requires_grad=True)
    total: Any = 0.0
    numbers = torch.zeros(())
    for _ in range(50):
        loss = (torch.randn(4) * weight).sum()
        total += loss
        numbers += float(loss.detach())
    assert graph_summary(total).nodes == 151
    assert graph_summary(numbers).nodes == 0


def test_a_running_statistic_without_detach_grows_by_five_nodes_a_step() -> None:
    scale = torch.ones((), requires_grad=True)
    running = torch.zeros(())
    detached = torch.zeros(())
    nodes: list[int] = []
    for _ in range(4):
        mean = (torch.randn(8) * scale).mean()
        running = 0.9 * running + 0.1 * mean
        detached = 0.9 * detached + 0.1 * mean.detach()
        nodes.append(graph_summary(running).nodes)
        assert graph_summary(detached).nodes == 0
    assert [later - earlier for earlier, later in pairwise(nodes)] == [5, 5, 5]


# ---------------------------------------------------------------------- equal to what hooks count

weight = torch.randn(6, 6, requires_grad=True)

PROGRAMS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: (weight * 2 + weight / 3 - 1.5) * 2**weight,
    "integers": lambda: weight * torch.tensor(3) * 3,
    "a zero-dim tensor is no number": lambda: weight * torch.tensor(2.0, dtype=torch.float64),
    "complex": lambda: (weight * 2j * torch.ones(6, 6, dtype=torch.complex64)).abs(),
    "views of one storage": lambda: (weight.exp()[:2] * weight.exp()[2:4]).T.sum(),
    "an output saved by its own op": lambda: weight.exp().softmax(-1).tanh(),
    "lists": lambda: torch.cat([weight, weight.exp()]).prod(0),
    "indices": lambda: weight[torch.tensor([0, 1]), torch.tensor([2, 3])].square(),
    "dropout": lambda: F.dropout(weight, 0.5),
    "no graph": lambda: weight.detach() * 2,
    "a leaf": lambda: weight,
    "checkpoint": lambda: checkpoint(lambda a: (a.exp() * a).sin(), weight * 1, use_reentrant=False).sum(),
    "reentrant checkpoint": lambda: checkpoint(lambda a: (a.exp() * a).sin(), weight * 1, use_reentrant=True).sum(),
    "recurrent": lambda: nn.LSTM(6, 5, 2, dropout=0.1)(weight[None]),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, batch_first=True)(weight[None]),
    "convolution": lambda: nn.Conv1d(6, 3, 2)(weight[None]),
    "embedding": lambda: F.embedding(torch.tensor([1, 2, 1]), weight),
    "gradient of a gradient": lambda: torch.autograd.grad(weight.pow(3).sum(), weight, create_graph=True)[0].sum(),
    "in place": lambda: weight.sin().add_(1).mul(weight).mul_(2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_count_is_that_of_saved_tensors_hooks(name: str) -> None:
    torch.manual_seed(0)
    agree(PROGRAMS[name])


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "scale": lambda a, _: a * 0.5,
    "exp": lambda a, _: a.tanh(),
    "matmul": lambda a, b: a @ b,
    "transpose": lambda a, _: a.T,
    "relu": lambda a, _: a.relu(),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "rows": lambda a, b: torch.cat([a[:3], b[3:]]),
    "max": lambda a, _: a - a.max(1, keepdim=True).values,
    "detach": lambda a, _: a.detach(),
    "normalise": lambda a, _: F.layer_norm(a, (6,)),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_the_count_is_that_of_saved_tensors_hooks_for_any_program(program: list[tuple[str, int, int]]) -> None:
    def compute() -> Any:
        values: list[Any] = [weight * 1, torch.ones(6, 6), weight.sin()]
        for step, a, b in program:
            values.append(STEPS[step](values[a % len(values)], values[b % len(values)]))
        # The outputs together keep every saved tensor reachable.
        return values

    agree(compute)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Any, factor: float) -> Any:
        ctx.save_for_backward(features, None, features * 2)
        ctx.mask = features > 0
        return features * factor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        features, _, _ = ctx.saved_tensors
        return gradient * features, None


def test_a_custom_function_counts_what_it_saved_and_its_attributes_apart() -> None:
    result = Scale.apply(weight, 3.0).sum()
    summary = graph_summary(result)
    assert summary.nbytes == 2 * 6 * 6 * 4
    assert summary.attribute_nbytes == 6 * 6
    result.backward()
    after = graph_summary(result)
    assert (after.nbytes, after.attribute_nbytes) == (0, 36)


# ---------------------------------------------------------------------- life and death


def test_after_backward_nothing_is_pinned_and_the_nodes_stay() -> None:
    for compute in PROGRAMS.values():
        result = compute()
        result = result[0] if isinstance(result, tuple) else result
        if result.grad_fn is None:
            continue
        loss = result.sum()
        nodes = graph_summary(loss).nodes
        loss.backward()
        assert graph_nbytes(loss) == 0
        assert graph_summary(loss).nodes == nodes


def test_a_retained_graph_is_pinned_until_it_is_not() -> None:
    loss = (weight * weight.exp()).sum()
    before = graph_nbytes(loss)
    loss.backward(retain_graph=True)
    assert graph_nbytes(loss) == before > 0
    loss.backward()
    assert graph_nbytes(loss) == 0


def test_counting_disturbs_nothing() -> None:
    leaf = torch.randn(6, 6, requires_grad=True)
    middle = leaf * leaf
    loss = (middle * middle.exp()).sum()
    squares = leaf * leaf
    expected = torch.autograd.grad((squares * squares.exp()).sum(), leaf)[0]
    versions = [tensor._version for tensor in (leaf, middle, loss)]
    counts = [sys.getrefcount(tensor) for tensor in (leaf, middle, loss)]
    graph_nbytes(loss)
    graph_summary(loss)
    assert versions == [tensor._version for tensor in (leaf, middle, loss)]
    assert counts == [sys.getrefcount(tensor) for tensor in (leaf, middle, loss)]
    assert "disposescope.release" not in loss.grad_fn.metadata
    loss.backward()
    assert torch.equal(leaf.grad, expected)


def test_counting_keeps_nothing_alive() -> None:
    gone: list[str] = []

    class Watched(torch.Tensor):
        def __del__(self) -> None:
            gone.append("gone")

    saved = torch.randn(6).as_subclass(Watched)
    loss = (saved * weight).sum()
    graph_nbytes(loss)
    graph_summary(loss)
    before = len(gone)
    del saved
    del loss
    assert len(gone) > before


@pytest.mark.skipif(not SHOWS_SAVED, reason="PyTorch shows it from 2.10 on")
def test_a_saved_tensor_that_was_changed_in_place_counts_all_the_same() -> None:
    base = weight.clone()
    result = base * weight
    before = graph_nbytes(result)
    base.add_(1)
    assert graph_nbytes(result) == before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_what_a_hook_packed_counts_for_what_it_packed_and_no_hook_runs() -> None:
    unpacked: list[Any] = []

    def unpack(packed: Any) -> Any:
        unpacked.append(packed)
        return packed.half.double()

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: SimpleNamespace(half=tensor.half()), unpack):
        halves = weight.double().exp()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: repr(tensor), lambda packed: packed):
        elsewhere = weight.exp()
    with torch.autograd.graph.save_on_cpu():
        on_cpu = weight.exp()
    assert graph_nbytes(halves) == 6 * 6 * 2
    assert graph_nbytes(elsewhere) == 0
    assert graph_nbytes(on_cpu) == 6 * 6 * 4
    assert not unpacked


def test_a_checkpoint_is_not_recomputed() -> None:
    ran: list[str] = []

    def body(features: Any) -> Any:
        ran.append("forward")
        return features.exp() * features

    graph_summary(checkpoint(body, weight * 1, use_reentrant=False))
    assert ran == ["forward"]


def test_a_tensor_on_the_meta_device_pins_no_bytes() -> None:
    leaf = torch.empty(1000, device="meta", requires_grad=True)
    assert graph_nbytes((leaf * leaf).sum()) == 0
    assert graph_summary((leaf * leaf).sum()).nodes == 3


def test_sparse_tensors_count_their_parts() -> None:
    values = torch.eye(6).to_sparse()
    agreed = torch.sparse.mm(values, weight)
    parts = values._indices().untyped_storage().nbytes() + values._values().untyped_storage().nbytes()
    assert graph_nbytes(agreed) == parts


def test_nodes_that_do_not_show_what_they_saved_are_counted() -> None:
    rows = weight.clone()
    rows[0].mul_(weight[1])
    summary = graph_summary(rows)
    assert summary.opaque_nodes == 1
    assert "do not show" in str(summary)


# ---------------------------------------------------------------------- deep graphs

# With 2.13 a stack of 512 KiB overflows at 5,000 nodes that Python has looked at, as one of 8 MiB
# does at 50,000.
DEEP = """
import threading
import torch
from disposescope import graph_nbytes, graph_summary
from disposescope.tensors.torch.graphs.walk import saved_under

def chain(nodes, step, backward):
    leaf = torch.ones(2, requires_grad=True)
    value = leaf
    for index in range(nodes):
        value = step(value, leaf)
        if index in (2_000, 3_333):
            graph_nbytes(value)
    summary = graph_summary(value)
    assert summary.nodes == nodes + 1, summary.nodes
    halfway = value.grad_fn
    for _ in range(nodes // 2):
        halfway = halfway.next_functions[0][0]
    if backward:
        value.sum().backward()
    del value
    del halfway

threading.stack_size(1 << 19)
for given in (10_000, lambda value, leaf: value + leaf, False), (10_000, lambda value, leaf: value * leaf, True):
    worker = threading.Thread(target=chain, args=given)
    worker.start()
    worker.join()
print("alive")
"""


@pytest.mark.long
def test_deep_graphs_are_counted_and_still_released_without_overflowing_the_stack() -> None:
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("alive\n", "", 0)


def test_the_memory_of_a_deep_graph_comes_back_at_once() -> None:
    leaf = torch.ones(2, requires_grad=True)
    value = leaf * 1
    saved = []
    for _ in range(3000):
        saved.append(weakref.ref(value.untyped_storage()))
        value = value * leaf
    graph_nbytes(value)
    assert all(reference() is not None for reference in saved)
    del value
    assert all(reference() is None for reference in saved)


# ---------------------------------------------------------------------- what may be given


def test_a_nesting_of_tensors_is_counted_as_one_graph() -> None:
    shared = weight.exp()
    left, right = shared * 2, shared.sin()
    assert graph_nbytes({"left": left, "right": [right, (left,)]}) == graph_nbytes(right)
    outputs, state = nn.LSTM(6, 5)(weight[None])
    assert graph_nbytes((outputs, state)) == graph_nbytes(outputs) > 0


@pytest.mark.parametrize("given", [None, 3.5, "loss", [], object()])
def test_what_is_no_tensor_is_refused_by_name(given: object) -> None:
    cls = type(given)
    for ask in (graph_nbytes, graph_summary):
        with pytest.raises(TypeError, match=f"{cls.__module__}.{cls.__qualname__} was given"):
            ask(given)


def test_without_torch_the_answer_is_a_type_error_and_torch_is_not_imported() -> None:
    code = (
        "import sys, disposescope as t\n"
        "try: t.graph_nbytes(1.5)\n"
        "except TypeError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "graph_nbytes: a PyTorch tensor is wanted, and a builtins.float was given; the program has not imported torch",
        "False",
    ]


# ---------------------------------------------------------------------- the summary


def test_a_summary_reads_as_a_report() -> None:
    leaf = torch.ones(1000, requires_grad=True)
    assert str(graph_summary((leaf * leaf).exp().sum())) == (
        "a graph of 4 nodes from MulBackward0 to SumBackward0 pins 8.0 kB\n"
        "    4.0 kB        1 x ExpBackward0\n"
        "    4.0 kB        1 x MulBackward0\n"
        "   0 bytes        1 x SumBackward0\n"
        "   0 bytes        1 x AccumulateGrad"
    )
    assert str(graph_summary(torch.ones(1))) == "no graph"


def test_a_summary_names_the_modules_by_their_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 2, bias=False)])

        def forward(self, features: Any) -> Any:
            for layer in self.body:
                features = layer(features)
            return features

    network = Net()
    summary = graph_summary(network(torch.ones(3, 6)))
    modules = {name for row in summary.ops for name in row.modules}
    assert modules == {f"{Net.__qualname__}.body.0", f"{Net.__qualname__}.body.1"}


def test_a_summary_names_the_lines_where_anomaly_mode_was_on() -> None:
    with torch.autograd.set_detect_anomaly(True):
        loss = weight.exp().sum()
    sites = {site for row in graph_summary(loss).ops for site in row.sites}
    assert len(sites) == 1
    assert __file__ in next(iter(sites))


def test_a_summary_is_frozen_and_holds_no_tensor() -> None:
    summary = graph_summary(weight.exp())
    with pytest.raises(AttributeError):
        summary.nbytes = 0
    reached = gc.get_referents(summary)
    assert not any(isinstance(thing, torch.Tensor) for thing in reached)
    assert summary == graph_summary(weight.exp())


def test_counting_inside_a_scope_makes_no_births() -> None:
    with ds.dispose_scope() as scope:
        loss = weight.exp().sum()
        before = len(scope)
        graph_nbytes(loss)
        graph_summary(loss)
        assert len(scope) == before


def test_a_saved_tensor_that_another_thread_disposes_meanwhile_pins_nothing() -> None:
    disposed = torch.ones(3)
    ds.dispose(disposed)
    # Until its memory goes, PyTorch gives out the disposed object for what the graph saved.
    raw = SimpleNamespace(data=disposed, unpack_hook=None)
    node = SimpleNamespace(_raw_saved_self=raw, _saved_self=disposed)
    assert list(saved_under(node, "_raw_saved_self")) == []


def test_a_graph_that_a_backward_pass_has_in_use_on_another_thread_counts_as_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Before PyTorch 2.10 that is read when the pass has been waited for in vain.
    monkeypatch.setattr(graph_walk, "_PATIENCE_S", 0.1)
    weight, other = torch.ones(1000, requires_grad=True), torch.ones(1000, requires_grad=True)
    loss, apart = (weight * weight).exp().sum(), (other * other).exp().sum()
    begun, goes_on = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        begun.set()
        assert goes_on.wait(500)

    middle = loss.grad_fn.next_functions[0][0]
    middle.register_prehook(wait)
    whole = ds.graph_nbytes(apart)
    assert ds.graph_nbytes(loss) == whole > 0
    runner = threading.Thread(target=loss.backward)
    runner.start()
    assert begun.wait(500)
    try:
        assert ds.graph_nbytes(loss) == 0
        # A gradient of it is not looked at either; what the pass does not reach is.
        assert ds.graph_nbytes(apart) == whole
        apart.backward()
        assert other.grad is not None
    finally:
        goes_on.set()
        runner.join()
    assert weight.grad is not None
    assert ds.graph_nbytes(loss) == 0


def test_a_graph_is_read_whole_in_a_hook_of_its_own_backward_pass() -> None:
    weight = torch.ones(1000, requires_grad=True)
    loss = (weight * weight).exp().sum()
    read: list[int] = []
    loss.grad_fn.register_prehook(lambda _: read.append(ds.graph_nbytes(loss)))
    whole = ds.graph_nbytes(loss)
    loss.backward()
    assert read == [whole]
    assert whole > 0


BESIDE_BACKWARD = """
import sys, threading
import torch
import disposescope as ds

torch.set_num_threads(1)
sys.setswitchinterval(1e-4)
weight = torch.ones(3000, requires_grad=True)
state = {{"loss": None, "reads": 0}}


def read():
    while state["loss"] is not state:
        loss = state["loss"]
        if loss is not None:
            {reading}
            state["reads"] += 1


with ds.LeakDetector() as detector:
    reader = threading.Thread(target=read)
    reader.start()
    rounds = 0
    while rounds < {rounds} or state["reads"] < {reads}:
        y = weight
        for _ in range(60):
            y = (y * weight).tanh()
        state["loss"] = loss = y.sum()
        loss.backward()
        rounds += 1
    state["loss"] = state
    reader.join()
print("whole")
"""


MUCH_IS_WALKED = [pytest.mark.long, pytest.mark.unmeasured]


@pytest.mark.parametrize(
    ("reading", "rounds", "reads"),
    [
        pytest.param("ds.graph_nbytes(loss)", 100, 10, id="graph"),
        pytest.param(
            "detector.report(of_program=True)", 50, 5, id="report", marks=[pytest.mark.long, pytest.mark.unmeasured]
        ),
    ],
)
def test_graphs_are_read_beside_a_backward_pass_without_a_crash(reading: str, rounds: int, reads: int) -> None:
    assert run_program(BESIDE_BACKWARD.format(reading=reading, rounds=rounds, reads=reads)) == "whole\n"


FIRST_SCOPE_IN_A_CHECKPOINT = """
import torch
from torch.utils.checkpoint import checkpoint
import disposescope as ds

weight = torch.ones(4, requires_grad=True)


def block(x):
    with ds.dispose_scope() as scope:
        return scope.move_to_outer((x * weight).sin().exp())


checkpoint(block, torch.ones(4), use_reentrant=False).sum().backward()
print(weight.grad is not None)
"""


@pytest.mark.long
def test_the_first_scope_may_be_entered_where_hooks_see_what_is_saved() -> None:
    assert run_program(FIRST_SCOPE_IN_A_CHECKPOINT) == "True\n"


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this PyTorch treated as a release before 2.13, with backward passes seen."""
    with ds.dispose_scope():
        torch.ones(1)
    monkeypatch.setattr(graph_walk, "KEEPS_NODES", False)


@pytest.mark.usefixtures("earlier")
def test_a_backward_pass_waits_for_a_look_on_another_thread() -> None:
    weight = torch.ones(3, requires_grad=True)
    own = torch.ones(3, requires_grad=True)
    runner = threading.Thread(target=(weight * weight).sum().backward)
    with beside_no_backward():
        runner.start()
        with beside_no_backward():
            own.sum().backward()
        runner.join(0.2)
        assert runner.is_alive()
        assert weight.grad is None
    runner.join()
    assert weight.grad is not None
    assert own.grad is not None


@pytest.mark.usefixtures("earlier")
def test_a_look_waits_for_a_backward_pass_on_another_thread_and_not_for_its_own() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    begun, goes_on = threading.Event(), threading.Event()
    order: list[str] = []

    def wait(_: object) -> None:
        with beside_no_backward():
            order.append("in the pass")
        begun.set()
        assert goes_on.wait(500)
        order.append("pass")

    def look() -> None:
        with beside_no_backward():
            order.append("look")

    loss.grad_fn.register_prehook(wait)
    runner, looker = threading.Thread(target=loss.backward), threading.Thread(target=look)
    runner.start()
    assert begun.wait(500)
    looker.start()
    looker.join(0.2)
    goes_on.set()
    runner.join()
    looker.join()
    assert order == ["in the pass", "pass", "look"]


@pytest.mark.usefixtures("earlier")
def test_a_pass_that_a_running_pass_waits_for_begins_before_a_look() -> None:
    weight, inner = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    loss, inner_loss = (weight * weight).sum(), inner.sum()
    begun, looking = threading.Event(), threading.Event()

    def nest(_: object) -> None:
        begun.set()
        assert looking.wait(500)
        nested = threading.Thread(target=inner_loss.backward)
        nested.start()
        nested.join()

    def look() -> None:
        looking.set()
        with beside_no_backward():
            seen.append(weight.grad is not None)

    seen: list[bool] = []
    loss.grad_fn.register_prehook(nest)
    runner, looker = threading.Thread(target=loss.backward), threading.Thread(target=look)
    runner.start()
    assert begun.wait(500)
    looker.start()
    runner.join()
    looker.join()
    assert seen == [True]
    assert inner.grad is not None


@pytest.mark.usefixtures("earlier")
def test_a_look_that_an_exception_ended_holds_no_pass() -> None:
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(KeyboardInterrupt) as raised, beside_no_backward():
        raise KeyboardInterrupt
    runner = threading.Thread(target=weight.sum().backward)
    runner.start()
    runner.join()
    assert weight.grad is not None
    assert raised.value.__traceback__ is not None


FORKED_DURING_A_LOOK = """
import os, threading
import torch
import disposescope as ds
from disposescope.tensors.torch.graphs import walk as graph_walk

graph_walk.KEEPS_NODES = False
weight = torch.ones(3, requires_grad=True)
with ds.dispose_scope():
    weight.sum().backward()
looking, over = threading.Event(), threading.Event()


def look():
    with graph_walk.beside_no_backward():
        looking.set()
        over.wait()


looker = threading.Thread(target=look)
looker.start()
looking.wait()
child = os.fork()
if child == 0:
    weight.sum().backward()
    os._exit(int(weight.grad.sum()))
over.set()
looker.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device PyTorch runs no backward pass in a fork")
def test_a_forked_process_waits_for_no_look_of_its_parent() -> None:
    assert run_program(FORKED_DURING_A_LOOK) == "6\n"
