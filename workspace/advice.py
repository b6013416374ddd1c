"""What would lower the peak of a pass, found by replaying its recording with some lives changed.

A recording says when memory is born and freed; it does not say when it is used last. That is read in
the code: the instruction after the birth binds a variable, and the last instruction that loads this
variable, before it is bound again or the function ends, is its last use. The time of a line is that of
the next birth in the same function below it. So the advice is about variables of functions and modules;
what attributes and containers hold is in the list of what lives at the peak, without advice.

Each candidate is replayed: the lives that it changes are changed in all births of that line, and the peak
of the result is what is told. The changes are

* ``del x`` after the line of its last use: the life ends there;
* in place: something of the same size dies at the next birth after this one, and so lived beside it for
  nothing: ``out=``, or an operator such as ``+=``, has one block for both;
* recompute: the variable is used early, and once more after the peak: its life is cut in two.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from ..scopes.sites import Mark, line_of, shown
from .recording import Birth, Recording, user_place
from .results import Advice

__all__ = ["advise"]

_LINES_AT_MOST: Final = 24
"""So many of the lines at the peak are looked at, those with the most bytes first."""
_LEAST_SHARE: Final = 100
"""Advice that saves less than one part in so many of the peak is not given."""
_STORES: Final = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_LOADS: Final = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST_CHECK")
_RETURNS: Final = ("RETURN_VALUE",)


@final
class _Code:
    """The instructions of a code object, as far as advice needs them."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
        self.offsets = [each.offset for each in self.instructions]
        self.positions = {each.offset: number for number, each in enumerate(self.instructions)}

    def variable_bound_at(self, offset: int) -> tuple[str, int] | None:
        """Return the variable that the value made at an offset is bound to, and where; None where it is another use."""
        after = self._after(offset)
        if after is None or self.instructions[after].opname not in _STORES:
            return None
        return self.instructions[after].argval, after

    def returns_at(self, offset: int) -> bool:
        """Return whether the value made at an offset is returned at once."""
        after = self._after(offset)
        return after is not None and self.instructions[after].opname in _RETURNS

    def _after(self, offset: int) -> int | None:
        """Return what gets the value that is made at an offset; None where that is not known."""
        # The place of a frame that has called another one may be in what follows its instruction.
        number = bisect_right(self.offsets, offset) - 1
        if number < 0:
            return None
        # A call is two instructions in Python 3.11, and either may be the one that runs.
        number += 1 + (self.instructions[number].opname == "PRECALL")
        return number if number < len(self.instructions) else None

    def uses_of(self, name: str, bound: int) -> list[int] | None:
        """Return the lines that load a variable after it was bound, in the order of the code.

        Ends where it is bound again. What a loop loads over and over has the last line of the loop. None
        where nothing can be said: a closure has the variable, or the next round of a loop uses it.
        """
        if name in self.code.co_cellvars:
            return None
        lines: list[int] = []
        for number in range(bound + 1, len(self.instructions)):
            instruction = self.instructions[number]
            if instruction.opname in _STORES and instruction.argval == name:
                break
            if instruction.opname in _LOADS and instruction.argval == name:
                lines.append(self._line(self._end_of_loop(number, bound)))
            start = self._start_of_loop(number)
            if start is not None and start <= bound and self._is_loaded_first(name, start, bound):
                return None
        return lines

    def _start_of_loop(self, number: int) -> int | None:
        """Return the instruction to which a jump back leads; None for any other instruction."""
        instruction = self.instructions[number]
        return self.positions.get(instruction.argval) if "JUMP_BACKWARD" in instruction.opname else None

    def _is_loaded_first(self, name: str, start: int, end: int) -> bool:
        """Return whether a variable is loaded between two instructions, before it is bound there."""
        for instruction in self.instructions[start : end + 1]:
            if instruction.argval == name and instruction.opname in _LOADS:
                return True
            if instruction.argval == name and instruction.opname in _STORES:
                return False
        return False

    def _end_of_loop(self, load: int, bound: int) -> int:
        """Return the instruction after which a load is not run again: itself, or the jump back of its loop."""
        end = load
        for number in range(load + 1, len(self.instructions)):
            start = self._start_of_loop(number)
            # A loop that binds the variable itself has another value in each of its rounds.
            if start is not None and bound < start <= load:
                end = number
        return end

    def _line(self, number: int) -> int:
        return line_of(self.code, self.instructions[number].offset)


_code_of: Final[Callable[[CodeType], _Code]] = lru_cache(maxsize=256)(_Code)

_Variable = tuple[CodeType, str, int]
"""Code, the name of a variable in it, and the instruction that binds it."""


@lru_cache(maxsize=4096)
def _variable_of(places: tuple[Mark, ...]) -> _Variable | None:
    """Return the variable that a birth is bound to: in its function, or in a caller to which it is returned."""
    for code, offset in places[user_place(places) :]:
        known = _code_of(code)
        bound = known.variable_bound_at(offset)
        if bound is not None:
            return code, *bound
        if not known.returns_at(offset):
            return None
    return None


def advise(recording: Recording, fixed_nbytes: int = 0) -> tuple[Advice, ...]:
    """Return what would lower the peak of a pass, the most effective first.

    Parameters
    ----------
    recording : Recording
        The pass.
    fixed_nbytes : int, default 0
        What lives all the time, and counts for the peak too.
    """
    time, peak = recording.peak()
    if not peak:
        return ()
    groups: dict[tuple[CodeType, int], list[int]] = defaultdict(list)
    for number in recording.living_at(time):
        birth = recording.births[number]
        if birth.places:
            code, offset = birth.places[user_place(birth.places)]
            groups[code, offset].append(number)
    largest = sorted(groups.values(), key=lambda numbers: -sum(recording.births[n].nbytes for n in numbers))
    found: list[Advice] = []
    seen: set[str] = set()
    for numbers in largest[:_LINES_AT_MOST]:
        for text, lives in _changes(recording, numbers, time):
            if text in seen:
                continue
            seen.add(text)
            after = int(recording.live_nbytes(lives).max())
            if (peak - after) * _LEAST_SHARE >= peak:
                found.append(Advice(text, peak - after, after + fixed_nbytes))
    return tuple(sorted(found, key=lambda each: (-each.saved_nbytes, each.text)))


_Lives = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Lower, upper and bytes of each."""


def _changes(recording: Recording, numbers: list[int], peak: int) -> Iterable[tuple[str, _Lives]]:
    births = recording.births
    variable = _variable_of(births[numbers[0]].places)
    if variable is not None:
        yield from _changes_of_variable(recording, variable, numbers[0], peak)
    in_place = _in_place(recording, numbers)
    if in_place is not None:
        yield in_place


def _changes_of_variable(
    recording: Recording, variable: _Variable, example: int, peak: int
) -> Iterable[tuple[str, _Lives]]:
    code, name, bound = variable
    known = _code_of(code)
    uses = known.uses_of(name, bound)
    if uses is None:
        return
    file = shown(code.co_filename)
    last = max(uses, default=line_of(code, known.instructions[bound].offset))
    all_bound = [n for n, birth in enumerate(recording.births) if _variable_of(birth.places) == variable]
    upper = recording.upper.copy()
    for number in all_bound:
        upper[number] = min(upper[number], _time_after(recording, code, number, last))
    yield f"del {name} after {file}:{last}", (recording.lower, upper, recording.sizes)
    earlier = [line for line in uses if line < last]
    if not earlier:
        return
    upper = recording.upper.copy()
    again: list[tuple[int, int, int]] = []
    for number in all_bound:
        end = _time_after(recording, code, number, max(earlier))
        begin = _time_of_line(recording, code, number, last)
        if end <= peak < begin < upper[number]:
            again.append((begin, int(upper[number]), int(recording.sizes[number])))
            upper[number] = end
    if again:
        begins, ends, sizes = np.array(again, np.int64).T
        yield (
            f"recompute {name} before {file}:{last} (checkpoint)",
            (
                np.concatenate([recording.lower, begins]),
                np.concatenate([upper, ends]),
                np.concatenate([recording.sizes, sizes]),
            ),
        )


def _line_in(birth: Birth, code: CodeType) -> int | None:
    """Return the line at which a function was during a birth; None where it was not running."""
    for each, offset in birth.places:
        if each is code:
            return line_of(code, offset)
    return None


def _time_after(recording: Recording, code: CodeType, born: int, line: int) -> int:
    """Return when a function has left a line that it reaches after a birth: the time of the next birth elsewhere."""
    first = _line_in(recording.births[born], code)
    for number in range(born + 1, len(recording.births)):
        now = _line_in(recording.births[number], code)
        if now is None or now > line or (first is not None and now < first):
            return number
    return len(recording.births)


def _time_of_line(recording: Recording, code: CodeType, born: int, line: int) -> int:
    """Return the time of the first birth at or below a line of a function, after a birth."""
    for number in range(born + 1, len(recording.births)):
        now = _line_in(recording.births[number], code)
        if now is not None and now >= line:
            return number
    return len(recording.births)


def _in_place(recording: Recording, numbers: list[int]) -> tuple[str, _Lives] | None:
    """Return the change where what was born at the line could have had the block of what dies at the next birth."""
    births = recording.births
    code, offset = births[numbers[0]].places[user_place(births[numbers[0]].places)]
    upper = recording.upper.copy()
    changed = False
    ends: dict[int, list[int]] = defaultdict(list)
    for number in range(len(births)):
        ends[int(upper[number])].append(number)
    for number, birth in enumerate(births):
        if not birth.places or birth.places[user_place(birth.places)] != (code, offset):
            continue
        for dying in ends.get(number + 1, ()):
            if dying < number and births[dying].nbytes == birth.nbytes:
                upper[dying] = number
                changed = True
                break
    if not changed:
        return None
    return f"in place at {shown(code.co_filename)}:{line_of(code, offset)}", (recording.lower, upper, recording.sizes)
