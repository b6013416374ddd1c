"""What would lower the peak of a pass, found by replaying its recording with some lives changed.

A recording says when memory is born and freed; it does not say when it is used last. That is read
in the code: the instruction after the birth binds a variable, and the last of the instructions that
load it, on any way on from there to where it is bound again, is its last use. The time of a line is
that of the next birth in the same function below it. So the advice is about variables of functions
and modules. What attributes, containers, other variables and views hold is in the list of what
lives at the peak, without advice.

Each candidate is replayed: the lives that it changes are changed in all births of that line, and
the peak of the result is what is told. The changes are

* ``del x`` after the line of its last use: the life ends there;
* in place: what an operator or a ufunc makes, where something of the same size dies before the
  next birth, and so lived beside it for nothing: ``out=``, or an operator such as ``+=``, has one
  block for both;
* recompute: the variable is used early, and once more after the peak: its life is cut in two.
"""

from __future__ import annotations

import dis
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.base.sites import Mark, line_of, shown
from ..report.peak import Advice
from .recording import Recording, Service, user_place
from .source import Callees, source_of

__all__ = ["advise"]

_LINES_AT_MOST: Final = 24
"""So many of the lines at the peak are looked at, those with the most bytes first."""
_LEAST_SHARE: Final = 100
"""Advice that saves less than one part in so many of the peak is not given."""
_STORES: Final = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_LOADS: Final = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST_CHECK")
_FAST: Final = re.compile(r"(?:LOAD|STORE)_FAST")
_RETURNS: Final = ("RETURN_VALUE",)
_ENDS: Final = (*_RETURNS, "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD")
"""What does not go on to the next instruction, beside jumps back."""


class _Step(NamedTuple):
    """An instruction that loads or stores one variable at most."""

    opname: str
    argval: Any
    argrepr: str
    offset: int


def _steps_of(instruction: dis.Instruction) -> Iterator[_Step]:
    """Yield the steps of an instruction: since Python 3.13 one may load and store two variables."""
    opname: str = instruction.opname
    argval: Any = instruction.argval
    # 3.14 has loads of its own for what is used at once.
    parts: list[str] = _FAST.findall(opname)
    if len(parts) == 2:
        for index, part in enumerate(parts):
            yield _Step(part, argval[index], argval[index], instruction.offset)
    elif opname != "CACHE":
        yield _Step(opname.replace("_FAST_BORROW", "_FAST"), argval, instruction.argrepr, instruction.offset)


@final
class _Code:
    """The instructions of a code object, as far as advice needs them."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.instructions = [step for each in dis.get_instructions(code) for step in _steps_of(each)]
        self.offsets = [each.offset for each in self.instructions]
        self.lines = [line_of(code, offset) for offset in self.offsets]
        self.positions: dict[int, int] = {}
        for number, offset in enumerate(self.offsets):
            self.positions.setdefault(offset, number)
        self._next = self._ways()

    def variable_bound_at(self, offset: int) -> tuple[str, int] | None:
        """Return the variable that the value made at an offset is bound to, and where.

        That is the number of the instruction that binds it. None where the value is used otherwise.
        """
        after = self._after(offset)
        if after is None:
            return None
        if self.instructions[after].opname not in _STORES:
            source, line = source_of(self.code), self.lines[after]
            while after < len(self.instructions) and not source.binds_result_of(offset, self.offsets[after]):
                after += 1
                if after == len(self.instructions) or self.lines[after] not in (line, -1):
                    return None
        return (self.instructions[after].argval, after) if self.instructions[after].opname in _STORES else None

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

    def uses_of(self, name: str, bound: int, callees: Callees) -> list[int] | None:
        """Return the lines that load a variable after it was bound, in their order.

        Ends where it is bound again. What a loop loads over and over has the last line of the loop.
        None where nothing can be said: other code, a container, another variable or a view may have
        it too, or the next round of a loop uses it.
        """
        source = source_of(self.code)
        if name in self.code.co_cellvars or self.instructions[bound].opname in ("STORE_GLOBAL", "STORE_DEREF"):
            return None
        if self.instructions[bound].opname == "STORE_NAME" and source.is_read_elsewhere(name):
            return None
        loads: list[int] = []
        pending, seen = [bound + 1], {bound}
        while pending:
            number = pending.pop()
            if number in seen or number >= len(self.instructions):
                continue
            seen.add(number)
            instruction = self.instructions[number]
            if instruction.argval == name and instruction.opname in _STORES:
                if not self._is_the_same(number):
                    continue
            elif instruction.argval == name and instruction.opname in _LOADS:
                if number < bound or source.may_keep(instruction.offset, callees):
                    return None
                loads.append(number)
            pending.extend(self._next[number])
        return sorted(self._line(self._end_of_loop(number, bound)) for number in loads)

    def _is_the_same(self, store: int) -> bool:
        """Return whether a store binds what an operator such as ``+=`` returns: the same array."""
        before = self.instructions[store - 1]
        return before.opname == "BINARY_OP" and before.argrepr.endswith("=")

    def on_line(self, line: int) -> list[_Step]:
        """Return the instructions of a line."""
        return [each for each, there in zip(self.instructions, self.lines, strict=True) if there == line]

    def returns_on(self, line: int) -> bool:
        """Return whether the function ends on a line."""
        return any(each.opname in _RETURNS for each in self.on_line(line))

    def _ways(self) -> list[list[int]]:
        """Return for each instruction those that may follow it, handlers of exceptions included."""
        ways: list[list[int]] = []
        for number, each in enumerate(self.instructions):
            is_always = "JUMP_BACKWARD" in each.opname and "_IF_" not in each.opname
            goes_on = each.opname not in _ENDS and not is_always
            ways.append([number + 1] if goes_on else [])
            if "JUMP" in each.opname or each.opname in ("FOR_ITER", "SEND"):
                target = self.positions.get(each.argval)
                ways[-1].extend([] if target is None else [target])
        bytecode: Any = dis.Bytecode(self.code)
        for entry in bytecode.exception_entries:
            handler = self.positions.get(entry.target)
            if handler is not None:
                for number, each in enumerate(self.instructions):
                    if entry.start <= each.offset < entry.end:
                        ways[number].append(handler)
        return ways

    def _start_of_loop(self, number: int) -> int | None:
        """Return the instruction to which a jump back leads; None for any other instruction."""
        instruction = self.instructions[number]
        return self.positions.get(instruction.argval) if "JUMP_BACKWARD" in instruction.opname else None

    def _end_of_loop(self, load: int, bound: int) -> int:
        """Return the instruction that ends the runs of a load: itself, or its loop's jump back."""
        end = load
        for number in range(load + 1, len(self.instructions)):
            start = self._start_of_loop(number)
            # A loop that binds the variable itself has another value in each of its rounds.
            if start is not None and bound < start <= load:
                end = number
        return end

    def _line(self, number: int) -> int:
        return self.lines[number]


_code_of: Final[Callable[[CodeType], _Code]] = lru_cache(maxsize=256)(_Code)

_Variable = tuple[CodeType, str, int]
"""Code, the name of a variable in it, and the instruction that binds it."""
_Lives = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Lower, upper and bytes of each."""


def advise(recording: Recording, fixed_nbytes: int = 0) -> tuple[Advice, ...]:
    """Return what would lower the peak of a pass, the most effective first.

    Parameters
    ----------
    recording : Recording
        The pass.
    fixed_nbytes : int, default 0
        What lives all the time, and counts for the peak too.
    """
    peak = recording.peak()[1]
    if not peak:
        return ()
    found: list[Advice] = []
    seen: set[str] = set()
    for text, lives in _Replay(recording).changes():
        if text in seen:
            continue
        seen.add(text)
        after = int(recording.live_nbytes(lives).max())
        if (peak - after) * _LEAST_SHARE >= peak:
            found.append(Advice(text, peak - after, after + fixed_nbytes))
    return tuple(sorted(found, key=lambda each: (-each.saved_nbytes, each.text)))


@final
class _Replay:
    """A recording, and the changes of lives that are tried."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.groups, self.frames = recording.groups()
        self.places = [frames[user_place(frames)] if frames else None for frames in self.frames]
        self.callees = Callees(self.frames)
        self.variables = [self._variable_of(frames) for frames in self.frames]
        self.peak = recording.peak()[0]

    def changes(self) -> Iterator[tuple[str, _Lives]]:
        """Yield the changes for what lives at the peak, the lines with the most bytes first."""
        living = self.recording.living_at(self.peak)
        by_place: dict[tuple[int, int], tuple[int, int]] = {}
        for group, (_, nbytes) in living.items():
            place = self.places[group]
            if place is not None:
                key = id(place[0]), place[1]
                first, total = by_place.get(key, (group, 0))
                by_place[key] = first, total + nbytes
        for group, _ in sorted(by_place.values(), key=lambda item: -item[1])[:_LINES_AT_MOST]:
            variable = self.variables[group]
            if variable is not None:
                yield from self._changes_of_variable(variable)
            yield from self._in_place(group)

    def _variable_of(self, frames: tuple[Mark, ...]) -> _Variable | None:
        """Return the variable that a birth is bound to, in its function or in a caller.

        It is a variable of a caller where the function returns the value at once.
        """
        for code, offset in frames[user_place(frames) :] if frames else ():
            known = _code_of(code)
            bound = known.variable_bound_at(offset)
            if bound is not None:
                return code, *bound
            if not known.returns_at(offset):
                return None
        return None

    def _births_of(self, wanted: Callable[[int], bool]) -> NDArray[np.int64]:
        """Return the births whose frames, by their number, are wanted."""
        chosen = np.array([wanted(group) for group in range(len(self.frames))], bool)
        births: NDArray[np.int64] = np.flatnonzero(chosen[self.groups])
        return births

    def _are_saved(self, births: NDArray[np.int64]) -> bool:
        """Return whether a graph may have saved one of some births."""
        return any(self.recording.births[int(number)].outcome is Service.SAVED for number in births)

    def _lines_in(self, code: CodeType) -> NDArray[np.int64]:
        """Return the line of a function at each birth; -1 where the function was not running."""
        by_group = [
            next((line_of(code, offset) for each, offset in frames if each is code), -1) for frames in self.frames
        ]
        lines: NDArray[np.int64] = np.array(by_group, np.int64)[self.groups]
        return lines

    def _next(self, condition: NDArray[np.bool_], births: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each birth the time of the next that meets a condition, or the end."""
        times = np.append(np.flatnonzero(condition), len(condition))
        found: NDArray[np.int64] = times[np.searchsorted(times, births, side="right").clip(max=len(times) - 1)]
        return found

    def _changes_of_variable(self, variable: _Variable) -> Iterator[tuple[str, _Lives]]:
        code, name, bound = variable
        known = _code_of(code)
        uses = known.uses_of(name, bound, self.callees)
        births = self._births_of(lambda group: self.variables[group] == variable)
        if uses is None or self._are_saved(births):
            return
        recording, file, source = self.recording, shown(code.co_filename), source_of(code)
        binding = known.instructions[bound].offset
        first = line_of(code, binding)
        last = max(uses, default=first)
        place = source.end_of_use(binding, last)
        if place is None:
            return
        around, begin, end = place
        lines = self._lines_in(code)
        # What outlives the function has another holder than the variable.
        births = births[recording.upper[births] <= self._next(lines < 0, births)]

        def left(line: int) -> NDArray[np.int64]:
            # The function has returned, is below the line, or in another round of a loop around
            # both; that of a loop which only binds the variable ends no life.
            return self._next((lines < begin) | (lines > line), births)

        if not known.returns_on(last):
            upper = recording.upper.copy()
            upper[births] = np.minimum(upper[births], left(end))
            behind = f"the {around} that ends at " if around else ""
            yield f"del {name} after {behind}{file}:{end}", (recording.lower, upper, recording.sizes)
        earlier = [line for line in uses if line < last]
        if not earlier or not source.can_recompute(binding):
            return
        ends, begins = left(max(earlier)), self._next(lines >= last, births)
        is_cut = (ends <= self.peak) & (self.peak < begins) & (begins < recording.upper[births])
        if is_cut.any():
            upper = recording.upper.copy()
            upper[births[is_cut]] = ends[is_cut]
            yield (
                f"recompute {name} before {file}:{last} (checkpoint)",
                (
                    np.concatenate([recording.lower, begins[is_cut]]),
                    np.concatenate([upper, recording.upper[births[is_cut]]]),
                    np.concatenate([recording.sizes, recording.sizes[births[is_cut]]]),
                ),
            )

    def _in_place(self, group: int) -> Iterator[tuple[str, _Lives]]:
        """Yield the change by which births of a line get the blocks of what dies at the next."""
        recording, place = self.recording, self.places[group]
        assert place is not None
        code, offset = place
        if not source_of(code).is_elementwise(offset):
            return
        births = self._births_of(lambda other: _is(self.places[other], place))
        if self._are_saved(births):
            return
        ends: dict[int, list[int]] = defaultdict(list)
        for number, end in enumerate(recording.upper.tolist()):
            ends[end].append(number)
        upper = recording.upper.copy()
        changed = False
        for number in births.tolist():
            # What is alive at the last birth may die with the pass, and be needed until then.
            for dying in ends.get(number + 1, ()) if number + 1 < len(upper) else ():
                if dying < number and recording.sizes[dying] == recording.sizes[number]:
                    upper[dying] = number
                    changed = True
                    break
        if changed:
            line = line_of(code, offset)
            yield f"in place at {shown(code.co_filename)}:{line}", (recording.lower, upper, recording.sizes)


def _is(one: Mark | None, other: Mark) -> bool:
    return one is not None and one[0] is other[0] and one[1] == other[1]
