"""What PyTorch's graphs saved: the storage of a dead tensor is found in the graph of a kept one."""

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.holders.holders import Holders, Reason
from disposescope.tensors.torch.graphs import references as _torch_edges
from disposescope.tensors.torch.graphs.walk import NODE_NBYTES

BOX: dict[str, Any] = {}
HERE = f"module {__name__}.BOX"


class Seen:
    """Memory as a detector remembers it."""

    def __init__(self, identity: Any, nbytes: int, kind: str, device: str, is_there: Any) -> None:
        self.identity, self.nbytes, self.kind, self.device, self.is_there = identity, nbytes, kind, device, is_there

    def __call__(self) -> object:
        return self if self.is_there() else None


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    with ds.dispose_scope():
        pass  # PyTorch is known from here on
    yield
    BOX.clear()


def seen(tensor: Any) -> Seen:
    """The storage of a tensor, as a detector remembers it."""
    storage = tensor.untyped_storage()
    watch = weakref.ref(storage)
    return Seen(("torch", storage._cdata), storage.nbytes(), "torch.Tensor", "cpu:0", lambda: watch() is not None)


def asked(*sightings: Seen) -> tuple[Reason, tuple[str, ...], tuple[str, ...]]:
    with Holders([sightings], object_limit=10_000_000) as holders:
        return holders.reasons_of([sightings[0]])[0], holders.chains_of(sightings), holders.carriers_of(sightings)


def test_what_only_a_graph_saved_is_found_in_the_graph_of_the_kept_tensor() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step() -> Seen:
        hidden = (weight * 2).relu()
        BOX["total"] = BOX.get("total", 0.0) + hidden.sum()
        return seen(hidden)

    first = step()
    start = f"{HERE}['total'].grad_fn"
    assert asked(first) == ("graph", (f"{start}.next_functions[0][0].next_functions[0][0]._saved_result",), (start,))
    for _ in range(20):
        step()
    reason, [chain], carriers = asked(first)
    assert (reason, carriers) == ("graph", (start,))
    assert chain == f"{start}.next_functions[0][0] … .next_functions[0][0].next_functions[0][0]._saved_result"
    BOX.clear()
    assert first() is None


def test_a_tensor_that_shares_the_storage_is_the_plainer_holder() -> None:
    weight = torch.ones(3, requires_grad=True)
    hidden = (weight * 2).relu()
    sighting = seen(hidden)
    BOX["out"] = hidden.sum()
    BOX["last"] = [hidden.detach()[:1]]
    del hidden
    assert asked(sighting) == ("held", (f"{HERE}['last'][0]",), ())


def test_attributes_gradients_bases_and_hooks_of_tensors_are_searched() -> None:
    BOX["weight"] = weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    gradient = seen(weight.grad)
    note = torch.zeros(5)
    weight.note = note
    attribute = seen(note)

    def make_hook() -> Any:
        hook = torch.zeros(7)
        return (lambda gradient: gradient * hook.sum()), seen(hook)

    called, hooked = make_hook()
    weight.register_hook(called)
    del weight, note, called
    assert asked(gradient)[1] == (f"{HERE}['weight'].grad",)
    assert asked(attribute)[1] == (f"{HERE}['weight'].note",)
    assert asked(hooked)[1][0].startswith(f"{HERE}['weight']")
    assert asked(hooked)[1][0].endswith("cell 'hook'")


def test_the_context_of_a_custom_function_is_searched() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            ctx.mask = torch.ones(9)
            sightings.append(seen(ctx.mask))
            saved = given * 3
            sightings.append(seen(saved))
            ctx.save_for_backward(saved)
            return given * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    sightings: list[Seen] = []
    BOX["out"] = Double.apply(torch.ones(2, requires_grad=True))
    mask, saved = sightings
    assert asked(mask)[1] == (f"{HERE}['out'].grad_fn.mask",)
    assert asked(saved)[1] == (f"{HERE}['out'].grad_fn._saved_tensors",)


def test_no_hook_and_no_mode_of_the_program_is_called() -> None:
    def fail(_tensor: Any) -> Any:
        raise AssertionError

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if BOX.get("armed"):
                raise AssertionError(func)
            return super().__torch_function__(func, types, args, kwargs)

    weight = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
        hidden = (weight * 2).exp()
    sighting = seen(hidden)
    BOX["out"] = hidden.sum()
    BOX["sub"] = torch.ones(3).as_subclass(Sub)
    BOX["armed"] = True
    del hidden
    with Mode():
        assert asked(sighting)[0] == "graph"
    del BOX["armed"]


def test_a_live_tensor_that_only_the_graph_holds_is_reported_with_its_carrier() -> None:
    weight = torch.ones(3, requires_grad=True)
    with LeakDetector() as detector:
        with ds.dispose_scope() as scope:
            given = scope.move_to_outer(weight * 2)
            BOX["out"] = scope.move_to_outer(given * given)
            del given
        leaks = {leak.holder: leak for leak in detector.report().leaks}
    assert f"{HERE}['out']" in leaks


@pytest.mark.long
def test_a_deep_graph_that_was_searched_is_released_without_harm() -> None:
    # A stack of 512 KiB overflows at 5,000 nodes.
    code = """
import threading, torch, disposescope as ds
from disposescope.leaks.holders.holders import Holders
class Missing:
    identity, nbytes = ("torch", 1), 8
    def __call__(self):
        return self
with ds.dispose_scope():
    pass
def search():
    global total
    total = torch.zeros((), requires_grad=True)
    for _ in range(10_000):
        total = total + 1
    missing = Missing()
    with Holders([[missing]], object_limit=40_000) as holders:
        assert holders.reasons_of([missing])[0] == "unfinished"
    del total
    print("released")
threading.stack_size(1 << 19)
thread = threading.Thread(target=search)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "released\n"), done.stderr


def test_a_disposed_tensor_leads_nowhere() -> None:
    with ds.dispose_scope() as scope:
        BOX["dead"] = scope.attach(torch.zeros(3))
        sighting = seen(BOX["dead"])
    gc.collect()
    assert sighting() is None


def test_a_tensor_is_lone_where_it_refers_to_nothing_else() -> None:
    lone_storage = _torch_edges.TorchReferences().lone_storage
    plain = torch.zeros(3)
    assert lone_storage(plain) == ("torch", plain.untyped_storage()._cdata)
    weight = torch.zeros(3, requires_grad=True)
    assert lone_storage(weight) is None, "a backward pass of another thread may be giving it a gradient"
    weight.sum().backward()
    marked, hooked = torch.zeros(3), torch.zeros(3, requires_grad=True)
    marked.note = "a note"
    hooked.register_hook(lambda grad: grad)
    others = [
        weight,
        weight + 1,
        plain[:1],
        marked,
        hooked,
        torch.nn.Parameter(torch.zeros(3)),
        torch.eye(2).to_sparse(),
    ]
    assert [lone_storage(tensor) for tensor in others] == [None] * 7
    assert lone_storage("no tensor") is None


@pytest.mark.parametrize(
    ("make", "kind", "nbytes", "used_nbytes"),
    [
        (lambda: np.frombuffer(bytearray(400_000), np.uint8), "alive", 400_000, 400_000),
        (lambda: np.frombuffer(bytearray(400_000), np.uint8, count=100), "view", 400_000, 100),
        (lambda: np.ones(50_000)[5:], "alive", 400_000, 400_000),
    ],
    ids=["a buffer", "a part of a buffer", "a part of an array"],
)
def test_a_tensor_is_found_as_the_holder_of_the_array_that_it_shows(
    make: Callable[[], Any], kind: str, nbytes: int, used_nbytes: int
) -> None:
    with LeakDetector() as detector:
        BOX["shown"] = torch.from_numpy(make())
        [leak] = detector.report().leaks
    assert (leak.kind, leak.tensor_kind, leak.nbytes, leak.used_nbytes) == (kind, "numpy.ndarray", nbytes, used_nbytes)
    assert leak.holder == f"{HERE}['shown']"


@pytest.mark.parametrize(
    ("keep", "kind", "used_nbytes"),
    [
        (lambda tensor: tensor.numpy(), "growth", 20 * 400_000),
        (lambda tensor: tensor.numpy()[0], "view", 20 * 4_000),
        (lambda tensor: [tensor.numpy()[0], tensor], "growth", 20 * 400_000),
    ],
    ids=["all of it", "a part", "a part, and the tensor"],
)
def test_an_array_that_shows_a_part_of_a_tensor_pins_all_of_it(
    keep: Callable[[torch.Tensor], Any], kind: str, used_nbytes: int
) -> None:
    BOX["rows"] = []
    with LeakDetector() as detector:
        for _ in range(20):
            BOX["rows"].append(keep(torch.rand(100, 1000)))
            detector.mark()
        [leak] = detector.report().leaks
    assert (leak.kind, leak.count, leak.used_nbytes) == (kind, 20, used_nbytes)
    assert leak.holder.startswith(f"{HERE}['rows'][0]")


SUM_OF_LOSSES = """
import torch

weight = torch.ones(1000, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
total = torch.zeros(())
for _ in range(40):
    (weight * 2).sum().backward()
    optimizer.step()
    total = total + (weight * weight).exp().sum()
print(total.shape)
"""


@pytest.mark.unmeasured
@pytest.mark.long
def test_a_sum_of_losses_is_reported_with_the_bytes_of_its_graph(tmp_path):
    program, output = tmp_path / "program.py", tmp_path / "leaks.json"
    program.write_text(SUM_OF_LOSSES)
    command = [sys.executable, "-m", "disposescope.leaks.commands", "run", "--threshold", "3kB", "-o", output, program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    [leak] = [leak for leak in json.loads(output.read_text())["leaks"] if leak["graph_nbytes"]]
    # Each step saves what exp() returns, and the weight, which is there anyhow.
    assert (leak["kind"], leak["nbytes"], leak["graph_nbytes"]) == ("graph", 4, 160_000)
    assert "1 × torch.Tensor, 4 bytes and a graph of 160.0 kB" in done.stderr


@pytest.fixture
def measured_loss() -> Callable[[], Any]:
    """Makes losses of a small model, each after its backward pass."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def make() -> Any:
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    return make


def kept_by_steps(keep: Callable[[], Any]) -> Any:
    """What is reported of a program's list, to which each of 50 steps adds a tensor."""
    history = BOX["history"] = []
    with LeakDetector() as detector:
        for _ in range(50):
            history.append(keep())
            detector.mark()
        return detector.report(of_program=True, object_limit=10**8)


def test_losses_that_are_kept_after_backward_grow_by_the_nodes_of_their_graphs(
    measured_loss: Callable[[], Any],
) -> None:
    report = kept_by_steps(measured_loss)
    [leak] = report.leaks
    # MeanBackward0, PowBackward0, AddmmBackward0, TBackward0, ReluBackward0, AddmmBackward0,
    # TBackward0
    assert (leak.kind, leak.count, leak.nbytes, leak.graph_nbytes) == ("growth", 50, 200, 50 * 7 * NODE_NBYTES)
    assert leak.remedy.startswith("keep item() or detach()")
    assert "1 leak, 50 tensors, 200 bytes and 224.0 kB in graphs\n" in str(report)
    assert "growth (likely): 50 × torch.Tensor, 200 bytes and graphs of 224.0 kB\n" in str(report)


def test_log_probabilities_that_backward_needs_are_to_be_cleared_after_it() -> None:
    policy = torch.nn.Linear(4, 2)
    kept = BOX["saved"] = []
    with LeakDetector() as detector:
        for _ in range(50):
            kept.append(torch.distributions.Categorical(logits=policy(torch.ones(4))).log_prob(torch.tensor(0)))
            kept[-1].neg().backward()
            detector.mark()
        [leak] = detector.report(of_program=True, object_limit=10**8).leaks
    assert "if a later backward() needs them, clear the holder after it" in leak.remedy


def test_losses_that_are_kept_without_their_graphs_are_a_list_of_numbers(measured_loss: Callable[[], Any]) -> None:
    assert kept_by_steps(lambda: measured_loss().detach()).verdict == "clean"


def test_of_states_that_each_step_makes_of_the_one_before_only_the_nodes_of_a_step_count() -> None:
    weight = torch.ones(2, requires_grad=True)
    state = weight * 1

    def step() -> Any:
        nonlocal state
        state = (state * 0.5).tanh()
        return state

    # MulBackward0, TanhBackward0
    assert kept_by_steps(step).leaks[0].graph_nbytes == 50 * 2 * NODE_NBYTES


def test_a_view_of_which_pytorch_says_nothing_is_no_error_of_a_report() -> None:
    with LeakDetector() as detector:
        base = torch.ones(4, requires_grad=True) * 1
        with torch.no_grad():
            BOX["view"] = base[:2]
        base.add_(1)
        del base
        BOX["model"] = torch.nn.Linear(2, 2)
        report = detector.report(of_program=True, object_limit=10**8)
    assert report.leaks == ()
    assert {f"{HERE}['model']", f"{HERE}['view']"} < {leak.holder for leak in report.kept}


def test_an_array_made_through_dlpack_holds_the_memory_of_a_tensor_that_has_gone() -> None:
    with LeakDetector() as detector:
        BOX["array"] = np.from_dlpack(torch.ones(100_000))
        [kept] = detector.report(of_program=True).kept
    assert (kept.tensor_kind, kept.nbytes, kept.holder) == ("torch.Tensor", 400_000, f"{HERE}['array']")


def test_a_report_that_is_made_during_another_disturbs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_behind, others = _torch_edges.leaves_behind, list[Any]()

    def leaves_meanwhile(end: Any, since: int) -> list[Any]:
        # Another thread would wait for this one, before PyTorch 2.10.
        with LeakDetector() as other:
            others.append(other.report(of_program=True))
        return leaves_behind(end, since)

    monkeypatch.setattr(_torch_edges, "leaves_behind", leaves_meanwhile)
    with LeakDetector() as detector:
        layer = torch.nn.Linear(4, 4)
        BOX["result"] = layer(torch.ones(2, 4)).tanh().exp()
        report = detector.report(of_program=True)
    assert "graph" in {leak.kind for leak in report.kept}
    assert others
