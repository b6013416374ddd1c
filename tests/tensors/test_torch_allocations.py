"""Births are seen where a tensor's Python object is made.

All of them are seen, and nothing that only looks like one.
"""

from __future__ import annotations

import abc
import contextvars
import functools
import gc
import io
import pickle
import subprocess
import sys
import threading
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import disposescope as ds
from disposescope.scopes.context import resolve
from disposescope.tensors.torch.compiled import thread_state


def depth():
    return torch._C._len_torch_function_stack()


def test_no_mode_is_on_the_stack():
    with ds.dispose_scope() as scope:
        assert depth() == 0
        torch.ones(3)
        torch.rand(2).sum()
        made = torch.ones(3)
        assert scope.live == (made,)


@pytest.mark.parametrize("array_of", [lambda t: t.numpy(), lambda t: t[1:].numpy(), np.asarray, np.from_dlpack])
def test_the_object_under_an_array_has_no_owner(array_of):
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


class _Makes(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.made.append(torch.full((2,), 7.0))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("read", [lambda t: t.grad, lambda t: t.detach().numpy(), lambda t: t._base])
def test_what_a_mode_makes_while_an_attribute_is_read_is_born(read):
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    with ds.dispose_scope() as scope:
        with _Makes() as mode:
            read(weight)
        assert mode.made[-1] in scope
        assert scope.live == tuple(mode.made)


@pytest.mark.parametrize("read", [lambda t: t.grad, lambda t: t.detach().numpy()])
def test_what_a_class_makes_while_an_attribute_is_read_is_born(read):
    made = []

    class Metres(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            made.append(torch.full((2,), 7.0))
            return super().__torch_function__(func, types, args, kwargs or {})

    weight = torch.ones(3).as_subclass(Metres).requires_grad_()
    weight.sum().backward()
    with ds.dispose_scope() as scope:
        made.clear()
        read(weight)
        assert all(one in scope for one in made)
        assert weight.grad not in scope


def test_the_gradient_of_a_subclass_is_the_parameters():
    class Metres(torch.Tensor):
        pass

    weight = torch.ones(3).as_subclass(Metres).requires_grad_()
    weight.sum().backward()
    with ds.dispose_scope() as scope:
        gradient = weight.grad
        assert len(scope) == 0
    assert gradient.sum() == 3


@pytest.fixture(scope="module")
def loaded():
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2))), file)
        file.seek(0)
        return torch.jit.load(file)


def test_the_parameters_of_a_compiled_module_are_its_own(loaded):
    with ds.dispose_scope() as scope:
        weight, (*parameters,) = getattr(loaded, "0").weight, loaded.parameters()
        assert len(scope) == 0
    assert weight.shape == (2, 3)
    assert [parameter.shape for parameter in parameters] == [(2, 3), (2,)]


def test_what_a_compiled_module_returns_is_born(loaded):
    with ds.dispose_scope() as scope:
        result = loaded(torch.ones(1, 3))
        assert result in scope


def test_a_program_that_is_exported_in_a_scope_works_afterwards():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x).relu() + torch.arange(3.0)

    model = Model()
    given = torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ds.dispose_scope():
            program = torch.export.export(model, (torch.ones(2, 3),), strict=False)
        assert torch.equal(program.module()(given), model(given))
        assert "f32" in str(program)


def test_what_a_traced_graph_remembers_of_its_tensors_outlives_the_scope():
    from torch.fx.experimental.proxy_tensor import make_fx

    with ds.dispose_scope():
        traced = make_fx(lambda x: x * torch.ones(3), tracing_mode="fake")(torch.ones(3))
    assert torch.equal(traced(torch.ones(3)), torch.ones(3))
    assert {node.meta["val"].shape for node in traced.graph.nodes if "val" in node.meta} == {(3,)}


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


def test_what_is_made_while_saved_tensors_may_be_mutated_is_born_and_their_copies_are_the_graphs():
    weight = torch.rand(3, requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        square = weight.clone()
        loss = (square**2).sum()
        with ds.dispose_scope() as scope:
            square.sin_()
            made = [weight * 2, torch.ones(3), square[1:]]
            assert all(tensor in scope for tensor in made)
        loss.backward()
    assert torch.allclose(weight.grad, 2 * weight.detach())


def test_what_selective_checkpointing_keeps_outlives_the_scope():
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    weight = torch.rand(3, requires_grad=True)
    policy = functools.partial(
        create_selective_checkpoint_contexts, lambda context, op, *args, **kwargs: CheckpointPolicy.MUST_SAVE
    )
    with ds.dispose_scope() as scope:
        result = checkpoint(lambda x: x.exp().sin(), weight, use_reentrant=False, context_fn=policy)
        assert result in scope
        loss = scope.detach(result.sum())
    loss.backward()
    given = weight.detach()
    assert torch.allclose(weight.grad, given.exp().cos() * given.exp())


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="a newer PyTorch has it")
def test_gradients_that_a_loss_computes_ahead_are_the_graphs():
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)

    def loss(weight):
        return torch.nn.functional.linear_cross_entropy(torch.ones(6, 3), weight, torch.arange(6), options=options)

    plain = torch.rand(8, 3, requires_grad=True)
    loss(plain).backward()
    weight = plain.detach().clone().requires_grad_()
    with ds.dispose_scope() as scope:
        kept = scope.detach(loss(weight))
    kept.backward()
    assert torch.equal(weight.grad, plain.grad)


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_that_was_moved_out_is_whole():
    with ds.dispose_scope() as scope:
        nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
        scope.move_to_outer(nested)
    assert (nested * 2).values().sum() == 40


class _Plain(type(torch.Tensor)):
    pass


class _Abstract(abc.ABCMeta, type(torch.Tensor)):
    pass


@pytest.mark.parametrize("metaclass", [_Plain, _Abstract])
def test_classes_made_later_and_with_a_metaclass_of_their_own_are_known(metaclass):
    class Metres(torch.Tensor, metaclass=metaclass):
        pass

    class Feet(Metres):
        pass

    def made_of(cls):
        return torch.ones(3).as_subclass(cls) * 2

    with ds.dispose_scope() as scope:
        for cls in (Metres, Feet):
            made = made_of(cls)
            assert type(made) is cls
            assert made in scope
            dead = made
    with pytest.raises(ds.DisposedError):
        dead.sum()


def test_a_class_whose_own_class_does_not_ask_its_base_is_known_to_code_that_is_new():
    class Meta(type(torch.Tensor)):
        def __init__(cls, *args, **kwargs):
            pass

    class Metres(torch.Tensor, metaclass=Meta):
        pass

    with ds.dispose_scope() as scope:
        made = torch.ones(3).as_subclass(Metres) * 2
        assert made in scope


def test_a_class_of_tensors_can_die():
    def use():
        class Metres(torch.Tensor):
            pass

        with ds.dispose_scope():
            made = torch.ones(3).as_subclass(Metres) * 2
        assert repr(made) == f"<disposed {Metres.__qualname__} (3,) torch.float32>"
        return weakref.ref(Metres)

    died = use()
    gc.collect()
    assert died() is None


def test_tensors_with_slots_of_their_own_are_no_births():
    class Slotted(torch.Tensor):
        __slots__ = ("extra",)

    with ds.dispose_scope():
        slotted = torch.ones(3).as_subclass(Slotted)
    assert slotted.sum() == 3


def test_a_thread_that_enters_the_context_by_itself_makes_births_in_it():
    made = []

    def work(context):
        context.run(lambda: made.append(torch.ones(3)))

    with ds.dispose_scope() as scope:
        thread = threading.Thread(target=work, args=(contextvars.copy_context(),))
        thread.start()
        thread.join()
        assert scope.live == tuple(made)


def test_a_detector_opened_on_another_thread_knows_where_a_tensor_was_born():
    opened, done = threading.Event(), threading.Event()

    def detect():
        with ds.LeakDetector():
            opened.set()
            done.wait()

    def use():
        with ds.dispose_scope():
            thread.start()
            opened.wait()
            # The mode comes with the first birth that somebody is to be told of, and tells of the
            # next.
            torch.ones(1)
            tensor = torch.ones(3)
        with pytest.raises(ds.DisposedError, match=r"test_torch_allocations\.py:\d+"):
            tensor.sum()

    thread = threading.Thread(target=detect)
    try:
        contextvars.copy_context().run(use)
    finally:
        done.set()
    thread.join()


def test_a_detector_sees_what_no_mode_sees():
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


def test_an_interrupt_at_a_birth_comes_when_the_call_is_over_and_nothing_is_lost():
    class Interrupt(BaseException):
        pass

    interrupt = Interrupt("of this program")

    def profile(frame, event, _):
        if event == "call" and frame.f_code is resolve.__code__:
            sys.setprofile(None)
            raise interrupt

    def use():
        # What a generator's scope owns is found out in Python.
        with ds.dispose_scope() as scope:
            made = []
            with pytest.raises(Interrupt) as caught:
                sys.setprofile(profile)
                # No step of Python code comes between.
                made.extend(map(torch.ones, range(1, 4)))
                for _ in range(3):
                    pass
            assert caught.value is interrupt
            assert scope.live == tuple(made)
            assert len(made) == 3
            yield

    before = sys.getprofile()
    try:
        list(use())
    finally:
        sys.setprofile(before)


def test_an_interrupt_of_another_thread_comes_there():
    raised = []

    class Interrupt(Exception):
        pass

    def profile(frame, event, _):
        if event == "call" and frame.f_code is resolve.__code__:
            sys.setprofile(None)
            raise Interrupt

    def use():
        with ds.dispose_scope() as scope:
            try:
                sys.setprofile(profile)
                torch.ones(3)
                for _ in range(100):
                    pass
            except Interrupt as error:
                raised.append(error)
            assert len(scope) == 0
            yield

    thread = threading.Thread(target=lambda: list(use()))
    thread.start()
    thread.join()
    assert len(raised) == 1


def test_births_that_no_budget_was_asked_about_do_not_pile_up():
    array = np.ones(3)
    with ds.dispose_scope(budget=1 << 30):
        longest = 0
        kept = [torch.from_numpy(array) for _ in range(3000)]
        for _ in range(20_000):
            torch.from_numpy(array)
            longest = max(longest, len(thread_state().pending))
        assert len(kept) <= longest <= 8192
        torch.ones(1)
        assert len(thread_state().pending) == 0


@pytest.mark.long
def test_no_other_code_finds_a_tensor_that_is_being_made():
    code = """
import contextvars, gc, sys, threading, weakref
import torch, disposescope as ds

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        with ds.dispose_scope() as scope:
            [repr(one) for one in gc.get_objects() if type(one) is torch.Tensor]
            scope.live, ds.statistics()

def look(*_):
    for one in gc.get_objects():
        for found in one if type(one) is tuple else [one, one()] if isinstance(one, weakref.ref) else [one]:
            if type(found) is torch.Tensor:
                found.shape

with ds.dispose_scope():
    torch.ones(1)

gc.collect()
gc.set_threshold(1, 100, 100)
weight = torch.rand(3, requires_grad=True)
with ds.dispose_scope() as outer:
    for _ in range(5):
        Cycle()
        kept = torch.ones(3) * weight
        kept.split(1), kept.sum().backward(), [kept[0], kept.view(3)]
        for one in outer.live:
            one.shape

gc.set_threshold(0)
gc.collect()
gc.callbacks.append(look)
with ds.dispose_scope() as outer:
    for number in range(8):
        gc.set_threshold(1 + number, 100, 100)
        kept = torch.ones(3) + 1
gc.set_threshold(0)
gc.callbacks.clear()

# The counts of a thread are made with its first birth, in compiled code alone.
with ds.dispose_scope() as outer:
    context = contextvars.copy_context()
    made = []
    class Thread(threading.Thread):
        def run(self):
            context.run(lambda: made.append(torch.ones(3)))
    thread = Thread()
    thread.start()
    thread.join()
    assert outer.live == tuple(made)
print("well")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


def test_a_pytorch_that_is_made_otherwise_is_left_as_it_is_and_a_mode_sees_births():
    code = """
import torch, disposescope as ds

file, torch.__file__ = torch.__file__, "/nowhere/torch/__init__.py"
with ds.dispose_scope() as scope:
    torch.__file__ = file
    assert scope.live == () and torch._C._len_torch_function_stack() == 1
    made = torch.ones(3)
    assert scope.live == (made,)
from disposescope.tensors.torch.births import SEAM
base = torch._C.TensorBase
kinds = (type(torch.Tensor),)
handing = base.data, base.set_, base.untyped_storage
run = torch._C._ImperativeEngine.run_backward
for metaclasses, attributes, numpy, handing, backward in [
    ((type,), (base.grad,), base.numpy, handing, run),
    (kinds, (base.grad, base.numpy), base.numpy, handing, run),
    (kinds, (base.grad,), base.grad, handing, run),
    (kinds, (base.grad,), base.dim, handing, run),
    (kinds, (base.grad,), base.numpy, handing[:2], run),
    (kinds, (base.grad,), base.numpy, handing, base.dim),
    (kinds, (base.grad,), base.numpy, (base.shape, base.set_, base.untyped_storage), run),
    (kinds, (base.grad,), base.numpy, (base.data, base.dim, base.untyped_storage), run),
    (kinds, (base.grad,), base.numpy, (base.data, base.set_, base.numpy), run),
]:
    libraries = __import__("glob").glob(file.removesuffix("__init__.py") + "lib/lib*")
    given = dict(
        classes=(torch.Tensor,),
        metaclasses=metaclasses,
        attributes=attributes,
        numpy=numpy,
        handing=handing,
        backward=backward,
    )
    assert SEAM.watch.start(**given, libraries=tuple(libraries), transforms=0) is False
class Metres(torch.Tensor):
    pass
with ds.dispose_scope() as scope:
    array = torch.ones(3).as_subclass(Metres).numpy()
    made = torch.ones(3)
    assert scope.live == (made,)
    shared = torch.from_numpy(array)
    assert shared not in scope
print("well")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


def test_dead_objects_do_not_stay():
    with ds.dispose_scope() as scope:
        for _ in range(1000):
            torch.ones(3) + 1
        gc.collect()
        assert len(scope) == 0


def test_what_pytorch_makes_in_python_for_its_caller_is_the_callers(monkeypatch):
    from torch.nested._internal import nested_tensor

    # Kept for the process, and made by functions of PyTorch that are written in Python, for tensors
    # without memory.
    monkeypatch.setattr(nested_tensor, "_dummy_instance", None)
    with ds.dispose_scope() as scope:
        nested_tensor._nt_view_dummy()
        assert len(scope) == 0
        made = torch.zeros(3, device="meta")
        assert scope.live == (made,)


FIRST_SCOPES = """
import sys, threading, torch
import disposescope as ds
sys.setswitchinterval(1e-6)
barrier, failures = threading.Barrier(5), []

def work(number):
    x = torch.ones(8)
    barrier.wait()
    try:
        for _ in range(50):
            with ds.dispose_scope() as scope:
                y = (x + number).relu()[:3] * 2
                kept = scope.move_to_outer(torch.stack([y, y]))
            assert kept.shape == (2, 3) and ds.is_disposed(y)
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures)
"""


def test_threads_that_enter_the_first_scopes_at_once_all_see_births():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST_SCOPES], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


@pytest.mark.parametrize("array_of", [lambda t: t.numpy(), lambda t: t[1:].numpy(), np.asarray, np.from_dlpack])
def test_an_array_that_was_made_under_a_dispatch_mode_keeps_its_memory(array_of):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with ds.dispose_scope(), Mode():
        array = array_of(torch.full((1000,), 2.0))
    others = [torch.full((1000,), 7.0) for _ in range(5)]
    assert (array == 2.0).all()
    assert len(others) == 5
