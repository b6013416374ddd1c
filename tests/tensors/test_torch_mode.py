"""The mode that sees births in Python, where they cannot be seen at the allocation."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.tensors.torch import compiled as TORCH_COMPILED
from disposescope.tensors.torch.births import MODE, BirthMode


def seen_by_the_mode(work):
    """What some work returns, with births seen by the mode alone."""
    mode = BirthMode()
    mode.records = True
    with mode:
        return TORCH_COMPILED.unborn(lambda _: work(), None)


def test_what_calls_return_is_born():
    def work():
        x = torch.ones(3)
        return x, x + 1, x.sum(), torch.nn.functional.relu(x), copy.deepcopy(x), *x.split(1)

    with ds.dispose_scope() as scope:
        made = seen_by_the_mode(work)
        assert all(tensor in scope for tensor in made)
    assert all(ds.is_disposed(tensor) for tensor in made)


def test_a_packed_sequence_is_one_birth():
    given = [torch.ones(2), torch.ones(3)]
    with ds.dispose_scope() as scope:
        ds.reset_statistics()
        packed = seen_by_the_mode(lambda: torch.nn.utils.rnn.pack_sequence(given, enforce_sorted=False))
        now = ds.statistics()
        assert (now.created_in_scope, now.disposed_in_scope, now.live) == (1, 0, 1)
        assert packed in scope


def test_what_was_there_is_not():
    x = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()

    def work():
        results = [
            x.add_(1),
            x.contiguous(),
            torch.add(x, 1, out=x),
            weight.grad,
            x.to(x.dtype),
            torch.utils.checkpoint.checkpoint(lambda y: y, weight, use_reentrant=False),
        ]
        torch.broadcast_tensors(x, x)
        x.shape, x.dtype, x.tolist()
        return results

    with ds.dispose_scope():
        results = seen_by_the_mode(work)
        assert all(ds.owner_of(tensor) is None for tensor in results)
    assert x.tolist() == [3, 3, 3]


def test_what_is_made_inside_of_a_backward_pass_or_a_transform_is_not():
    weight = torch.ones(3, requires_grad=True)
    made = []
    weight.register_hook(lambda gradient: made.append(gradient * 2))

    def work():
        weight.sum().backward()
        torch.func.grad(lambda y: made.append(y * 2) or y.sum())(torch.ones(3))

    with ds.dispose_scope() as scope:
        seen_by_the_mode(work)
        assert len(made) == 2
        assert not [tensor for tensor in made if tensor in scope]


def test_what_a_model_is_given_is_the_models():
    module = torch.nn.BatchNorm1d(3)
    weight = torch.ones(3, requires_grad=True)

    def work():
        module.register_buffer("more", torch.zeros(3))
        weight.grad = torch.full((3,), 2.0)
        return copy.deepcopy(module)

    with ds.dispose_scope():
        copied = seen_by_the_mode(work)
    assert copied.more.sum() == module.more.sum() == 0
    assert copied(torch.ones(2, 3)).shape == (2, 3)
    assert weight.grad.sum() == 6


def test_a_budget_refuses_what_a_call_returned():
    with ds.dispose_scope(budget=4096) as scope:
        for make in (lambda: torch.ones(100_000), lambda: torch.ones(100_000).split(10)):
            with pytest.raises(MemoryError):
                seen_by_the_mode(make)
        assert len(scope) == 0
        fits = seen_by_the_mode(lambda: torch.ones(10))
        assert fits in scope


def test_outside_of_every_scope_nothing_is_born():
    made = seen_by_the_mode(lambda: torch.ones(3) + 1)
    assert ds.owner_of(made) is None
    assert type(MODE) is BirthMode
    assert not MODE.records


UNKNOWN_PYTORCH = """
import torch
import disposescope as ds
from disposescope.tensors.torch import compiled as TORCH_COMPILED

class Watch:
    def __init__(self, **needed): pass
    def start(self, **given): return False

TORCH_COMPILED.BirthWatch = Watch
old = torch.ones(4, 6)
with ds.LeakDetector() as detector:
    kept = [old.detach(), old[1:], torch.relu(old), torch.max(old, dim=0), torch.nn.Linear(2, 2), old.add_(1)]
    with ds.dispose_scope() as scope:
        born = torch.ones(7)
        assert born in scope
        more = scope.move_to_outer(torch.zeros(3))
    assert ds.is_disposed(born)
    print(sorted(seen.nbytes for seen in detector.memory() if seen.kind == "torch.Tensor"))
assert torch._C._len_torch_function_stack() == 0
assert [record.state for record in detector.take_snapshot() if record.shape == (7,)] == ["disposed"]
try:
    with ds.dispose_scope(budget=100):
        torch.ones(1000)
except MemoryError:
    print("refused")
"""


def test_a_pytorch_that_does_not_fit_is_watched_by_the_mode_alone():
    done = subprocess.run([sys.executable, "-c", UNKNOWN_PYTORCH], capture_output=True, text=True, check=False)
    [warning] = [line for line in done.stderr.splitlines() if "Warning: " in line]
    assert f"RuntimeWarning: torch {torch.__version__} is not known to disposescope (tested: " in warning
    assert "scopes see what calls of PyTorch's functions return, and neither what torch.from_numpy" in warning
    assert done.stdout == "[12, 24, 48, 96]\nrefused\n"


PROBE_MISSES = """
import torch
import disposescope as ds
from disposescope.tensors.torch import compiled as TORCH_COMPILED

class Watch:
    allocations = 0
    def __init__(self, **needed): self.watch = BirthWatch(**needed)
    def __getattr__(self, name): return getattr(self.watch, name)

BirthWatch, TORCH_COMPILED.BirthWatch = TORCH_COMPILED.BirthWatch, Watch
with ds.dispose_scope() as scope:
    born = torch.ones(7)
    assert born in scope
    assert torch.from_numpy(born.numpy()) not in scope
assert ds.is_disposed(born)
"""


def test_a_probe_that_sees_no_birth_has_the_mode_take_over():
    done = subprocess.run([sys.executable, "-c", PROBE_MISSES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "Warning: " in line]
    assert ": torch.empty was not seen; scopes see what calls of PyTorch's functions return" in warning


NOTHING_CAN_BE_DISPOSED = """
import torch
{change}
import disposescope as ds

with ds.dispose_scope() as scope:
    born = torch.ones(7)
    packed = torch.nn.utils.rnn.pack_sequence([born])
    assert born not in scope and packed not in scope and ds.ones(3) in scope
assert born.sum() == 7
with ds.LeakDetector():
    pass
"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("del torch._C._swap_tensor_impl", "AttributeError: "),
        ("torch._C._swap_tensor_impl = lambda *_: None; torch.Tensor.tolist = lambda _: []", "RuntimeError: "),
    ],
)
def test_a_pytorch_whose_tensors_cannot_be_disposed_is_left_alone_with_a_warning(change, found):
    program = NOTHING_CAN_BE_DISPOSED.format(change=change)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "Warning: " in line]
    assert f"(tested: 2.5 to 2.15): {found}" in warning
    assert warning.endswith("scopes do not own tensors of this PyTorch: use one that was tested")


GRAPHS_DO_NOT_SHOW = """
import sys
import torch
if hasattr(torch._C._autograd.SavedTensor, "data"):
    del torch._C._autograd.SavedTensor.data
import disposescope as ds

with ds.dispose_scope():
    pass
weight = torch.ones(1000, requires_grad=True)
unpacked = []
def unpack(packed):
    unpacked.append(packed)
    return packed[0]

with torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor.clone()], unpack):
    hooked = weight.exp()
results = {
    "plain": weight.exp(),
    "a number": weight * 2.0,
    "several": torch.cat([weight * weight, weight]),
    "hooked": hooked,
}
print({name: ds.graph_nbytes(result) for name, result in results.items()}, len(unpacked))
changed = weight.exp()
changed += 1
print("changed in place", ds.graph_nbytes(changed), ds.graph_nbytes(changed), file=sys.stderr)
sum(result.sum() for result in results.values()).backward()
print({name: ds.graph_nbytes(result) for name, result in results.items()}, len(unpacked))
with ds.LeakDetector() as detector:
    kept = weight.exp()
    kept += 1
    print(detector.report(of_program=True).unwatched)
del kept, changed
with ds.LeakDetector() as detector:
    other = torch.ones(3)
    print(detector.report(of_program=True).unwatched)
"""


@pytest.mark.long
def test_a_graph_that_does_not_show_what_it_saved_is_read_by_its_public_attributes_and_runs_no_hook():
    done = subprocess.run([sys.executable, "-c", GRAPHS_DO_NOT_SHOW], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "Warning: " in line]
    assert (
        "; graphs are read by their public attributes: what was changed in place since it was saved is not " in warning
    )
    assert done.stderr.endswith("changed in place 0 0\n")
    assert done.stdout.splitlines() == [
        "{'plain': 4000, 'a number': 0, 'several': 4000, 'hooked': 4000} 0",
        "{'plain': 0, 'a number': 0, 'several': 0, 'hooked': 0} 1",
        f"('torch {torch.__version__} (tested: 2.5 to 2.15): what graphs saved and was changed in place since',)",
        # Said of reports that met such a graph, and not of later ones.
        "()",
    ]


NOTHING_PRIVATE = """
import os, re, sys
from pathlib import Path
import torch
import torch._dynamo.eval_frame, torch._dynamo.output_graph, torch._functorch.apis, torch.export.exported_program
room = Path(sys.argv[1])
source = "\\n".join(file.read_text() for file in sorted(room.glob("*.py")))
names = sorted(set(re.findall(r"_C[.](_?[A-Za-z]\\w+(?:[.]\\w+)?)", source)))
names = [(torch._C, name) for name in names]
names += [(torch._dynamo.output_graph, "OutputGraph"), (torch._dynamo.eval_frame, "_maybe_set_eval_frame")]
names += [(torch._functorch.apis, "vmap_impl"), (torch.export.exported_program, "ExportedProgram")]
names += [(torch.utils.data.dataloader, "_MultiProcessingDataLoaderIter"), (torch.jit._builtins, "_register_builtin")]
tried = 0
for owner, name in names:
    *within, last = name.split(".")
    for part in within:
        owner = getattr(owner, part, None)
    if not hasattr(owner, last):
        continue
    tried += 1
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            delattr(owner, last)
        except (AttributeError, TypeError):
            os._exit(0)
        try:
            import disposescope as ds
            for _ in range(2):
                with ds.dispose_scope() as scope:
                    kept = scope.move_to_outer(torch.ones(3) + 1)
            assert kept.tolist() == [2.0] * 3
            with ds.LeakDetector() as detector:
                result = torch.ones(3, requires_grad=True) * 2
                detector.report()
            try:
                assert ds.graph_nbytes(result) >= 0
            except ImportError as error:
                # In one line, whatever it is that is missing.
                assert "is not known to disposescope" in str(error)
        except BaseException as error:
            print(name, type(error).__name__, error)
            sys.stdout.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status and not os.WIFEXITED(status):
        print(name, "crashes")
print("tried", tried > 30)
"""


@pytest.mark.unmeasured
@pytest.mark.long
def test_no_block_raises_whatever_private_name_a_pytorch_lacks():
    room = Path(ds.__file__).parent / "tensors" / "torch"
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_PRIVATE, str(room)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tried True\n"
