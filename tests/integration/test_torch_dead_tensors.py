"""Programs that try to crash on dead tensors get an error every time, and never a value.

Each runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

PRELUDE = """
import contextlib, copy, io, json, math, operator, pickle, sys, warnings
import numpy as np, torch
import torch.utils.checkpoint
import disposescope as ds
warnings.simplefilter("ignore")

class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

@torch.jit.script
def scripted(x):
    return x * 2 + 1

@torch.jit.script
def scripted_size(x):
    return x.size(0)

traced = torch.jit.trace(lambda x: x + 1, torch.ones(3))

@torch.library.custom_op("dead::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 2

linear, gru = torch.nn.Linear(4, 4), torch.nn.GRU(4, 4)

def dead():
    with ds.dispose_scope():
        tensor = torch.rand(3, 4)
    return tensor
"""

USES = """
d.sum()|d + 1|d.tolist()|d.numpy()|d.clone()|d.data|d.T|d[0, 0]|d[0]|d.item()|float(d)|bool(d)|len(d)|list(d)
d.storage()|d.untyped_storage()|d.data_ptr()|d.stride()|d.size()|d.shape|d.numel()|d.dim()|d.is_contiguous()
torch.stack([live, d])|torch.cat([live, d])|live.add_(d)|live.copy_(d)|torch.add(live, live, out=d)|live + d
torch.mm(live, d.t())|d.__dlpack__()|torch.from_dlpack(d)|np.asarray(d)|np.array([d])|np.multiply(np.ones((3, 4)), d)
live[d > 0]
torch.tensor(d)|torch.tensor([d])|torch.linalg.svd(d)|d.cpu()|d.to("meta")|copy.copy(d)|copy.deepcopy(d)|pickle.dumps(d)
torch.save(d, io.BytesIO())|d.requires_grad_()|d.backward()
torch.autograd.grad(d, live)|torch.nn.Parameter(d)
d.set_(live)|live.set_(d)|d.resize_(3)|d.share_memory_()|d.is_shared()|d.view_as(live)|live.view_as(d)
live.expand_as(d)
torch._C._nn.linear(live, d)|torch._C._VariableFunctions.relu(d)|torch.ops.aten.relu(d)
torch.ops.aten.add.Tensor(live, d)
torch._C._nn.gelu(d)|torch.Tensor(d)|torch.vmap(torch.sin)(d)|torch.func.grad(torch.sum)(d)
torch.where(live > 0, live, d)
torch.einsum("ij,ij->i", live, d)|torch.equal(live, d)|torch.allclose(live, d)|d.coalesce()|torch.complex(live, d)
Doubles.apply(d)|scripted(d)|scripted_size(d)|traced(d)|op(d)|torch.ops.dead.op(d)|linear(d)|gru(d)
torch.nn.functional.linear(live, linear.weight, d)|torch.Tensor.add(live, d)|torch.autograd.backward(d)
torch.utils.checkpoint.checkpoint(lambda x: x * 2, d, use_reentrant=False)|torch.nn.functional.mse_loss(live, d)
torch.multiprocessing.reductions.reduce_tensor(d)|torch.nn.utils.rnn.pack_sequence([d])
torch.utils.data.default_collate([d])
torch._foreach_add([live, d], 1)|torch.nn.utils.clip_grad_norm_(d, 1.0)|torch.optim.SGD([d], lr=1.0)
linear.load_state_dict({"weight": d, "bias": d})|torch.func.functional_call(linear, {"weight": d}, (live,))
setattr(live, "data", d)|setattr(live, "grad", d)|setattr(d, "data", live)
live.index_put_((d,), live)|live.masked_fill(d, 1.0)
d.apply_(lambda v: v)|d.map_(live, lambda a, b: a)|torch.quantize_per_tensor(d, 0.1, 1, torch.qint8)|torch.fft.fft(d)
torch.utils.dlpack.to_dlpack(d)|torch.utils.swap_tensors(live, d)|torch.nested.nested_tensor([d])|d.pin_memory()
"""

DRIVER = """
def attempt(use, context):
    d, live = dead(), torch.rand(3, 4)
    with contextlib.ExitStack() as stack:
        for make in context:
            stack.enter_context(make())
        try:
            result = eval(use, dict(globals(), d=d, live=live))
        except ds.DisposedError:
            return "disposed"
        except Exception as error:
            return "error"
        return "value"

uses = [use.strip() for line in USES.strip().splitlines() for use in line.split("|")]
for use in uses:
    print(use, flush=True)
    outcome = attempt(use, CONTEXT)
    print("->", outcome, flush=True)
"""


def run(folder, program):
    """Run a program from a file, which TorchScript wants to read."""
    path = folder / "program.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment)


def outcomes(folder, context):
    done = run(folder, PRELUDE + f"USES = {USES!r}\nCONTEXT = [{context}]\n" + DRIVER)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"died in {lines[-1:]}: {done.stderr[-2000:]}"
    return dict(zip(lines[::2], (line.removeprefix("-> ") for line in lines[1::2]), strict=True))


@pytest.mark.long
def test_every_use_is_refused(tmp_path):
    found = outcomes(tmp_path, "")

    assert "value" not in found.values(), [use for use, outcome in found.items() if outcome == "value"]
    # TorchScript reports what happens in it as a RuntimeError; the others refuse a tensor without
    # memory themselves.
    assert {use for use, outcome in found.items() if outcome == "error"} <= {
        "scripted(d)",
        "scripted_size(d)",
        "traced(d)",
        'setattr(live, "data", d)',
        'setattr(live, "grad", d)',
        "torch.utils.dlpack.to_dlpack(d)",
        "torch.utils.swap_tensors(live, d)",
    }


@pytest.mark.long
@pytest.mark.parametrize("context", ["torch._C.DisableTorchFunctionSubclass", "torch._C.DisableTorchFunction"])
def test_every_use_is_refused_where_torch_functions_are_disabled(context, tmp_path):
    found = outcomes(tmp_path, context)

    assert "value" not in found.values(), [use for use, outcome in found.items() if outcome == "value"]


@pytest.mark.long
def test_nothing_crashes_where_the_dispatch_to_python_is_disabled_too(tmp_path):
    outcomes(tmp_path, "torch._C.DisableTorchFunctionSubclass, torch._C._DisableTorchDispatch")


@pytest.mark.long
def test_resident_memory_comes_back_at_the_end_of_the_scope(tmp_path):
    program = PRELUDE + textwrap.dedent(
        """
        import psutil
        process = psutil.Process()
        def resident():
            return process.memory_info().rss / 2**20
        torch.ones(1)
        before = resident()
        held = []
        with ds.dispose_scope() as scope:
            for _ in range(8):
                held.append(torch.ones(16 * 2**20 // 4))
            held.append(held[0][:10] * 2)
            inside = resident()
        after = resident()
        assert inside - before > 100, (before, inside)
        assert after - before < 40, (before, inside, after)
        assert all(ds.is_disposed(tensor) for tensor in held)
        """
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr


def test_without_torch_nothing_of_it_is_imported(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        import disposescope as ds
        with ds.dispose_scope():
            pass
        assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
        assert "disposescope.tensors.torch.adapter" not in sys.modules
        """
    )
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
