"""Interrupts, and the end of the stack."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import disposescope as ds

from .run import Run, torch
from .text import TEXTS


class Released:
    """A resource whose release runs Python code, in which an interrupt can install."""


def release(_thing: Released) -> None:
    for _ in range(3):
        len(str(_thing))


ds.register_kind(Released, release=release)


def plain_body(_rng: random.Random, _opened: Any) -> None:
    with ds.dispose_scope() as outer:
        _opened(outer)
        _first = ds.arange(10.0)
        with ds.dispose_scope(strict=True) as inner:
            _opened(inner)
            array = np.ones(1000)
            _moved = inner.move_to_outer(ds.ones(10) + 1)
            inner.move_to_outer(array)
            del array


def released_body(_rng: random.Random, _opened: Any) -> None:
    with ds.dispose_scope() as scope:
        _opened(scope)
        _things = [scope.attach(Released()) for _ in range(3)]
        with ds.dispose_scope() as inner:
            _opened(inner)
            inner.attach(Released())


@ds.dispose_scope()
def decorated(depth: int) -> Any:
    return ds.ones(5) + (decorated(depth - 1) if depth else 1)


def function_body(_rng: random.Random, _opened: Any) -> None:
    decorated(2)
    ds.tidy(lambda: [np.ones(10), ds.zeros(3) + 1])


def generator_body(_rng: random.Random, _opened: Any) -> None:
    def numbers() -> Any:
        with ds.dispose_scope() as scope:
            _opened(scope)
            for which in range(3):
                yield scope.move_to_outer(ds.full(3, which))

    for tensor in numbers():
        tensor + 1


def batches_body(_rng: random.Random, _opened: Any) -> None:
    for batch in ds.scoped_batches([ds.ones(3), ds.ones(4)]):
        batch + 1


def budget_body(_rng: random.Random, _opened: Any) -> None:
    with ds.dispose_scope(budget="1MiB") as scope:
        _opened(scope)
        np.fromstring(TEXTS[10], sep=" ") + np.ones(10)
        with contextlib.suppress(MemoryError):
            np.ones(1 << 20)


def torch_body(_rng: random.Random, _opened: Any) -> None:
    with ds.dispose_scope() as outer:
        _opened(outer)
        x = torch.ones(1000)
        with ds.dispose_scope() as inner:
            _opened(inner)
            inner.move_to_outer((x + 1).exp())


def pack_body(_rng: random.Random, _opened: Any) -> None:
    with ds.dispose_scope() as scope:
        _opened(scope)
        ds.pad_packed_sequence(ds.pack_sequence([ds.ones(3), ds.ones(2)]))


BODIES = [plain_body, released_body, function_body, generator_body, batches_body, budget_body, pack_body]
if torch is not None:
    BODIES.append(torch_body)


class Interruptions:
    """Interrupts that arrived where Python cannot raise.

    That is in the callback of a weak reference, or in a ``__del__``.
    """

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.total = 0
        self._before = sys.unraisablehook

    def __enter__(self) -> Interruptions:
        sys.unraisablehook = self._hook
        return self

    def __exit__(self, *_exc: object) -> None:
        sys.unraisablehook = self._before

    def _hook(self, told: Any) -> None:
        if isinstance(told.exc_value, (KeyboardInterrupt, SystemExit)):
            self.total += 1
            self.threads.add(threading.get_ident())
        else:
            self._before(told)


def interrupted(
    run: Run, rng: random.Random, lost: Interruptions, due: type[BaseException], send: Callable[[], Any]
) -> None:
    """Run scopes in a loop until another thread interrupts it, and look at what is left."""
    body, spins = rng.choice(BODIES), rng.randrange(2000)
    opened: list[Any] = []
    ready = threading.Lock()
    ready.acquire()
    me = threading.get_ident()
    lost.threads.discard(me)

    def interrupt() -> None:
        ready.acquire()
        for _ in range(spins):
            pass
        send()

    helper = threading.Thread(target=interrupt, daemon=True)
    helper.start()
    where = f"{due.__name__} in {body.__name__} after {spins}"
    spare = 100
    try:
        ready.release()
        while spare and me not in lost.threads:
            opened.clear()
            body(rng, opened.append)
            spare -= not helper.is_alive()
        if not spare:
            run.wrong(f"{where}: it was lost")
    except BaseException as error:
        if type(error) is not due:
            run.unexpected(f"{where}: came out as {type(error).__name__}", error)
    helper.join()
    run.nothing_is_current(where)
    for scope in opened:
        if " open" in repr(scope):
            run.wrong(f"{where}: {scope!r} was left open")


def interrupts(run: Run) -> None:
    """Ctrl-C into loops of scopes on the main thread, and SystemExit into those of others."""
    main = threading.main_thread().ident
    assert main is not None
    rng = run.random()

    def stopped(_number: int, rng: random.Random) -> int:
        me = ctypes.c_ulong(threading.get_ident())
        stop = functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, me, ctypes.py_object(SystemExit))
        for _ in range(5):
            interrupted(run, rng, lost, SystemExit, stop)
        return 5

    # A shell that starts a program in the background lets it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    detector = ds.LeakDetector() if rng.random() < 0.3 else contextlib.nullcontext()
    with Interruptions() as lost, detector, run.background(stopped):
        for _ in range(10):
            interrupted(run, rng, lost, KeyboardInterrupt, functools.partial(signal.pthread_kill, main, signal.SIGINT))
    run.did(10)


def deeper(rng: random.Random, opened: Any) -> None:
    """Open scopes of all sorts inside one another until the stack ends."""
    options: dict[str, Any] = rng.choice(({}, {"strict": True}, {"budget": "1GiB"}, {"arena": False}))
    match rng.randrange(6):
        case 0:
            ds.tidy(deeper, rng, opened)
        case 1:
            ds.dispose_scope()(deeper)(rng, opened)
        case 2:
            with ds.dispose_scope(**options) as scope:
                opened(scope)
                _tensor = ds.ones(10)
                deeper(rng, opened)
        case 3:
            with ds.dispose_scope(**options) as scope:
                opened(scope)
                _thing = scope.attach(Released())
                deeper(rng, opened)
        case 4 if torch is not None:
            with ds.dispose_scope(**options) as scope:
                opened(scope)
                _tensor = torch.ones(10) + 1
                deeper(rng, opened)
        case _:
            with ds.dispose_scope(**options) as scope:
                opened(scope)
                np.ones(100)
                deeper(rng, opened)


def recursion(run: Run) -> None:
    """RecursionError inside nested scopes, at every distance from the limit."""

    def work(_number: int, rng: random.Random) -> int:
        for _ in range(10):
            opened: list[Any] = []
            try:
                deeper(rng, opened.append)
            except RecursionError:
                pass
            except BaseException as error:
                run.wrong(f"came out as {type(error).__name__}: {str(error)[:300]}")
            run.nothing_is_current("after a RecursionError")
            left = [scope for scope in opened if " open" in repr(scope)]
            if left:
                run.wrong(f"{len(left)} of {len(opened)} scopes were left open")
        return 10

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        run.in_threads(work, 1 + run.round % 2)
    finally:
        sys.setrecursionlimit(limit)
