"""What would lower the peak of a pass, found by replaying its recording with some lives changed.

A recording says when memory is born and freed. It does not say when it is used last. That is read
in the code. The instruction after the birth binds a variable. The last use is the last instruction
that loads this variable, on any path from there to where it is bound again. The time of a line is
that of the next birth in the same function below it.

So the advice is about variables of functions and modules. There is none for memory that attributes,
containers, other variables or views hold. Nor is there any for functions that call themselves, run
on other threads, or run in steps as generators do: there a line has no single time.

Each change is replayed: the lives of all births of that line are changed, and the peak of the
result is reported. The changes are

* ``del x`` after the line of its last use: the life ends there;
* in place: an elementwise operation writes its result into an operand of the same kind and size
  that is used there for the last time. It dies before the next birth, or only its variable holds
  it. With ``out=``, or an operator such as ``+=``, one block serves both, until both are dead;
* recompute: the variable is used early, and once more after the peak. Its life is cut in two.
"""

from __future__ import annotations

import ast
import dis
import inspect
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from types import CodeType
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...scopes.base.sites import Mark, Role, line_of, role_of, shown
from ..report.peak import Advice
from .functions import plain_module_call, without_notes
from .recording import Recording, ServedBy, user_place
from .source import Fate, Source, Sources

__all__ = ["advise"]

_LINES_AT_MOST: Final = 24
"""So many of the lines at the peak are looked at, those with the most bytes first."""
_LEAST_PART: Final = 100
"""Advice is given if it saves at least one part in so many of the peak."""
_STORES: Final = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_LOADS: Final = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST_CHECK")
_FAST: Final = re.compile(r"(?:LOAD|STORE)_FAST")
"""The parts of the name of an instruction that loads or stores several variables."""
_RETURNS: Final = ("RETURN_VALUE",)
_RUNS_IN_STEPS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_USED_UP: Final[frozenset[Fate]] = frozenset({"gone", "changed"})
_DO_NOT_GO_ON: Final = (*_RETURNS, "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD")
"""Instructions after which the next one does not run; jumps back are told apart otherwise."""


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
    # Python 3.14 has LOAD_FAST_BORROW for values that are used at once.
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
        # As `line_of` says, for all of them at once.
        starts = [start or 0 for start, *_ in code.co_positions()]
        self.lines = [starts[offset // 2] for offset in self.offsets]
        # The number of the first step at each offset.
        self.positions: dict[int, int] = {}
        for number, offset in enumerate(self.offsets):
            self.positions.setdefault(offset, number)
        self._next = self._successors()

    def variable_bound_at(self, offset: int, source: Source) -> tuple[str, int] | None:
        """Return the variable that the value made at an offset is bound to, and the binding step.

        None where the value is not bound to a variable at once, or after operators.
        """
        after = self._after(offset)
        if after is None:
            return None
        if self.instructions[after].opname not in _STORES:
            line, target = self.lines[after], source.target_of(offset)
            while self.instructions[after].opname not in _STORES or source.node(self.offsets[after]) is not target:
                after += 1
                if target is None or after == len(self.instructions) or self.lines[after] != line:
                    return None
        return self.instructions[after].argval, after

    def returns_at(self, offset: int, source: Source) -> bool:
        """Return whether the value made at an offset is returned at once, or after operators."""
        after = self._after(offset)
        is_returned = after is not None and self.instructions[after].opname in _RETURNS
        return is_returned or source.returns_result_of(offset)

    def _after(self, offset: int) -> int | None:
        """Return the number of the step that gets the value made at an offset, or None."""
        # A frame that has called another one may be at the inline cache behind its instruction.
        number = bisect_right(self.offsets, offset) - 1
        if number < 0:
            return None
        # A call is two instructions in Python 3.11, and either may be the one that runs.
        number += 1 + (self.instructions[number].opname == "PRECALL")
        return number if number < len(self.instructions) else None

    def uses_of(self, name: str, bound: int, source: Source, loop: tuple[int, int] | None = None) -> list[int] | None:
        """Return the lines that load a variable after the step `bound`, in their order.

        Only those are returned that run before it is bound again. A load in a loop that does not
        bind the variable counts for the last line of the loop. None where nothing can be said:
        other code, a container, another variable or a view may refer to the value too, or the next
        turn of a loop uses it, unless `loop` has the first and last line of that loop. What is in
        it counts for its last line then.
        """
        if name in self.code.co_cellvars or self.instructions[bound].opname in ("STORE_GLOBAL", "STORE_DEREF"):
            return None
        if not source.is_variable_of_its_own(name):
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
                if not self._binds_same_array(number):
                    continue
            elif instruction.argval == name and instruction.opname in _LOADS:
                is_inside = loop is not None and loop[0] <= self.lines[number] <= loop[1]
                # The condition of a ``while`` is compiled a second time, behind the body.
                is_of_next_turn = number < bound or self.lines[number] < self.lines[bound]
                if (is_of_next_turn and not is_inside) or not source.fates_at(name, instruction.offset) <= _USED_UP:
                    return None
                loads.append(number)
            pending.extend(self._next[number])
        at_least = 0 if loop is None else loop[1]
        last_lines = (source.last_line_of_use(name, self.offsets[number], self.offsets[bound]) for number in loads)
        return sorted(max(line, at_least) for line in last_lines)

    def _binds_same_array(self, store: int) -> bool:
        """Return whether a store is that of an operator such as ``+=``, which returns its array."""
        before = self.instructions[store - 1]
        return before.opname == "BINARY_OP" and before.argrepr.endswith("=")

    def on_line(self, line: int) -> list[_Step]:
        """Return the instructions of a line."""
        return [each for each, there in zip(self.instructions, self.lines, strict=True) if there == line]

    def returns_on(self, line: int) -> bool:
        """Return whether the function ends on a line."""
        return any(each.opname in _RETURNS for each in self.on_line(line))

    def _successors(self) -> list[list[int]]:
        """Return for each step those that may follow it, handlers of exceptions included."""
        successors: list[list[int]] = []
        for number, each in enumerate(self.instructions):
            always_jumps_back = "JUMP_BACKWARD" in each.opname and "_IF_" not in each.opname
            goes_on = each.opname not in _DO_NOT_GO_ON and not always_jumps_back
            successors.append([number + 1] if goes_on else [])
            if "JUMP" in each.opname or each.opname in ("FOR_ITER", "SEND"):
                target = self.positions.get(each.argval)
                successors[-1].extend([] if target is None else [target])
        bytecode: Any = dis.Bytecode(self.code)
        for entry in bytecode.exception_entries:
            handler = self.positions.get(entry.target)
            if handler is not None:
                for number, each in enumerate(self.instructions):
                    if entry.start <= each.offset < entry.end:
                        successors[number].append(handler)
        return successors


_Variable = tuple[_Code, str, int]
"""Code, the name of a variable in it, and the number of the step that binds it.

Not a `CodeType`: those of two files may be equal.
"""
_Lives = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The arrays `lower`, `upper` and `sizes` of a recording."""


def advise(recording: Recording, fixed_nbytes: int = 0) -> tuple[Advice, ...]:
    """Return what would lower the peak of a pass, the most effective first.

    Parameters
    ----------
    recording : Recording
        The pass.
    fixed_nbytes : int, default 0
        Bytes that live all the time, and belong to the peak too.
    """
    _, peak_nbytes = recording.peak()
    if not peak_nbytes or _runs_code_for_arrays(np.ndarray):
        return ()
    found: list[Advice] = []
    seen: set[str] = set()
    for text, lives in _Replay(recording).changes():
        if text in seen:
            continue
        seen.add(text)
        after_nbytes = int(recording.live_nbytes(lives).max())
        if (peak_nbytes - after_nbytes) * _LEAST_PART >= peak_nbytes:
            found.append(Advice(text, peak_nbytes - after_nbytes, after_nbytes + fixed_nbytes))
    return tuple(sorted(found, key=lambda each: (-each.saved_nbytes, each.text)))


@final
class _Replay:
    """A recording, and the changes of lives that are tried.

    Attributes
    ----------
    groups : array of int64
        The group of each birth: see `Recording.groups`.
    frames, places, variables : list
        For each group, the frames, the user's innermost frame, and the variable of the births.
    irregular : set of int
        The ids of codes whose lines have no single time.
    peak_time : int
        The time of the peak.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.groups, all_frames = recording.groups()
        self.frames = [without_notes(frames) for frames in all_frames]
        self.places = [frames[user_place(frames)] if frames else None for frames in self.frames]
        self.sources = Sources(self.frames, np.bincount(self.groups, minlength=len(self.frames)).tolist())
        # By ``id``: the hash of code is that of all its contents, and slow.
        self._codes: dict[int, _Code] = {}
        self.irregular = self._irregular()
        self.variables = [self._variable_of(frames) for frames in self.frames]
        self.peak_time, _ = recording.peak()
        # The births that die at each time.
        self._ends: dict[int, list[int]] = defaultdict(list)
        for number, end in enumerate(recording.upper.tolist()):
            self._ends[end].append(number)

    def changes(self) -> Iterator[tuple[str, _Lives]]:
        """Yield the changes for what lives at the peak, the lines with the most bytes first."""
        living = self.recording.living_at(self.peak_time)
        # For each place, its first group and the bytes of all its groups.
        by_place: dict[tuple[int, int], tuple[int, int]] = {}
        for group, (_, nbytes) in living.items():
            place = self.places[group]
            if place is not None:
                key = id(place[0]), place[1]
                first, total = by_place.get(key, (group, 0))
                by_place[key] = first, total + nbytes
        for group, _ in sorted(by_place.values(), key=lambda item: -item[1])[:_LINES_AT_MOST]:
            variable = self.variables[group]
            with _no_advice_for_deep_source():
                if variable is not None:
                    yield from self._changes_of_variable(variable)
                yield from self._in_place(group)

    def _code_of(self, code: CodeType) -> _Code:
        known = self._codes.get(id(code))
        if known is None:
            self._codes[id(code)] = known = _Code(code)
        return known

    def _variable_of(self, frames: tuple[Mark, ...]) -> _Variable | None:
        """Return the variable that a birth is bound to, in its function or in a caller.

        It is a variable of a caller where the function returns the value at once.
        """
        with _no_advice_for_deep_source():
            return self._variable_bound_to(frames)
        return None

    def _variable_bound_to(self, frames: tuple[Mark, ...]) -> _Variable | None:
        if not frames:
            return None
        first = user_place(frames)
        if not self.sources.of(frames[first][0]).makes_new(frames[first][1], frames[:first]):
            return None
        called: CodeType | None = None
        for code, offset in frames[first:]:
            known, source = self._code_of(code), self.sources.of(code)
            if called is not None and plain_module_call(code) == "calls":
                # PyTorch's code around ``forward`` of a module returns what that returns.
                called = code if called.co_name == "forward" or plain_module_call(called) == "calls" else None
                if called is not None:
                    continue
            if id(code) in self.irregular:
                return None
            is_module = called is not None and plain_module_call(called) == "calls"
            if called is not None and not is_module and not source.calls_directly(offset, called):
                return None
            bound = known.variable_bound_at(offset, source)
            if bound is not None:
                return known, *bound
            if not known.returns_at(offset, source):
                return None
            called = code
        return None

    def _irregular(self) -> set[int]:
        """Return the ids of codes whose lines have no single time."""
        found: set[int] = set()
        for frames in self.frames:
            codes = [id(code) for code, _ in frames]
            found.update(id(code) for code, _ in frames if code.co_flags & _RUNS_IN_STEPS)
            found.update(code for code in codes if codes.count(code) > 1)
        elsewhere = {
            int(self.groups[number]) for number, birth in enumerate(self.recording.births) if birth.is_elsewhere
        }
        found.update(id(code) for group in elsewhere for code, _ in self.frames[group])
        return found

    def _births_of(self, wanted: Callable[[int], bool]) -> NDArray[np.int64]:
        """Return the births of the groups that are wanted."""
        chosen = np.array([wanted(group) for group in range(len(self.frames))], bool)
        births: NDArray[np.int64] = np.flatnonzero(chosen[self.groups])
        return births

    def _are_saved(self, births: NDArray[np.int64]) -> bool:
        """Return whether a graph may have saved one of some births."""
        return any(self.recording.births[int(number)].outcome is ServedBy.SAVED for number in births)

    def _lines_in(self, code: CodeType) -> NDArray[np.int64]:
        """Return the line of a function at each birth; -1 where the function was not running."""
        offsets = [next((offset for each, offset in frames if each is code), -1) for frames in self.frames]
        lines_at = {offset: line_of(code, offset) for offset in set(offsets) if offset >= 0}
        by_group = [lines_at.get(offset, -1) for offset in offsets]
        lines: NDArray[np.int64] = np.array(by_group, np.int64)[self.groups]
        return lines

    def _next(self, condition: NDArray[np.bool_], births: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each birth the time of the next that meets a condition, or the end."""
        times = np.append(np.flatnonzero(condition), len(condition))
        found: NDArray[np.int64] = times[np.searchsorted(times, births, side="right").clip(max=len(times) - 1)]
        return found

    def _next_turns(self, code: CodeType, births: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each birth the time of the next birth that its loop makes in another turn.

        Another turn has begun when the function is at an earlier instruction than that of the
        birth, or in another call from the same instruction. It has also begun when the
        same instruction makes an array that is still there when the one before has died. What one
        operation makes in several parts dies at one time, and is of one turn.
        """
        paths = [_path_from(code, frames) for frames in self.frames]
        offsets = np.array([path[0] if path else -1 for path in paths], np.int64)[self.groups]
        found = np.full(len(births), len(self.groups), np.int64)
        for group in {int(each) for each in self.groups[births]}:
            path = paths[group]
            others = np.array([_is_of_another_call(each, path) for each in paths], bool)[self.groups]
            chosen = np.flatnonzero(self.groups[births] == group)
            again = (offsets >= 0) & (offsets < path[0]) | others
            own = _next_greater(self.recording.upper, np.flatnonzero(self.groups == group), births[chosen])
            found[chosen] = np.minimum(self._next(again, births[chosen]), own)
        return found

    def _changes_of_variable(self, variable: _Variable) -> Iterator[tuple[str, _Lives]]:
        known, name, bound = variable
        code = known.code
        source = self.sources.of(code)
        binding = known.instructions[bound].offset
        uses, loop = known.uses_of(name, bound, source), None
        if uses is None and (loop := source.loop_that_hands_on(name, binding)) is not None:
            uses = known.uses_of(name, bound, source, (loop.lineno, loop.end_lineno or loop.lineno))
        births = self._births_of(lambda group: self.variables[group] == variable)
        if uses is None or self._are_saved(births):
            return
        recording, file = self.recording, shown(code.co_filename)
        last = max(uses, default=line_of(code, binding))
        place = source.end_of_use(name, binding, last, loop)
        if place is None:
            return
        around, begin, end, until = place
        lines = self._lines_in(code)
        # A value that outlives the function has another holder than the variable.
        births = births[recording.upper[births] <= self._next(lines < 0, births)]

        # Where a loop hands the value on, the value dies in the next turn, when it is replaced.
        next_turns = self._next_turns(code, births) if loop is None else recording.upper[births]

        def left(line: int) -> NDArray[np.int64]:
            """Return for each birth the time at which the function has left the lines up to one.

            It has returned, is below the line, or is in the next turn of a loop around them.
            """
            is_below = (lines > line) & (lines <= until)
            return np.minimum(self._next((lines < begin) | is_below, births), next_turns)

        if not known.returns_on(last):
            upper = recording.upper.copy()
            upper[births] = np.minimum(upper[births], left(end))
            behind = f"the {around} that ends at " if around else ""
            yield f"del {name} after {behind}{file}:{end}", (recording.lower, upper, recording.sizes)
        earlier = [line for line in uses if line < last]
        if not earlier or loop is not None or not source.can_recompute(name, binding, last):
            return
        ends, begins = left(max(earlier)), self._next(lines >= last, births)
        is_cut = (ends <= self.peak_time) & (self.peak_time < begins) & (begins < recording.upper[births])
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
        """Yield the change in which each birth of a line uses the block of an operand.

        If several operands will do, that of the lowest peak.
        """
        recording, place = self.recording, self.places[group]
        assert place is not None
        code, offset = place
        operands = self.sources.of(code).operands_for_result(offset)
        if not operands or id(code) in self.irregular:
            return
        births = self._births_of(lambda other: _is_same_place(self.places[other], place))
        # Beside its result a function may make small buffers for itself.
        _, peak_nbytes = recording.peak()
        births = births[recording.sizes[births] * _LEAST_PART >= peak_nbytes]
        where = f"{shown(code.co_filename)}:{line_of(code, offset)}"
        changes: list[tuple[str, _Lives]] = []
        for operand in operands:
            held = self._held_by_variable(operand, code)
            used_up = [self._operand_used_up(number, place, operand, held) for number in births.tolist()]
            if None in used_up or self._are_saved(np.array([*births, *used_up], np.int64)):
                continue
            upper = recording.upper.copy()
            for birth, result in zip(used_up, births.tolist(), strict=True):
                # The block of both lives until the later of their deaths: also where a variable
                # goes on to hold the operand.
                upper[birth], upper[result] = result, max(upper[birth], upper[result])
            over = operand.id if isinstance(operand, ast.Name) else "a temporary"
            changes.append((f"in place at {where} (over {over})", (recording.lower, upper, recording.sizes)))
        yield from sorted(changes, key=lambda change: int(recording.live_nbytes(change[1]).max()))[:1]

    def _held_by_variable(self, operand: ast.expr, code: CodeType) -> list[int]:
        """Return the births that an operand has, if it is a variable which alone holds them."""
        if not isinstance(operand, ast.Name):
            return []
        known = self._code_of(code)
        births = self._births_of(
            lambda group: (variable := self.variables[group]) is not None and variable[:2] == (known, operand.id)
        )
        # A value that outlives the function has another holder than the variable.
        held: list[int] = births[self.recording.upper[births] <= self._next(self._lines_in(code) < 0, births)].tolist()
        return held

    def _operand_used_up(self, number: int, place: Mark, operand: ast.expr, held: list[int]) -> int | None:
        """Return the birth of an operand whose block a birth could use; None if there is none.

        `held` has the births that only the operand holds, in their order.
        """
        recording = self.recording
        # Not at the last birth: an operand may have died with the pass, and been needed until then.
        dying = self._ends.get(number + 1, ()) if number + 1 < len(recording.upper) else ()
        bound = held[: bisect_left(held, number)][-1:]
        candidates: list[int] = [*dying, *(birth for birth in bound if recording.upper[birth] > number)]
        for birth in candidates:
            is_like_it = birth < number and recording.sizes[birth] == recording.sizes[number]
            if is_like_it and self._is_last_use(birth, place, operand):
                return birth
        return None

    def _is_last_use(self, birth: int, place: Mark, operand: ast.expr) -> bool:
        """Return whether a birth is that of an operand which nothing uses after the operation."""
        code, offset = place
        source, group = self.sources.of(code), int(self.groups[birth])
        if not isinstance(operand, ast.Name):
            made = self.places[group]
            return made is not None and made[0] is code and source.node(made[1]) is operand
        variable = self.variables[group]
        known = self._code_of(code)
        if variable is None or variable[:2] != (known, operand.id):
            return False
        _, _, bound = variable
        uses = known.uses_of(operand.id, bound, source)
        return uses is not None and max(uses, default=0) <= source.end_line(offset)


def _runs_code_for_arrays(cls: type[Any]) -> bool:
    """Return whether a subclass of `numpy.ndarray` has an ``__array_finalize__`` of the program's.

    It is called for each array that is made of another, and may keep either. It may be that of a
    mixin, and may call those of the bases that come after it.
    """
    for each in cls.__subclasses__():
        bases = takewhile(lambda base: base is not np.ndarray, each.__mro__)
        codes = [getattr(vars(base).get("__array_finalize__"), "__code__", None) for base in bases]
        is_of_program = any(isinstance(code, CodeType) and role_of(code) is Role.USER for code in codes)
        if is_of_program or _runs_code_for_arrays(each):
            return True
    return False


def _no_advice_for_deep_source() -> suppress:
    """Leave a block where the source nests too deeply, as a sum of a thousand terms does."""
    return suppress(RecursionError)


def _path_from(code: CodeType, frames: tuple[Mark, ...]) -> tuple[int, ...]:
    """Return where a function is at a birth, and the user's frames inside it; empty if it is not.

    The first number is the offset in the function. Of each frame inside, there are two numbers.
    """
    own = next((number for number, (each, _) in enumerate(frames) if each is code), None)
    if own is None:
        return ()
    inside = frames[user_place(frames) : own]
    return (frames[own][1], *(number for each, offset in reversed(inside) for number in (id(each), offset)))


def _is_of_another_call(path: tuple[int, ...], since: tuple[int, ...]) -> bool:
    """Return whether a later birth is of another call from the same instruction of the function.

    One further on in the functions that were called may be of the same call, such as of the second
    part of a sum.
    """
    if not path or path[0] != since[0] or path == since:
        return False
    differs = next((index for index, (mine, other) in enumerate(zip(path, since, strict=False)) if mine != other), 0)
    # Of each frame the number of its code stands before that of the instruction. Where one path
    # goes on from the other, the index is 0, at which they are the same: it is another call.
    return differs % 2 == 1 or path[differs] <= since[differs]


def _next_greater(
    values: NDArray[np.int64], candidates: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return for each wanted index the next candidate with a greater value; the end if none has."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    for candidate in candidates.tolist():
        while waiting and values[waiting[-1]] < values[candidate]:
            found[waiting.pop()] = candidate
        waiting.append(candidate)
    return np.array([found.get(each, len(values)) for each in wanted.tolist()], np.int64)


def _is_same_place(mark: Mark | None, other: Mark) -> bool:
    # With `is`: two code objects are equal if their contents are.
    return mark is not None and mark[0] is other[0] and mark[1] == other[1]
