"""A scenario under way, and how its results are checked."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import disposescope as ds

HANG_S = 300
"""A round that takes longer hangs."""

Work = Callable[[int, random.Random], int]
"""What a thread does, given its number and its source of random choices.

It returns its number of operations.
"""


def has(module: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(module) is not None


torch: Any = importlib.import_module("torch") if has("torch") else None
rnn: Any = importlib.import_module("torch.nn.utils.rnn") if has("torch") else None
if torch is not None:
    torch.set_num_threads(1)


class Run:
    """One scenario under way: where its random choices come from, what it did, what it found."""

    def __init__(self, name: str, threads: int, seed: int) -> None:
        self.name = name
        self.threads = threads
        self.seed = seed
        self.round = 0
        self.operations = 0
        self.findings: list[str] = []
        self._suspects: list[tuple[str, Callable[[], Any]]] = []
        self._lock = threading.Lock()

    def random(self, *which: object) -> random.Random:
        return random.Random(f"{self.seed} {self.name} {self.round} {which}")

    def did(self, operations: int) -> None:
        with self._lock:
            self.operations += operations

    def wrong(self, finding: str) -> None:
        self.findings.append(f"round {self.round}: {finding}")

    def unexpected(self, where: str, error: BaseException) -> None:
        self.wrong(f"{where}\n" + "".join(traceback.format_exception(error)))

    def suspect(self, name: str, compute: Callable[[], Any]) -> None:
        """Note what gave a result although its inputs had been disposed.

        The disposal may still have been under way.
        """
        self._suspects.append((name, compute))

    def look_at_suspects(self) -> None:
        """Now that all threads have ended, what was suspect must raise."""
        while self._suspects:
            name, compute = self._suspects.pop()
            with contextlib.suppress(ds.DisposedError):
                self.wrong(f"{name}: the inputs have been disposed, and it gives {compute()!r}")

    def nothing_is_current(self, where: str) -> None:
        scope = ds.current_scope()
        if scope is not None:
            self.wrong(f"{where}: {scope!r} was left current")
        while scope is not None:
            scope.close()
            scope = ds.current_scope()

    @contextlib.contextmanager
    def background(self, *works: Work) -> Iterator[None]:
        """Run each on a thread of its own during the block; they have ended when it is left."""
        threads = [
            threading.Thread(target=self._work, args=(work, number), name=f"{self.name} {number}", daemon=True)
            for number, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.join()

    def in_threads(self, work: Work, count: int | None = None) -> None:
        with self.background(*[work] * (count or self.threads)):
            pass

    def _work(self, work: Work, number: int) -> None:
        try:
            self.did(work(number, self.random(number)))
        except BaseException as error:
            self.unexpected(f"thread {number}", error)
        self.nothing_is_current(f"thread {number}")


def same(got: Any, want: Any) -> bool:
    """Whether two results have the same type, shape, dtype and contents."""
    if isinstance(want, (tuple, list)):
        return len(got) == len(want) and all(same(one, other) for one, other in zip(got, want, strict=True))
    if isinstance(want, (np.ndarray, np.generic)):
        got = got.numpy() if isinstance(got, ds.Tensor) else got
        return got.shape == want.shape and got.dtype == want.dtype and bool(np.allclose(got, want))
    if torch is not None and isinstance(want, torch.Tensor):
        return got.shape == want.shape and got.dtype == want.dtype and torch.allclose(got, want)
    return bool(got == want)


REFUSALS: dict[str, type[Exception]] = {"deepcopy": RuntimeError}
"""What else may be raised where an input is disposed meanwhile: PyTorch's Python code looks at the
class of what it copies twice, and says in its own words that it has changed.
"""


def attempt(
    run: Run,
    name: str,
    compute: Callable[[], Any],
    want: Any,
    inputs: tuple[Any, ...],
    refusals: tuple[type[Exception], ...] = (ds.DisposedError,),
) -> None:
    """Compute with what other threads may dispose meanwhile.

    The result is right, or the computation is refused, and then an input is disposed.
    """
    dead = all(map(ds.is_disposed, inputs))
    try:
        got = compute()
        right = same(got, want)
    except Exception as error:
        if not isinstance(error, (*refusals, REFUSALS.get(name, ds.DisposedError))):
            run.unexpected(f"{name}: {type(error).__name__}", error)
        elif not any(map(ds.is_disposed, inputs)):
            run.unexpected(f"{name}: refused, and none of the inputs has been disposed", error)
    else:
        if not right:
            run.wrong(f"{name}: got {got!r}, and not {want!r}")
        elif dead:
            run.suspect(name, compute)


def refused(verb: Callable[[], Any], *errors: type[Exception]) -> Any:
    """Return what a verb returns, or None where another thread has come first.

    The other thread has disposed what the verb is given, or closed its scope.
    """
    try:
        return verb()
    except (ds.DisposedError, *errors):
        return None
