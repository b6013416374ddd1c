"""What this package changes in Python, NumPy, PyTorch and JAX by functions is put back as it was.

`tests/scopes/test_process.py` tests the same of attributes that are replaced, and
`tests/leaks/test_session.py` of handlers of signals.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.python_implementation() != "CPython" or sys.maxsize < 2**32, reason="reads structs of 64-bit CPython"
)

# Each function returns the objects that a patch changes, in place of what they were. Numbers are
# addresses of C functions and of definitions of descriptors.
STATES = """
import ctypes, gc, sys

STATES = {"python: sys.meta_path": lambda: [*sys.meta_path], "python: gc.callbacks": lambda: [*gc.callbacks]}


def word(address, index):
    return ctypes.c_void_p.from_address(address + index * ctypes.sizeof(ctypes.c_void_p)).value


def slots(*classes):  # tp_init, tp_alloc and tp_new
    return [word(id(cls), index) for cls in classes for index in (37, 38, 39)]


def definition(descriptor):  # d_method, d_getset or d_base
    return word(id(descriptor), 5)
"""
NUMPY = """
import numpy as np

def functions_of_numpy():
    names = "array asarray asanyarray ascontiguousarray asfortranarray from_dlpack frombuffer".split()
    entries = [word(id(getattr(np._core._multiarray_umath, name)), 2) for name in names]  # m_ml
    entries.append(definition(vars(np.ndarray)["__setstate__"]))
    return [*(word(entry, 1) for entry in entries), *slots(np.ndarray, np.matrix)]

STATES["numpy: array, "] = functions_of_numpy
"""
TORCH = """
import torch, torch._dynamo.trace_rules as rules
from torch.nn.modules import module
from torch.optim import optimizer

def allocation():
    base, engine, meta = torch._C.TensorBase, torch._C._ImperativeEngine, type(torch.Tensor)
    names = "grad _grad _base data set_ untyped_storage numpy".split()
    descriptors = [*(vars(base)[name] for name in names), vars(engine)["run_backward"]]
    classes = slots(base, torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, meta)
    return [*classes, *map(definition, descriptors), word(id(vars(meta)["__init__"]), 6)]

def hooks():
    found = [getattr(module, f"_global_{what}_registration_hooks") for what in ("parameter", "buffer", "module")]
    found += [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
    return [hook for hooks in found for hook in hooks.values()]

def rules_of_traces():
    inlined = getattr(rules, "BUILTIN_INLINE_WHEN_CALLED", None) or rules.get_mod_inlinelist()
    refused = getattr(rules, "_disallowed_callable_ids", frozenset)
    return [*rules.SKIP_DIRS, rules.SKIP_DIRS_RE.pattern, frozenset(inlined), frozenset(refused())]

STATES |= {
    "torch: tp_alloc": allocation,
    "torch: torch.optim.Optimizer": hooks,
    "torch: torch._dynamo.trace_rules": rules_of_traces,
}
"""
JAX = """
import jax

STATES["jax: jax._src.api._post_hook_state"] = lambda: [
    getattr(jax._src.api, name, None) for name in ("_post_hook_state", "jax_jit")
]
"""
COMPARE = """
def are_same(some, others):
    return len(some) == len(others) and all(
        one is other or (type(one) in (int, str, frozenset) and one == other) for one, other in zip(some, others)
    )

def same_as_before():
    return {name for name, state in STATES.items() if are_same(state(), before[name])}

before = {name: state() for name, state in STATES.items()}
import disposescope as ds
from disposescope.scopes.base import process

with ds.LeakDetector(), ds.dispose_scope():
    assert not same_as_before(), same_as_before()
    changed = [
        f"{patch.library}: {patch.name}"
        for patch, changes in process.PATCHES._changes.items()
        if any(type(change) is process._Change for change in changes.values())
    ]
    # Every change of this kind has a state here.
    assert sorted(changed) == sorted(name for name in changed if name.startswith(tuple(STATES)))
    assert len(changed) == len(STATES), changed
    process.PATCHES.restore_all()
    assert same_as_before() == {*STATES}, {*STATES} - same_as_before()
    process.PATCHES.install_all()
    assert not same_as_before(), same_as_before()
assert same_as_before() == {name for name in STATES if name.startswith("numpy: ")}
process.PATCHES.restore_all()
assert same_as_before() == {*STATES}, {*STATES} - same_as_before()
print(len(changed))
"""


@pytest.mark.long
@pytest.mark.parametrize(("library", "states", "number"), [("torch", TORCH, 6), ("jax", JAX, 4)])
def test_what_functions_change_is_the_very_same_afterwards(library: str, states: str, number: int) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    others = f"import sys\nsys.modules.update({'jax' if library == 'torch' else 'torch'}=None)\n"
    done = subprocess.run(
        [sys.executable, "-c", others + STATES + NUMPY + states + COMPARE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{number}\n", "")
