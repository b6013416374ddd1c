"""An exception at each place in the package's code where one can come up, one after the other."""

from __future__ import annotations

import dis
import gc
import importlib
import sys
from collections import Counter
from collections.abc import Callable
from linecache import getline
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import disposescope as ds
from disposescope.scopes.base import process as _pages
from disposescope.scopes.context import CURRENT, OPEN
from disposescope.scopes.identity import LIVE
from disposescope.tensors.arena.budgets import BUDGETS

ROOMS = [
    str(Path(importlib.import_module(f"disposescope.{room}").__path__[0]).resolve())
    for room in ("scopes", "leaks", "planner", "sequences", "tensors", "workspace")
]

handler_name: Any = np._core.multiarray.get_handler_name

_interrupting = ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
_STEP = 5
_inside: dict[str, bool] = {}
_handlers: dict[CodeType, list[Any]] = {}
_first: dict[CodeType, dict[int | None, int]] = {}


def _is_inside(code: CodeType) -> bool:
    file = code.co_filename
    if file not in _inside:
        _inside[file] = str(Path(file).resolve()).startswith(tuple(ROOMS))
    return _inside[file]


def _handler(code: CodeType, at: int) -> object:
    """Where the exception goes that comes up at an instruction."""
    if code not in _handlers:
        _handlers[code] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next(((row.target, row.depth) for row in _handlers[code] if row.start <= at < row.end), None)


def _is_made_by_the_compiler(frame: FrameType) -> bool:
    """Return whether a line is shown for the end of a block, or for no instruction.

    The interpreter raises nothing there.
    """
    code, at = frame.f_code, frame.f_lasti
    if code not in _first:
        _first[code] = {}
        for start, _, line in code.co_lines():
            _first[code].setdefault(line, start)
    first = _first[code][frame.f_lineno]
    return (
        dis.opname[code.co_code[at]] in ("NOP", "POP_EXCEPT")
        or _handler(code, at) != _handler(code, first)
        or (at != first and getline(code.co_filename, frame.f_lineno).lstrip().startswith("with "))
    )


class Interruption:
    """Raises an exception at one place, by number.

    Places are where a function begins, and before each line (``lines``) or where else Python looks
    for signals: after a call and at the end of a loop's body.
    """

    def __init__(self, number: int, error: type[BaseException], *, lines: bool) -> None:
        self._left = number
        self._error = error
        self._lines = lines
        self._before: dict[FrameType, tuple[str, int]] = {}
        self.place: str | None = None

    def _meet(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            self._before.clear()
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
            raise self._error

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and self._lines and not _is_made_by_the_compiler(frame):
            self._meet(frame)
        elif event == "opcode" and not self._lines:
            code, at = frame.f_code, frame.f_lasti
            was, before = self._before.get(frame, ("", 0))
            self._before[frame] = dis.opname[code.co_code[at]], at
            if was in _interrupting and _handler(code, before) == _handler(code, at):
                self._meet(frame)
        elif event == "return":
            self._before.pop(frame, None)
        return self._trace

    def _begin(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not _is_inside(frame.f_code):
            return None
        frame.f_trace_opcodes = not self._lines
        self._meet(frame)
        return self._trace

    def run(self, program: Callable[[], object]) -> tuple[BaseException | None, list[type[BaseException]]]:
        """Return what the program raises, and the types of what is ignored, as in ``__del__``."""
        ignored: list[type[BaseException]] = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda given: ignored.append(type(given.exc_value))
        before = sys.gettrace()
        try:
            sys.settrace(self._begin)
            try:
                program()
            finally:
                sys.settrace(before)
        except BaseException as error:
            return error, ignored
        finally:
            sys.unraisablehook = hook
        return None, ignored


def _state() -> dict[str, object]:
    return {
        "innermost": CURRENT.get(),
        "known resources": len(LIVE),
        "handler": handler_name(),
        "arena": ds.arena_statistics().live_nbytes,
        "with a budget": len(BUDGETS.scopes),
        "keeping pages": len(_pages._askers),
    }


def interrupt_everywhere(
    program: Callable[[list[Any]], object],
    error: type[BaseException] = KeyboardInterrupt,
    *,
    lines: bool = True,
    only_gone: bool = False,
    state: Callable[[], object] = lambda: None,
) -> int:
    """Interrupt a program at every fifth place of the package: nothing of its scopes may be left.

    Programs with names of different lengths are interrupted at different ones. The stress program
    interrupts at random places.

    Parameters
    ----------
    program : callable
        Gets a list, into which it puts what was born and is to be released by its end.
    error : type
        What comes up.
    lines : bool
        See `Interruption`.
    only_gone : bool
        Whether the program attaches what was born outside of scopes, so that the counts need not be
        even.
    state : callable
        What else is to be the same before and after.

    Returns
    -------
    int
        How many places there were.
    """
    born: list[Any] = []
    for _ in range(2):
        program(born)
        born.clear()
    gc.collect()
    gc.freeze()
    wrong: Counter[str] = Counter()
    number = -(len(program.__name__) % _STEP)
    while True:
        gc.collect()
        ds.reset_statistics()
        before = _state(), state()
        number += _STEP
        interruption = Interruption(number, error, lines=lines)
        raised, ignored = interruption.run(lambda: program(born))
        if interruption.place is None:
            assert raised is None
            break
        assert sys.exc_info()[1] is None, f"{interruption.place}: Python raises nothing there"
        # While the exception is handled, and its traceback keeps the frames.
        found = []
        if ds.current_scope() is not None:
            found.append(f"current: {ds.current_scope()}")
        if type(raised) is not error and error not in ignored:
            found.append(f"raised: {raised!r}")
        found += [f"lives: {type(thing).__qualname__}" for thing in born if not ds.is_disposed(thing)]
        born.clear()
        del raised
        gc.collect()
        after = _state(), state()
        if after != before:
            found.append(f"{before} became {after}")
        found += [f"open: {scope!r}" for scope in gc.get_objects() if _is_open(scope)]
        now = ds.statistics()
        created, disposed = (now.created_in_scope, now.created_unscoped), (now.disposed_in_scope, now.disposed_unscoped)
        if not only_gone and sum(created) != sum(disposed):
            found.append(f"counted: {now}")
        if found:
            wrong[f"{interruption.place}: {'; '.join(found)}"] += 1
        assert len(wrong) < 10, "\n".join(wrong)
    assert not wrong, "\n".join(wrong)
    return number - _STEP


def _is_open(thing: object) -> bool:
    return type(thing) is ds.DisposeScope and getattr(thing, "_state", None) == OPEN
