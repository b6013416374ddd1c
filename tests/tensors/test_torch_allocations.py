"""Births are seen where the Python object of a tensor is made: all of them, and nothing that only looks like one."""

from __future__ import annotations

import contextvars
import gc
import pickle
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import disposescope as ds
from disposescope.tensors._torch_extension import TORCH_HOT

compiled = pytest.mark.skipif(TORCH_HOT is None, reason="the compiled part sees births so")


def depth():
    return torch._C._len_torch_function_stack()


@compiled
def test_no_mode_is_on_the_stack():
    with ds.dispose_scope() as scope:
        assert depth() == 0
        torch.ones(3)
        torch.rand(2).sum()
        made = torch.ones(3)
        assert scope.live == (made,)


@pytest.mark.parametrize("array_of", [lambda t: t.numpy(), lambda t: t[1:].numpy(), np.asarray, np.from_dlpack])
def test_the_object_under_an_array_is_nobodys(array_of):
    with ds.dispose_scope() as scope:
        tensor = torch.arange(10_000.0)
        array = array_of(tensor)
        assert scope.live == (tensor,)
    assert ds.is_disposed(tensor)
    torch.zeros(10_000), torch.zeros(9_999)
    assert array[-1] == 9_999


def test_the_numpy_of_what_wants_gradients_refuses_as_ever():
    with ds.dispose_scope(), pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(3, requires_grad=True).numpy()
    with ds.dispose_scope() as scope:
        array = torch.ones(3, requires_grad=True).numpy(force=True)
        assert len(scope) == 0
    assert array.sum() == 3


def test_a_gradient_that_is_looked_at_first_in_a_scope_is_the_parameters():
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    with ds.dispose_scope() as scope:
        gradient = weight.grad
        assert len(scope) == 0
    assert gradient.sum() == 3
    with ds.dispose_scope() as scope:
        weight.grad = given = torch.full((3,), 5.0)
        assert given not in scope
        with pytest.raises(TypeError):
            weight.grad = "something else"
        del weight.grad
    assert given.sum() == 15


def test_a_buffer_that_is_unpickled_is_its_modules():
    pickled = pickle.dumps(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))
    with ds.dispose_scope() as scope:
        module = pickle.loads(pickled)
        assert len(scope) == 0
    assert module(torch.ones(2, 3)).shape == (2, 3)


HOOKS = {
    "the same": (lambda x: x, lambda x: x),
    "a copy": (lambda x: x.clone(), lambda x: x),
    "in a tuple": (lambda x: (x.dtype, x), lambda kept: kept[1]),
    "in a list": (lambda x: [x * 2], lambda kept: kept[0] / 2),
    "an array": (lambda x: x.detach().numpy().copy(), torch.from_numpy),
}


@pytest.mark.parametrize(("pack", "unpack"), HOOKS.values(), ids=HOOKS)
def test_what_hooks_keep_for_a_backward_pass_outlives_the_scope(pack, unpack):
    def loss(weight):
        hidden = weight.exp() * weight.sin()
        return (hidden.exp() * 0.1).sum()

    plain = torch.rand(3, requires_grad=True)
    loss(plain).backward()
    weight = plain.detach().clone().requires_grad_()
    with ds.dispose_scope() as scope, torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        kept = scope.detach(loss(weight))
        assert len(scope) == 0
    kept.backward()
    assert torch.equal(weight.grad, plain.grad)


def test_hooks_see_the_tensors_that_are_saved_outside_of_scopes():
    seen = []
    weight = torch.rand(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        square = weight * weight
    assert [one is weight for one in seen] == [True, True]
    square.sum().backward()
    assert torch.equal(weight.grad, 2 * weight.detach())


def test_a_graph_saved_on_the_cpu_gives_the_same_gradients():
    weight = torch.rand(3, requires_grad=True)
    with ds.dispose_scope() as scope, torch.autograd.graph.save_on_cpu():
        loss = scope.detach((weight.exp() * weight).sum())
    loss.backward()
    expected = weight.detach()
    assert torch.allclose(weight.grad, expected.exp() * (1 + expected))


def test_classes_made_later_and_with_a_metaclass_of_their_own_are_known():
    class Meta(type(torch.Tensor)):
        pass

    class Metres(torch.Tensor, metaclass=Meta):
        pass

    class Feet(Metres):
        pass

    with ds.dispose_scope() as scope:
        for cls in (Metres, Feet):
            made = torch.ones(3).as_subclass(cls) * 2
            assert type(made) is cls
            assert made in scope
            dead = made
    with pytest.raises(ds.DisposedError):
        dead.sum()


def test_tensors_with_slots_of_their_own_are_no_births():
    class Slotted(torch.Tensor):
        __slots__ = ("extra",)

    with ds.dispose_scope():
        slotted = torch.ones(3).as_subclass(Slotted)
    assert slotted.sum() == 3


@compiled
def test_a_thread_that_enters_the_context_by_itself_makes_births_in_it():
    made = []

    def work(context):
        context.run(lambda: made.append(torch.ones(3)))

    with ds.dispose_scope() as scope:
        thread = threading.Thread(target=work, args=(contextvars.copy_context(),))
        thread.start()
        thread.join()
        assert scope.live == tuple(made)


def test_a_detector_opened_on_another_thread_is_told_where_a_tensor_was_born():
    opened, done = threading.Event(), threading.Event()

    def detect():
        with ds.LeakDetector():
            opened.set()
            done.wait(30)

    def use():
        with ds.dispose_scope():
            thread.start()
            assert opened.wait(30)
            # The mode comes with the first birth that somebody is to be told of, and tells of the next.
            torch.ones(1)
            tensor = torch.ones(3)
        with pytest.raises(ds.DisposedError, match=r"test_torch_allocations\.py:\d+"):
            tensor.sum()

    thread = threading.Thread(target=detect)
    contextvars.copy_context().run(use)
    done.set()
    thread.join()


def test_a_detector_is_told_of_what_no_mode_sees():
    with ds.LeakDetector():
        with ds.dispose_scope() as scope:
            tensor = torch.from_numpy(np.ones(3))
            scope.attach(tensor)
        with pytest.raises(ds.DisposedError, match=r"test_torch_allocations\.py"):
            tensor.sum()


def test_a_budget_refuses_what_a_call_returned_and_nothing_is_left_of_it():
    with ds.dispose_scope() as outer:
        small = torch.ones(10)
        with ds.dispose_scope(budget=4096) as scope:
            with pytest.raises(MemoryError):
                torch.ones(100_000)
            with pytest.raises(MemoryError):
                torch.ones(100_000).split(10)
            assert len(scope) == 0
            fits = torch.ones(100)
            assert scope.live == (fits,)
            shared = torch.from_numpy(np.ones(2))
            assert shared.sum() == 2
        assert small in outer
        assert not ds.is_disposed(small)


def test_the_collector_may_run_at_any_birth():
    code = """
import gc, torch, disposescope as ds

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        with ds.dispose_scope() as scope:
            [repr(one) for one in gc.get_objects() if type(one) is torch.Tensor]
            scope.live, ds.statistics()

gc.set_threshold(1, 100, 100)
weight = torch.rand(3, requires_grad=True)
with ds.dispose_scope() as outer:
    for _ in range(30):
        Cycle()
        kept = torch.ones(3) * weight
        kept.split(1), kept.sum().backward(), [kept[0], kept.view(3)]
        for one in outer.live:
            one.shape
print("well")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


def test_dead_objects_do_not_stay():
    with ds.dispose_scope() as scope:
        for _ in range(1000):
            torch.ones(3) + 1
        gc.collect()
        assert len(scope) == 0
