"""A tensor disposed while another thread computes with it: the operation ends, then memory goes."""

from __future__ import annotations

import _thread
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.tensors.torch import pending as _torch_in_flight
from disposescope.tensors.torch.disposal import PENDING
from tests.scopes.toys import no_cyclic_garbage


def memory_of(tensor):
    """A reference that dies exactly when the memory goes."""
    return weakref.ref(tensor.untyped_storage())


class Computing:
    """A thread inside of an operation on a tensor, and what came of it.

    The operation calls a function for each element: it is the one of PyTorch's that can be stopped
    in the middle.

    Attributes
    ----------
    go, left, end : threading.Event
        Set by the test to let the operation go on; set by the thread when it has; set to let the
        thread end.
    """

    def __init__(self, tensor, afterwards=None):
        self.inside, self.go, self.left, self.end = (threading.Event() for _ in range(4))
        self.afterwards = afterwards
        self.seen, self.error = [], None
        self.thread = threading.Thread(target=self.run, args=(tensor,))
        del tensor
        self.thread.start()
        self.inside.wait()

    def run(self, tensor):
        try:
            tensor.apply_(self.element)
        except BaseException as error:
            self.error = error
        if self.afterwards is not None:
            self.afterwards(tensor)
        del tensor
        self.left.set()
        self.end.wait()

    def element(self, value):
        self.inside.set()
        self.go.wait()
        self.seen.append(value)
        return value + 1

    def finish(self):
        self.go.set()
        self.end.set()
        self.thread.join()


@contextmanager
def computing(tensor, afterwards=None):
    other = Computing(tensor, afterwards)
    del tensor
    try:
        yield other
    finally:
        other.finish()


def test_an_operation_in_flight_finishes_and_the_memory_goes_with_its_thread():
    with ds.dispose_scope():
        tensor = torch.arange(3.0)
        memory = memory_of(tensor)
        other = Computing(tensor)
    assert ds.is_disposed(tensor)
    with pytest.raises(ds.DisposedError):
        tensor + 1
    assert memory() is not None
    other.finish()
    assert other.error is None
    assert other.seen == [0, 1, 2]
    assert memory() is None
    assert PENDING.batches == []


def leave_a_scope():
    with ds.dispose_scope():
        pass


def close_a_scope():
    ds.dispose_scope().close()
    with ds.dispose_scope() as scope:
        scope.close()


def dispose_another():
    ds.dispose(torch.ones(1))


def use_another_that_is_disposed():
    dead = torch.ones(1)
    ds.dispose(dead)
    with pytest.raises(ds.DisposedError):
        dead + 1


def make_one():
    # What waits is looked at now and then.
    for _ in range(8):
        torch.ones(1)


@pytest.mark.parametrize("do", [leave_a_scope, close_a_scope, dispose_another, use_another_that_is_disposed, make_one])
def test_what_this_thread_does_next_gives_the_memory_back(do):
    with ds.dispose_scope():
        tensor = torch.ones(3)
        memory = memory_of(tensor)
        with computing(tensor) as other:
            ds.dispose(tensor)
            do()
            assert memory() is not None
            other.go.set()
            other.left.wait()
            do()
            assert memory() is None


def test_a_detector_that_counts_memory_gives_back_what_waits_no_longer():
    with ds.LeakDetector() as detector, ds.dispose_scope():
        tensor = torch.ones(3)
        memory = memory_of(tensor)
        with computing(tensor) as other:
            ds.dispose(tensor)
            other.go.set()
            other.left.wait()
            detector.memory()
            assert memory() is None


def test_a_budget_that_would_refuse_gives_back_what_waits_no_longer():
    with ds.dispose_scope(budget=1000):
        tensor = torch.ones(200)
        with computing(tensor) as other:
            ds.dispose(tensor)
            with pytest.raises(MemoryError):
                torch.ones(200)
            other.go.set()
            other.left.wait()
            assert torch.ones(200).sum() == 200


def test_the_next_use_on_the_thread_that_computed_gives_the_memory_back():
    gone = []

    def use(tensor):
        with pytest.raises(ds.DisposedError):
            tensor + 1
        gone.append(memory() is None)

    tensor = torch.ones(3)
    memory = memory_of(tensor)
    with computing(tensor, use) as other:
        ds.dispose(tensor)
        other.go.set()
        other.left.wait()
        assert gone == [True]


def test_a_loop_that_always_is_at_the_same_instruction_gives_the_memory_back_when_it_is_refused():
    started, refused = threading.Event(), []

    def loop():
        x = tensor
        try:
            while True:
                x.exp()
                started.set()
        except ds.DisposedError:
            refused.append(True)

    with ds.dispose_scope():
        tensor = torch.ones(1000)
        memory = memory_of(tensor)
        looping = threading.Thread(target=loop)
        looping.start()
        started.wait()
    # The loop may be refused before the scope has come to the memory: whoever is last gives it
    # back.
    looping.join()
    assert refused == [True]
    assert memory() is None


def test_a_thread_that_ends_while_others_are_looked_at_is_looked_at_again(monkeypatch):
    look = PENDING._operations.in_flight

    class Late:
        def in_flight(self):
            found = look()
            other.go.set()
            other.end.set()
            other.thread.join()
            return found

    tensor = torch.ones(3)
    memory = memory_of(tensor)
    with computing(tensor) as other:
        monkeypatch.setattr(PENDING, "_operations", Late())
        ds.dispose(tensor)
        assert memory() is None


def test_a_handle_that_dies_meanwhile_takes_its_memory_along():
    tensor = torch.ones(3)
    tensor.thing = thing = type("Thing", (), {})()
    memory, thing = memory_of(tensor), weakref.ref(thing)
    bystander = torch.ones(1)
    with computing(bystander):
        ds.dispose(tensor)
        assert memory() is not None
        del tensor
        assert memory() is None
        assert thing() is None
        leave_a_scope()
        assert PENDING.batches == []


def test_a_subclass_keeps_its_attributes_for_a_graph_and_its_hash():
    class Meters(torch.Tensor):
        def __hash__(self):
            return 7

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.as_subclass(torch.Tensor) * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad * 2

    seen = []
    bystander = torch.ones(1)
    with computing(bystander):
        with ds.dispose_scope() as scope:
            metres = (torch.ones(3, requires_grad=True) * 1).as_subclass(Meters) * 1
            metres.unit = "m"
            loss = scope.move_to_outer(Saves.apply(metres).sum())
        assert ds.is_disposed(metres)
        assert hash(metres) == 7
        assert repr(metres).startswith("<disposed")
    loss.backward()
    assert type(seen[0]) is Meters
    assert seen[0].unit == "m"
    assert hash(metres) == 7


def test_a_retained_gradient_is_not_taken_off_in_place_meanwhile():
    weight = torch.ones(3, requires_grad=True)
    bystander = torch.ones(1)
    with ds.dispose_scope() as scope:
        hidden = weight + 1
        hidden.retain_grad()
        memory = memory_of(hidden)
        loss = scope.move_to_outer(hidden.sum())
        with computing(bystander) as other:
            ds.dispose(hidden)
            assert memory() is not None
            assert torch._C.TensorBase.retains_grad.__get__
            other.go.set()
            other.left.wait()
            leave_a_scope()
            assert memory() is None
        assert PENDING.batches == []
    loss.backward()
    assert weight.grad.tolist() == [1, 1, 1]


def test_members_of_a_composite_wait_too():
    tensor = torch.ones(3)
    with ds.dispose_scope() as scope:
        packed = scope.attach(torch.nn.utils.rnn.PackedSequence(tensor, torch.tensor([1, 1, 1])))
        memory = memory_of(tensor)
        with computing(tensor) as other:
            ds.dispose(packed)
            assert ds.is_disposed(packed)
            assert memory() is not None
            other.finish()
            assert other.error is None
    assert memory() is None


@pytest.mark.parametrize("verb", ["graph", "compact"])
def test_what_a_verb_exchanges_stays_as_long_as_an_operation_may_read_it(verb):
    base = torch.ones(100)
    with ds.dispose_scope(graph="detach") as scope:
        tensor = scope.attach(base[:3] if verb == "compact" else base.requires_grad_() * 1)
        with torch.no_grad():
            address = torch._C.TensorBase._cdata.__get__(tensor)
            other = Computing(tensor.detach())
        scope.move_to_outer(tensor, compact=verb == "compact")
        assert torch._C.TensorBase._cdata.__get__(tensor) != address
        held = [batch.held for batch in PENDING.batches]
        assert [torch._C.TensorBase._cdata.__get__(one) for one in held] == [address]
        del held
        other.finish()
        assert PENDING.batches == []


@contextmanager
def waiting(count):
    """Threads that wait, and have come as far as that."""
    go = queue.SimpleQueue()

    def wait():
        go.get()

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
        # On its way there it calls other things that wait.
        while sys._current_frames()[thread.ident].f_code is not wait.__code__:
            pass
    try:
        yield
    finally:
        for _ in threads:
            go.put(None)
        for thread in threads:
            thread.join()


def test_a_scope_of_many_looks_at_other_threads_once(monkeypatch):
    looks = []
    stacks = _torch_in_flight._stacks_of_others
    monkeypatch.setattr(_torch_in_flight, "_stacks_of_others", lambda: looks.append(1) or stacks())
    with waiting(1):
        with ds.dispose_scope():
            tensors = [torch.ones(2) for _ in range(100)]
            memories = [memory_of(tensor) for tensor in tensors]
    assert all(memory() is None for memory in memories)
    assert all(ds.is_disposed(tensor) for tensor in tensors)
    assert len(looks) == 1


def test_threads_that_wait_keep_nothing():
    with waiting(3):
        with ds.dispose_scope():
            tensor = torch.ones(2)
            memory = memory_of(tensor)
        assert ds.is_disposed(tensor)
        assert memory() is None
        assert PENDING.batches == []


def wait_until_there_are(number):
    """Wait until Python counts as many threads.

    Nothing else tells that a thread without frames has begun, or ended.
    """
    until = time.monotonic() + 60
    while _thread._count() != number:
        assert time.monotonic() < until
        time.sleep(0)


def test_a_thread_that_runs_no_python_code_finishes_its_operation_too(monkeypatch):
    before = _thread._count()
    asked = queue.SimpleQueue()
    with ds.dispose_scope():
        tensor = torch.ones(2)
        memory = memory_of(tensor)
        # It waits for each element in a function written in C, called by one.
        _thread.start_new_thread(tensor.apply_, (asked.get,))
        wait_until_there_are(before + 1)
        exp = tensor.exp
    assert ds.is_disposed(tensor)
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: errors.append(raised.exc_type))
    try:
        leave_a_scope()
        assert memory() is not None
        _thread.start_new_thread(exp, ())
        while not errors:
            time.sleep(0)
        assert errors == [ds.DisposedError]
    finally:
        asked.put(1.0)
        asked.put(2.0)
        wait_until_there_are(before)
    leave_a_scope()
    assert memory() is None
    assert PENDING.batches == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_threads_of_a_parent_count_for_nothing_in_its_child():
    with waiting(3), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            tensor = torch.ones(3)
            memory = memory_of(tensor)
            with waiting(1):
                ds.dispose(tensor)
                os._exit(memory() is not None)
        assert os.waitpid(child, 0)[1] == 0


def test_tensors_that_are_disposed_while_memory_is_given_back_are_done_as_well():
    bystander, first, second = torch.ones(1), torch.ones(3), torch.ones(3)
    memory = memory_of(second)

    class Thing:
        def __del__(self):
            ds.dispose(second)

    first.thing = Thing()
    with computing(bystander) as other:
        ds.dispose(first)
        other.go.set()
        other.left.wait()
        leave_a_scope()
    assert ds.is_disposed(first)
    assert ds.is_disposed(second)
    assert memory() is None
    assert PENDING.batches == []


def test_tensors_disposed_in_a_transform_beside_a_computing_thread():
    kept = []

    def function(x):
        with ds.dispose_scope() as scope:
            kept.extend(scope.attach(x * i) for i in range(3))
        return x * 2

    bystander = torch.ones(1)
    with computing(bystander):
        assert torch.vmap(function)(torch.ones(3)).tolist() == [2, 2, 2]
    leave_a_scope()
    assert PENDING.batches == []
    assert len(kept) == 3
    for tensor in kept:
        with pytest.raises(ds.DisposedError):
            tensor + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_has_no_other_threads():
    tensor = torch.ones(3)
    memory = memory_of(tensor)
    with computing(tensor):
        ds.dispose(tensor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            leave_a_scope()
            os._exit(memory() is not None)
        assert memory() is not None
        assert os.waitpid(child, 0)[1] == 0


def test_no_cyclic_garbage_is_left():
    bystander = torch.ones(1)
    with computing(bystander) as other, no_cyclic_garbage():
        with ds.dispose_scope():
            tensor = torch.ones(3)
            tensor.thing = object()
        leave_a_scope()
        with pytest.raises(ds.DisposedError):
            tensor + 1
        del tensor
        other.go.set()
        other.left.wait()
        leave_a_scope()


@pytest.mark.long
def test_a_scope_that_ends_while_a_thread_computes_crashes_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import threading
            import torch
            import disposescope as ds

            torch.set_num_threads(1)
            OPERATIONS = [
                lambda x: x.exp(), lambda x: x + 1, lambda x: x.sum(), lambda x: x.view(400, 50) @ x.view(50, 400),
                lambda x: x.mul_(1), lambda x: torch.cat([x, x]), lambda x: torch.add(x, x, out=torch.empty(0)),
                lambda x: x[::2] * 2, lambda x: (x > 0).any(), lambda x: x.to(torch.float64), lambda x: x.clone(),
            ]
            wrong = []

            def work(run, x, started):
                started.set()
                try:
                    for _ in range(20):
                        run(x)
                except ds.DisposedError:
                    pass
                except BaseException as error:
                    wrong.append(repr(error))

            for run in OPERATIONS:
                for grad in (False, True):
                    for i in range(8):
                        started = threading.Event()
                        with ds.dispose_scope():
                            x = torch.ones(20_000)
                            if grad and run is not OPERATIONS[4] and run is not OPERATIONS[6]:
                                x.requires_grad_()
                            thread = threading.Thread(target=work, args=(run, x, started))
                            thread.start()
                            started.wait()
                            torch.ones(i * 20_000).exp()
                        thread.join()
            assert not wrong, wrong[:5]
            """
        )
    )
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_waits_for_another_thread_is_no_leak_and_what_somebody_else_holds_is_seen():
    with ds.LeakDetector() as detector:
        with ds.dispose_scope() as scope:
            tensor, shared = torch.zeros(10), torch.zeros(20)
            view = scope.detach(shared[:5])
            with computing(tensor), computing(shared):
                scope.dispose_everything()
                assert len(PENDING.waiting()) == 2
                [record] = [one for one in detector.take_snapshot() if one.state == "alive"]
    assert record.nbytes == 80
    assert ds.is_disposed(tensor)
    assert view.tolist() == [1, 1, 1, 1, 1]
