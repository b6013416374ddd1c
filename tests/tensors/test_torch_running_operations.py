"""Which threads are inside an operation of PyTorch: most wait, and are in none."""

from __future__ import annotations

import asyncio
import builtins
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from disposescope.tensors.torch.pending import OPERATIONS, WAITING, Operations, Places

LONG = 60.0


class Table:
    """What the threads of these tests wait at, until they are let go."""

    def __init__(self):
        self.event = threading.Event()
        self.queue = queue.Queue()
        self.simple = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.lock.acquire()
        self.ours, self.theirs = socket.socketpair()

    def let_go(self):
        self.event.set()
        for waiting in (self.queue, self.simple):
            for _ in range(4):
                waiting.put(None)
        self.lock.release()
        self.ours.send(b"x")

    def __iter__(self):
        return self

    def __next__(self):
        self.simple.get()
        raise StopIteration


def in_a_block(table):
    with table.lock:
        pass


def in_a_pool(table):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(table.event.wait)


def in_a_generator(table):
    def items():
        yield table.queue.get()

    for _ in items():
        pass


def in_an_iterator(table):
    for _ in table:
        pass


def in_a_comprehension(table):
    return [thing for thing in table]  # noqa: C416  # the frame of a comprehension is what is tested


def in_a_loop_of_events(table):
    async def waits():
        await asyncio.to_thread(table.event.wait)

    asyncio.run(waits())


def in_a_program(table):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        table.event.wait()
        child.communicate(b"\n")


def with_options(table):
    options = {"timeout": LONG}
    table.simple.get(True, **options)


def with_a_number(table):
    table.simple.get(timeout=LONG / len(WAITING) * len(WAITING))


WAITS = [
    lambda table: table.event.wait(),
    lambda table: table.queue.get(),
    lambda table: table.simple.get(),
    lambda table: table.lock.acquire(),
    lambda table: table.theirs.recv(1),
    lambda table: table.theirs.recv_into(bytearray(1)),
    with_options,
    with_a_number,
    in_a_block,
    in_a_pool,
    in_a_generator,
    in_an_iterator,
    in_a_comprehension,
    in_a_loop_of_events,
    in_a_program,
]


def soon(question):
    """Ask until the answer is yes, which it is when other threads have come as far as they come."""
    until = time.monotonic() + LONG
    while not question():
        assert time.monotonic() < until
        time.sleep(0)


@contextmanager
def thread(work, *arguments):
    started = threading.Thread(target=work, args=arguments)
    started.start()
    try:
        yield started
    finally:
        started.join()


@pytest.mark.parametrize("wait", WAITS)
def test_a_thread_that_waits_is_in_no_operation(wait):
    table = Table()
    operations = Operations()

    def is_seen_to_wait():
        # On its way there it waits elsewhere as well, for a thread to have started.
        time.sleep(0.01)
        return all(waiting.ident not in operations.in_flight() for _ in range(100))

    try:
        with thread(wait, table) as waiting:
            try:
                soon(is_seen_to_wait)
            finally:
                table.let_go()
    finally:
        table.ours.close()
        table.theirs.close()


def test_a_thread_that_sleeps_is_in_no_operation():
    done = threading.Event()

    def sleeps():
        while not done.is_set():
            time.sleep(0.001)

    operations = Operations()
    with thread(sleeps) as sleeping:
        soon(lambda: sleeping.ident not in operations.in_flight())
        done.set()


def waits_in_a_kernel(tensor, operate, inside, go):
    """Run an operation on a tensor that calls a function written in Python, which waits."""

    class Waits(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            inside.set()
            go.wait()
            return func(*args, **(kwargs or {}))

    with Waits():
        operate(tensor)


OPERATORS = {
    "method": lambda x: x.exp(),
    "function": lambda x: torch.add(x, 1),
    "operator": lambda x: x + 1,
    "attribute": lambda x: x.T,
    "index": lambda x: x[0],
    "list": lambda x: torch.stack([x, x]),
    "by map": lambda x: list(map(torch.sin, [x])),
    "in a function of PyTorch's": lambda x: torch.nn.functional.softmax(x, 0),
    "by another name": lambda x, operate=torch.sin: operate(x),
    "keywords": lambda x: torch.sum(input=x, dim=0),
}


@pytest.mark.parametrize("operate", OPERATORS.values(), ids=OPERATORS)
def test_a_kernel_in_python_that_waits_is_in_an_operation_until_that_is_over(operate):
    inside, go, after, done = (threading.Event() for _ in range(4))

    def work():
        waits_in_a_kernel(torch.ones(2, 2), operate, inside, go)
        after.set()
        done.wait()

    operations = Operations()
    with thread(work) as working:
        inside.wait()
        soon(lambda: working.ident in operations.in_flight())
        places = operations.in_flight()
        for _ in range(100):
            assert Places().of(places)[working.ident]
        go.set()
        after.wait()
        assert working.ident not in Places().of(places)
        done.set()


def test_what_a_subclass_lets_begin_is_in_flight_as_long_as_it_runs():
    inside, go = threading.Event(), threading.Event()

    class Pausing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                inside.set()
                go.wait()
                return func(*args, **(kwargs or {}))

    tensor = torch.ones(2).as_subclass(Pausing)
    operations = Operations()
    with thread(lambda: torch.sin(tensor)) as working:
        inside.wait()
        places = operations.in_flight()
        assert any(instruction == -1 for _, instruction in places[working.ident])
        go.set()
    assert not Places().of(places)


def test_a_place_has_been_left_when_the_thread_has_ended_or_the_frame_is_at_another_instruction():
    inside, go, between, end = (threading.Event() for _ in range(4))

    def work():
        waits_in_a_kernel(torch.ones(2), torch.sin, inside, go)
        between.set()
        end.wait()

    operations = Operations()
    with thread(work) as working:
        inside.wait()
        soon(lambda: working.ident in operations.in_flight())
        places = operations.in_flight()
        go.set()
        between.wait()
        assert working.ident not in Places().of(places)
        end.set()
    assert not Places().of({working.ident: places[working.ident]})


def test_no_operation_of_pytorchs_has_the_name_of_a_call_that_waits():
    # One makes a device, which takes no tensor, and one waits for a future.
    assert {"device"} == WAITING & OPERATIONS
    assert WAITING & set(dir(torch.Tensor)) == {"device"}
    assert WAITING & set(dir(torch)) <= {"device", "wait"}
    assert WAITING & set(dir(builtins)) == {"input"}
