"""PyTorch's CPU memory in passes: recorded for peak and advice, and never in the slab."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import disposescope as ds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

N = 200_000


def peak_of(function: Callable[[], object]) -> ds.Peak:
    workspace = ds.Workspace(function.__name__)
    for _ in range(2):
        with workspace.run():
            function()
    found = workspace.statistics()
    assert found.slab_nbytes < 10_000
    return workspace.peak()


def test_the_peak_of_tensors_is_found_with_its_lines() -> None:
    def work() -> float:
        hidden = torch.ones(N)
        gate = hidden * 2.0
        return float((hidden * gate).sum())

    peak = peak_of(work)
    assert peak.nbytes == pytest.approx(3 * N * 4, rel=0.01)
    first = work.__code__.co_firstlineno
    assert f"test_torch_passes.py:{first + 3}" in peak.line
    assert len([row for row in peak.living if row.nbytes >= N * 4]) == 3


def test_views_and_in_place_operations_are_no_births() -> None:
    def work() -> float:
        x = torch.ones(N)
        x.add_(1.0)
        y = x.view(2, -1)[0]
        return float(y.sum())

    assert peak_of(work).nbytes == pytest.approx(N * 4, rel=0.01)


def test_a_result_in_the_memory_of_an_argument_is_no_birth() -> None:
    made_before = torch.ones(2, N)

    def work() -> float:
        # Its schema does not say that the result is a view.
        rows = torch.ops.aten._unsafe_view(made_before, [N, 2])
        return float(rows[0].sum())

    assert peak_of(work).nbytes < 1_000


def test_advice_for_tensors_is_what_following_it_brings() -> None:
    def before() -> float:
        hidden = torch.ones(N)
        total = float(hidden.sum())
        a = torch.ones(N)
        b = a + 1.0
        return total + float(b.sum())

    def after() -> float:
        hidden = torch.ones(N)
        total = float(hidden.sum())
        del hidden
        a = torch.ones(N)
        b = a + 1.0
        return total + float(b.sum())

    peak = peak_of(before)
    [advice] = [each for each in peak.advice if each.text.startswith("del hidden after")]
    assert advice.peak_nbytes == pytest.approx(peak_of(after).nbytes, rel=0.02)


def copied() -> float:
    b = torch.ones(N)
    b = torch.sqrt(b)
    return float(b.sum())


def written_in_place() -> float:
    b = torch.ones(N)
    b.sqrt_()
    return float(b.sum())


def held_for_later() -> float:
    gate = torch.ones(N)
    total = float(gate.sum())
    a = torch.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    c = gate * 3.0
    return total + float(c.sum())


def made_again() -> float:
    gate = torch.ones(N)
    total = float(gate.sum())
    del gate
    a = torch.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    gate = torch.ones(N)
    c = gate * 3.0
    return total + float(c.sum())


@pytest.mark.parametrize(
    ("before", "advised", "after"),
    [(copied, "in place at", written_in_place), (held_for_later, "recompute gate before", made_again)],
)
def test_tensors_are_written_over_or_made_again_with_the_peak_that_was_said(
    before: Callable[[], float], advised: str, after: Callable[[], float]
) -> None:
    assert before() == pytest.approx(after())
    [advice] = [each for each in peak_of(before).advice if each.text.startswith(advised)]
    assert advice.peak_nbytes == pytest.approx(peak_of(after).nbytes, rel=0.02)


def of_a_view() -> float:
    base = torch.ones(N)
    view = base.view(-1)
    gate = view * 2.0
    total = float(gate.sum())
    base.mul_(3.0)
    a = torch.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    c = gate * 3.0
    return total + float(c.sum())


def of_itself() -> float:
    base = torch.ones(N)
    same = +base
    gate = same * 2.0
    total = float(gate.sum())
    base += 1.0
    a = torch.ones(2 * N)
    b = a * 2.0
    total += float(b.sum())
    del a, b
    c = gate * 3.0
    return total + float(c.sum())


@pytest.mark.parametrize("program", [of_a_view, of_itself])
def test_no_tensor_is_made_again_of_a_view_of_what_changes(program: Callable[[], float]) -> None:
    assert [each.text for each in peak_of(program).advice if each.text.startswith("recompute")] == []


def test_no_result_is_written_over_whole_numbers() -> None:
    def work() -> float:
        a = torch.ones(N).int()
        b = a + 1
        c = b * 0.5
        return float(c.sum())

    assert [each.text for each in peak_of(work).advice if each.text.startswith("in place")] == []


def test_a_training_loop_learns_what_it_learns_without() -> None:
    def train(run: Callable[[Callable[[], float]], float]) -> list[float]:
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> float:
            loss = model(torch.ones(32, 20)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return float(loss.item())

        return [run(step) for _ in range(4)]

    workspace = ds.Workspace("train")

    def in_a_pass(step: Callable[[], float]) -> float:
        with workspace.run():
            return step()

    assert train(in_a_pass) == train(lambda step: step())
    assert all("step()" in row.line for row in workspace.peak().living)
    assert workspace.peak().nbytes > 2 * (20 * 50 + 50) * 4


def test_an_exception_in_the_recorded_pass_leaves_the_mode() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    workspace = ds.Workspace("raises")
    with pytest.raises(ZeroDivisionError), workspace.run():
        torch.ones(3)
        raise ZeroDivisionError
    assert _get_current_dispatch_mode() is None


def test_numpy_and_torch_are_in_one_recording() -> None:
    def work() -> float:
        x = np.ones(N)
        y = torch.ones(N)
        return float(x.sum()) + float(y.sum())

    workspace = ds.Workspace("both")
    for _ in range(3):
        with workspace.run():
            work()
    assert workspace.peak().nbytes == pytest.approx(N * 12, rel=0.01)
    assert workspace.statistics().hits > 0


def test_the_peak_has_the_memory_of_tensors_after_a_new_plan_too() -> None:
    def work(n: int) -> float:
        y = torch.ones(N)
        x = np.ones(n)
        return float(x.sum()) + float(y.sum())

    workspace = ds.Workspace("both")
    for n in (N // 8, N // 8, N // 4, N // 4, N // 4):
        with workspace.run():
            work(n)
    assert len(workspace.statistics().replans) == 1
    assert workspace.peak().nbytes == pytest.approx(N * 4 + N // 4 * 8, rel=0.01)


def test_the_peak_has_the_memory_of_tensors_where_only_that_of_arrays_has_grown() -> None:
    workspace = ds.Workspace("both")
    # Less than the tensors have: the sum with them is what has to be found.
    for count in (1, 1, 2, 2, 3, 3, 4, 4):
        with workspace.run():
            tensor = torch.ones(N)
            arrays = [np.ones(N // 4, "f4") for _ in range(count)]
            float(tensor.sum()) + float(arrays[0].sum())
            del tensor, arrays
    assert workspace.peak().nbytes == pytest.approx(N * 4 + 4 * N, rel=0.01)


@pytest.mark.parametrize("limit", [None, "1 GB"])
def test_the_peak_of_one_pass_that_was_higher_than_all_others_is_found(limit: str | None) -> None:
    workspace = ds.Workspace("one", limit=limit)
    for count in (1000, 100_000, 1000, 1000):
        with workspace.run():
            float(np.ones(count).sum()) + float(torch.ones(10).sum())
    assert workspace.peak().nbytes == pytest.approx(800_000, rel=0.02)


def test_tensors_without_memory_are_no_births() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def work() -> None:
        with FakeTensorMode():
            x = torch.ones(N)
            x + 1.0

    assert peak_of(work).nbytes < N


def test_threads_that_record_at_once_leave_torch_compile_as_it_was() -> None:
    from torch.utils import _python_dispatch

    flags = {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_")}
    workspace = ds.Workspace("step")
    begun, first_is_over = threading.Event(), threading.Event()

    def record() -> None:
        with workspace.run():
            torch.ones(100)
            begun.set()
            assert first_is_over.wait(60)

    other = threading.Thread(target=record)
    with workspace.run():
        torch.ones(100)
        other.start()
        assert begun.wait(60)
        # Before 2.8 nothing is compiled where one of these is set.
        assert {name: value for name, value in vars(_python_dispatch).items() if name in flags} == flags
    first_is_over.set()
    other.join()
    assert {name: value for name, value in vars(_python_dispatch).items() if name in flags} == flags
    assert _python_dispatch._get_current_dispatch_mode() is None


def test_a_pytorch_without_the_stack_of_modes_is_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import _python_dispatch

    from disposescope.scopes.base.process import PATCHES
    from disposescope.tensors.torch.lives import note_lives

    class Lives:
        def __init__(self) -> None:
            self.noted: list[int] = []

        def note(self, nbytes: int) -> int:
            self.noted.append(nbytes)
            return len(self.noted)

        def note_death(self, number: int) -> None: ...

    failed: list[Any] = []
    monkeypatch.setattr(PATCHES, "fail", lambda patch, found: failed.append(patch.name))
    lives = Lives()
    monkeypatch.setattr(_python_dispatch, "_push_mode", None)
    monkeypatch.setattr(_python_dispatch.TorchDispatchMode, "__enter__", lambda mode: mode)
    monkeypatch.setattr(_python_dispatch.TorchDispatchMode, "__exit__", lambda *_: None)
    note_lives(lives)()
    assert [name.partition(":")[0] for name in failed] == ["torch.utils._python_dispatch"]
    assert lives.noted == []


def test_a_mode_of_the_program_stays_where_passes_end_under_it() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    workspace = ds.Workspace("generator")

    def products() -> Iterator[Any]:
        for _ in range(3):
            with workspace.run():
                x = torch.ones(100, 100)
                yield x @ x

    numbers = products()
    next(numbers)
    with FlopCounterMode(display=False) as counter:
        next(numbers)
        assert float((torch.ones(10, 10) @ torch.ones(10, 10))[0, 0]) == 10
    # A product of matrices takes two operations for each of rows × columns × columns.
    assert counter.get_total_flops() == 2 * 100**3 + 2 * 10**3
    numbers.close()  # type: ignore[attr-defined]  # it is a generator
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


@pytest.mark.long
def test_passes_of_a_generator_that_goes_on_in_other_threads() -> None:
    code = """
import threading, torch, disposescope as ds
from torch.utils._python_dispatch import _len_torch_dispatch_stack
workspace = ds.Workspace("threads")
def numbers():
    for number in range(6):
        with workspace.run():
            yield float((torch.ones(100) * number).mean())
each, found = numbers(), []
for turn in range(6):
    if turn % 2:
        thread = threading.Thread(target=lambda: found.append(next(each)))
        thread.start()
        thread.join()
    else:
        found.append(next(each))
print(found)
list(each)
# What ended on another thread than it began on goes with the next recording.
with ds.Workspace("next").run():
    torch.ones(3)
assert _len_torch_dispatch_stack() == 0
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n", "")


def test_each_of_two_tasks_records_its_own_tensors() -> None:
    first, second = ds.Workspace("first"), ds.Workspace("second")

    async def passes(workspace: ds.Workspace, size: int) -> None:
        for _ in range(3):
            with workspace.run():
                x = torch.ones(size)
                await asyncio.sleep(0)
                y = x * 2
                await asyncio.sleep(0)
                del x, y

    async def others() -> None:
        for _ in range(12):
            x = torch.ones(1_000_000)
            await asyncio.sleep(0)
            del x

    async def main() -> None:
        await asyncio.gather(passes(first, 1_000), passes(second, 5_000), others())

    asyncio.run(main())
    assert (first.peak().nbytes, second.peak().nbytes) == (8_000, 40_000)


def test_a_limit_judges_the_tensors_of_each_pass() -> None:
    workspace = ds.Workspace("limit", limit="1 MB")
    for size in (1_000, 1_000, 1_000_000):
        with workspace.run():
            (torch.ones(size) * 2).sum()
    with pytest.raises(MemoryError, match="a limit of 1"):
        workspace.run().__enter__()


def test_nothing_is_said_of_a_variable_whose_tensor_a_graph_has_saved() -> None:
    first = torch.randn(64, 4096, requires_grad=True)
    second = torch.randn(4096, 10, requires_grad=True)
    batch = torch.randn(256, 64)

    def train() -> None:
        product = batch @ first
        active = torch.relu(product)
        scores = active @ second
        scores.pow(2).mean().backward()
        first.grad = second.grad = None

    def train_with_deletion() -> None:
        product = batch @ first
        active = torch.relu(product)
        del product
        scores = active @ second
        scores.pow(2).mean().backward()
        first.grad = second.grad = None

    told = peak_of(train)
    # Relu saves its result, and the product of matrices both operands.
    names = [each.text.split()[1] for each in told.advice if each.text.startswith("del")]
    assert "product" in names
    assert "active" not in names
    advice = next(each for each in told.advice if each.text.startswith("del product"))
    assert peak_of(train_with_deletion).nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


def test_a_tensor_that_was_multiplied_with_itself_is_saved() -> None:
    scale = torch.ones(N, requires_grad=True)

    def train() -> None:
        x = scale + 1.0
        y = x * x
        z = y.sum()
        later = torch.ones(2 * N)
        later.sum()
        z.backward()
        scale.grad = None

    assert not [each.text for each in peak_of(train).advice if each.text.startswith("del x ")]


def test_without_a_graph_the_same_variable_can_be_deleted() -> None:
    weights = torch.randn(4096, 10, requires_grad=True)

    def infer() -> float:
        with torch.no_grad():
            active = torch.relu(torch.ones(256, 4096))
            scores = active @ weights
            later = torch.ones(1024, 2048)
            return float(scores.sum() + later.sum())

    assert any(each.text.startswith("del active after") for each in peak_of(infer).advice)


# What `x` goes into, and whether anything has it still; the program is as in `test_advice_applied`.

TORCH_PROGRAM = """
import torch
from torch import nn

N = 100_000
kept = []
quiet = nn.Dropout().eval()
same = nn.Identity()
linear = nn.Linear(100, 10)
seen = nn.Linear(100, 10)
seen.register_forward_hook(lambda module, inputs, output: kept.append((inputs, output)))

class Tap(nn.Module):
    def forward(self, value):
        kept.append(value)
        return value

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(100, 10)

    def forward(self, value):
        return torch.relu(self.layer(value))

tapped = nn.Sequential(Tap(), nn.Linear(100, 10))
net = Net()

class Sub(torch.Tensor):
    pass

def step():
    kept.clear()
    with torch.no_grad():
        {made}
        {use}
        a = torch.ones(N)
        b = a + 1.0
        c = torch.exp(b)
        return float(c.sum())
"""
KEPT_TENSOR = {
    "a key of a dict": "v = {}\n        v[x] = 1",
    "itself": "v = +x",
    "a module that returns it": "v = same(x)",
    "dropout while evaluating": "v = quiet(x)",
    "a module with a hook": "v = seen(x)",
    "a module with another that keeps it": "v = tapped(x)",
    "a view by indices": "v = torch.einsum('ij->ji', x)",
    "views of one shape": "v = torch.broadcast_tensors(x, x)",
    "parts": "v = x.split_with_sizes([50, 50], 1)",
    "a subclass": "v = x.as_subclass(Sub)",
    "a mesh": "v = torch.meshgrid(x[0], x[1], indexing='ij')",
    "a function in place": "v = nn.functional.relu(x, inplace=True)",
    "a function in place, by position": "v = nn.functional.relu(x, True)",
    "a function in place, by a variable": "v = nn.functional.leaky_relu(x, 0.1, N > 1)",
    "a function that changes it": "v = torch.relu_(x)",
    "a function that fills it": "v = nn.init.constant_(x, 1.0)",
}
FREE_TENSOR = {
    "a module": "v = linear(x)",
    "a module of the program's": "v = net(x)",
    "a function": "v = nn.functional.gelu(x)",
    "a method in place": "x.mul_(2.0)\n        v = float(x.sum())",
    "an operator": "v = x @ x.T.contiguous()[:, :10]",
}


def torch_peak(file: Path, text: str) -> ds.Peak:
    file.write_text(text, encoding="utf-8")
    sys.modules["of_torch"] = module = ModuleType("of_torch")
    module.__file__ = str(file)
    names: dict[str, Any] = vars(module)
    exec(compile(text, str(file), "exec"), names)
    workspace = ds.Workspace("of_torch")
    for _ in range(2):
        with workspace.run():
            names["step"]()
    try:
        return workspace.peak()
    finally:
        del sys.modules["of_torch"]


def deletion_of_x(peak: ds.Peak) -> ds.Advice | None:
    return next((each for each in peak.advice if each.text.startswith("del x after")), None)


def modes_allow_subclasses() -> bool:
    """Whether ``as_subclass()`` works in a mode: in PyTorch 2.5 it raises in any."""
    from torch.utils import _python_dispatch

    class Passing(_python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Passing():
        try:
            torch.ones(1).as_subclass(Own)
        except RuntimeError:
            return False
    return True


class Own(torch.Tensor):
    """A subclass of the program's."""


@pytest.mark.parametrize("use", KEPT_TENSOR.values(), ids=list(KEPT_TENSOR))
def test_nothing_is_said_of_a_tensor_that_is_kept(tmp_path: Path, use: str) -> None:
    if "as_subclass" in use and not modes_allow_subclasses():
        pytest.skip("this PyTorch refuses as_subclass() in every TorchDispatchMode")
    text = TORCH_PROGRAM.replace("{made}", "x = torch.ones(1000, 100)").replace("{use}", use)
    assert deletion_of_x(torch_peak(tmp_path / "kept.py", text)) is None


def test_nothing_is_said_of_what_a_module_may_return_as_it_is(tmp_path: Path) -> None:
    program = """
import torch

class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Linear(1000, 1)])

    def forward(self, x):
        out = 0.0
        for layer in self.layers:
            x_twice = x * 2
            z = layer(x_twice)
            w = torch.cat([z, z, z])
            out += float(w.sum() + z.sum())
            del w, z
        return out

layers = Layers()

def step():
    with torch.no_grad():
        return layers(torch.ones(500, 1000))
"""
    peak = torch_peak(tmp_path / "program.py", program)
    assert [each.text for each in peak.advice if each.text.startswith("del x_twice")] == []


ACTIVATIONS_IN_ATTRIBUTES = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, active):
        super().__init__()
        self.active = active

    def forward(self, value):
        x = value * 2.0
        z = self.active(x)
        w = torch.cat([z, z, z])
        return float(w.sum() + z.sum())

blocks = [Block(nn.Tanh()), Block({other})]

def step():
    with torch.no_grad():
        return sum(block(torch.ones(200, 100)) for block in blocks)
"""


def test_nothing_is_said_of_what_a_module_in_an_attribute_may_return_as_it_is(tmp_path: Path) -> None:
    text = ACTIVATIONS_IN_ATTRIBUTES.replace("{other}", "nn.Identity()")
    assert deletion_of_x(torch_peak(tmp_path / "program.py", text)) is None


@pytest.mark.parametrize("other", ["nn.Tanh()", "nn.ReLU()", "nn.GELU()"])
def test_the_peak_of_what_goes_into_a_module_in_an_attribute_is_what_was_said(tmp_path: Path, other: str) -> None:
    text = ACTIVATIONS_IN_ATTRIBUTES.replace("{other}", other)
    advice = deletion_of_x(torch_peak(tmp_path / "program.py", text))
    assert advice is not None
    deleted = text.replace("z = self.active(x)", "z = self.active(x)\n        del x")
    after = torch_peak(tmp_path / "after.py", deleted)
    assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


def test_nothing_is_said_of_a_tensor_that_a_hook_has(tmp_path: Path) -> None:
    made = "y = torch.ones(10000, 100)\n        x = seen(y)\n        del y"
    text = TORCH_PROGRAM.replace("{made}", made).replace("{use}", "v = float(x.sum())")
    assert deletion_of_x(torch_peak(tmp_path / "hook.py", text)) is None


@pytest.mark.parametrize("use", FREE_TENSOR.values(), ids=list(FREE_TENSOR))
def test_the_peak_of_a_tensor_that_is_used_up_is_what_was_said(tmp_path: Path, use: str) -> None:
    text = TORCH_PROGRAM.replace("{made}", "x = torch.ones(1000, 100)")
    advice = deletion_of_x(torch_peak(tmp_path / "free.py", text.replace("{use}", use)))
    assert advice is not None
    after = torch_peak(tmp_path / "after.py", text.replace("{use}", f"{use}\n        del x"))
    assert after.nbytes == pytest.approx(advice.peak_nbytes, rel=0.02)


NOT_OVER_TENSORS = {
    "still needed": "z = torch.ones(N) * 2.0\n    g = torch.tanh(z)\n    g += z\n    return float(g[0])",
    "whole numbers": "z = torch.arange(N)\n    z = z * 0.5\n    return float(z[1])",
    "a leaf": "z = torch.ones(N)\n    z.requires_grad_()\n    z = z * 2.0\n    return float(z.detach()[0])",
}


@pytest.mark.parametrize("body", NOT_OVER_TENSORS.values(), ids=list(NOT_OVER_TENSORS))
def test_nothing_is_written_over_a_tensor_that_is_needed(tmp_path: Path, body: str) -> None:
    text = f"import torch\n\nN = 100_000\n\ndef work():\n    {body}\n\ndef step():\n    work()\n    torch.ones(3)\n"
    advice = torch_peak(tmp_path / "program.py", text).advice
    assert [each for each in advice if each.text.startswith("in place")] == []
