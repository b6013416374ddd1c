"""PyTorch may be imported before the library, after it, and inside of an open scope."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

# What is long, all together.
pytestmark = pytest.mark.long

pytest.importorskip("torch")


@pytest.mark.parametrize("nesting", ["", "with ds.dispose_scope(): "])
def test_inside_of_a_scope(nesting):
    program = f"""
        import disposescope as ds

        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            {nesting}import torch
            tensor = torch.ones(3)
            assert tensor in scope
            scope.move_to_outer(tensor)
        assert ds.is_disposed(tensor)
        assert torch._C._len_torch_function_stack() == 0
    """
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(program)], check=True)


def test_inside_of_a_transform():
    program = """
        import torch
        import disposescope as ds

        gradient = torch.func.grad(lambda x: ds.pad_sequence([x, x]).sum())(torch.ones(3))
        assert gradient.tolist() == [2, 2, 2]
        with ds.dispose_scope() as scope:
            assert torch.ones(3) + 1 in scope
    """
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(program)], check=True)


INTERRUPTED = """
import contextlib, gc, os, sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import numpy as np
import torch
from torch.distributions import Categorical
from torch.optim import optimizer as hooks

import disposescope as ds

# Before the children: each is to be quick.
import disposescope.leaks.detector
import torch.func

gc.disable()

ROOM = str(Path(next(iter(ds.__path__)), "tensors", "torch").resolve())
REPEATED = ("<module>", "_subclasses", "<genexpr>", "verdict", "_judge", "keeps_births")


class Interruption:
    def __init__(self, number):
        self.number, self.place, self.installs = number, None, False

    def meet(self, frame):
        self.number -= 1
        if self.number == 0:
            sys.settrace(None)
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise KeyboardInterrupt

    def lines(self, frame, event, argument):
        if event == "line":
            self.meet(frame)
        return self.lines

    def calls(self, frame, event, argument):
        code = frame.f_code
        if not os.path.realpath(code.co_filename).startswith(ROOM):
            return None
        # Of a module that is imported the beginning, of what installs each line.
        self.installs = self.installs or code.co_name == "install"
        if code.co_name == "<module>":
            self.meet(frame)
        return self.lines if self.installs and code.co_name not in REPEATED else None



def begin(interruption):
    sys.settrace(interruption.calls)
    try:
        with contextlib.suppress(KeyboardInterrupt), ds.dispose_scope("interrupted"):
            pass
    finally:
        sys.settrace(None)


def check():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.5)
    with ds.dispose_scope("outer") as outer, ds.dispose_scope() as scope:
        made = [torch.ones(3), torch.from_numpy(np.ones(3)), weight * 2]
        made += torch.vmap(torch.sin)(made[0]), torch.nn.utils.rnn.pack_sequence([made[0]]).data
        made[2].sum().backward()
        optimizer.step()
        with ThreadPoolExecutor() as executor:
            made.append(executor.submit(copy_context().run, torch.ones, 2).result())
        logits = Categorical(probs=torch.ones(2)).logits
        assert all(tensor in scope for tensor in made), [tensor in scope for tensor in made]
        assert logits not in scope
    assert all(map(ds.is_disposed, made))
    assert not ds.is_disposed(weight.grad) and not ds.is_disposed(optimizer.state[weight]["momentum_buffer"])
    assert torch._C._len_torch_function_stack() == 0
    assert len(hooks._global_optimizer_pre_hooks) == len(hooks._global_optimizer_post_hooks) == 1
    assert not hasattr(torch.nn.Module.__setstate__.__wrapped__, "__wrapped__")
    with ds.LeakDetector() as detector:
        kept = torch.ones(1000)
    assert [seen.nbytes for seen in detector.memory() if seen.kind == "torch.Tensor"] == [4000]


# Some of the places: each child takes a while.
number, wrong = -22, 0
while True:
    number += 23
    child = os.fork()
    if child == 0:
        interruption = Interruption(number)
        status = 0
        try:
            begin(interruption)
            check()
        except BaseException as error:
            print(interruption.place, repr(error), flush=True)
            status = 1
        os._exit(status or (2 if interruption.place is None else 0))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 2:
        break
    wrong += status != 0
print(number, wrong)
assert number > 200
assert not wrong
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each place is tried in a child of its own")
@pytest.mark.long
def test_an_interrupt_anywhere_in_the_installation_is_made_up_for_by_the_next_scope():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
