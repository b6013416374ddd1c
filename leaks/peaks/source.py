"""Tell from the source what happens to a value where it is loaded: its `Fate`.

`del x` frees memory only where nothing else refers to the value of `x`. The source says where a
value goes. An operator, or a function that makes something new, does not refer to it afterwards. A
container, an attribute, another variable or a view does. What a call of a function does with an
argument is looked up in the source of that function: the one that the name stands for, or those
that were recorded to run inside the call. For functions of NumPy and PyTorch, `functions` says it.

An operator may be that of a list, or of a class of the program's which keeps its operand. It is
NumPy's or PyTorch's where memory was born at it without other Python code in between, or where all
other operands are known to be numbers, arrays or tensors. In doubt a value counts as kept.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Final, Literal, NamedTuple, TypeAlias, cast, final

import numpy as np

from ...scopes.base.sites import Mark, Role, globals_of_file, role_of
from .files import COMPREHENSIONS, FUNCTIONS, LOOPS, File, Position, file_of
from .functions import (
    BUILTINS_THAT_MAKE_NEW,
    CHANGING_FUNCTIONS,
    CHANGING_METHODS,
    CREATING,
    FACTS,
    INEXACT,
    RANDOM,
    READING_MORE,
    VIEWS,
    has_option,
    is_library_code,
    is_library_function,
    is_number_type,
    makes_new,
    plain_module_call,
)
from .values import NUMBER, Instance, ValueKind, Values, argument_count, is_range, name_of

__all__ = ["EndOfUse", "Fate", "Source", "Sources"]

Fate: TypeAlias = Literal["gone", "changed", "returned", "returned in another", "kept"]
"""What happens to a value.

* ``"gone"``: nothing refers to it after the statement
* ``"changed"``: likewise, but the statement changes it in place
* ``"returned"``: the function returns it or a part of it
* ``"returned in another"``: the function returns a container that has it
* ``"kept"``: something may still refer to it
"""
_Step: TypeAlias = Fate | Literal["part", "part in another"]
"""What happens to a value in the node around it.

It is a ``"part"`` where the value of that node may refer to it, and a ``"part in another"`` where
the value of that node is a container that has it.
"""
_HeldBy: TypeAlias = Literal["nothing", "sequence", "other"]
"""What was written around a value: nothing, lists and tuples only, or other containers too."""

_ARGUMENTS_BEFORE_OUT: Final = 3
"""So many positional arguments have the methods of ufuncs before ``out``."""
_CALLS_FOLLOWED: Final = 6
"""So many functions inside one another an argument is followed into: a function may call itself."""
_HARMLESS_BLOCKS: Final = frozenset(
    {
        *("autocast", "catch_warnings", "dispose_scope", "enable_grad", "errstate", "inference_mode", "no_grad"),
        *("printoptions", "set_grad_enabled"),
    }
)
"""Context managers that suppress no exception: code behind their block runs after all of it."""
_KEEP_EXCEPTIONS: Final = frozenset({"assertRaises", "assertRaisesRegex", "raises"})
"""Context managers that catch an exception and keep it."""
_HANDLED: Final = frozenset({"exc_info", "exception"})
"""Functions of ``sys`` that return the exception which is handled."""
_NAMES_OF_STATEMENTS: Final[Mapping[type, str]] = {
    ast.For: "loop",
    ast.AsyncFor: "loop",
    ast.While: "loop",
    ast.If: "if statement",
    ast.Match: "match statement",
    ast.With: "with block",
    ast.AsyncWith: "with block",
    ast.Try: "try statement",
    ast.TryStar: "try statement",
}
"""What advice calls compound statements."""
_WITH_BODY: Final = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)
_SIMPLE: Final = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
_WITHOUT_CALLS: Final = (*_SIMPLE, ast.Delete, ast.If, ast.Pass, ast.While, ast.keyword)
"""Statements that call nothing by themselves, but for operators such as ``+=``."""
_WITHOUT_OPERATION: Final = (ast.Constant, ast.List, ast.Name, ast.Slice, ast.Tuple)
"""Expressions that compute nothing."""
_DISPLAYS: Final = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred)


class EndOfUse(NamedTuple):
    """Where a variable is not used any more.

    Attributes
    ----------
    called : str
        What the statement with the last use is called; ``""`` for one without a block.
    begin : int
        The first line of the statement that binds the variable, or of the block with it.
    end : int
        The last line of the statement with the last use.
    until : int
        Up to this line nothing catches an exception, which may pass what is written behind `end`.
    """

    called: str
    begin: int
    end: int
    until: int


@final
class Sources:
    """The sources of the code in a recording, and which frames were recorded inside which others.

    The keys are ids of code objects: their hash is that of all their contents, and slow.

    Parameters
    ----------
    frames : sequence of tuple of (code, int)
        The frames of births, innermost first.
    times : sequence of int
        How many births had each of the frames.
    """

    def __init__(self, frames: Sequence[tuple[Mark, ...]], times: Sequence[int]) -> None:
        self._sources: dict[int, Source] = {}
        # By the name of the file. A parsed file takes many times the bytes of its text.
        self._files: dict[str, File | None] = {}
        # For each instruction, the frames inside it at each birth.
        self._inside: dict[tuple[int, int], list[tuple[Mark, ...]]] = {}
        # What becomes of the value of a parameter: by the code, the name, how deep the functions
        # nest, and what is around the value.
        self.fates: dict[tuple[int, str, int, _HeldBy], Fate] = {}
        # How many births were at each instruction, and with each of the frames inside it.
        self._births_at: Counter[tuple[int, int]] = Counter()
        self._births_inside: dict[tuple[int, int], list[int]] = {}
        self._times: dict[tuple[int, int], int] = {}
        for marks, count in zip(frames, times, strict=True):
            for number, (code, offset) in enumerate(marks):
                place = id(code), offset
                if number:
                    self._inside.setdefault(place, []).append(marks[:number])
                    self._births_inside.setdefault(place, []).append(count)
                else:
                    self._births_at[place] += count

    def of(self, code: CodeType) -> Source:
        """Return the source of a code object; without a file where that cannot be read."""
        source = self._sources.get(id(code))
        if source is None:
            name = code.co_filename
            if name not in self._files:
                self._files[name] = file_of(code)
            self._sources[id(code)] = source = Source(code, self._files[name], self)
        return source

    def inside(self, code: CodeType, offset: int) -> list[tuple[Mark, ...]]:
        """Return the frames inside an instruction, innermost first, for each birth there."""
        return self._inside.get((id(code), offset), [])

    def is_born_at(self, code: CodeType, offset: int) -> bool:
        """Return whether memory was born at an instruction, without other Python code between."""
        return (id(code), offset) in self._births_at

    def times_at(self, code: CodeType, offset: int) -> int:
        """Return how often an instruction ran so that memory was born at it, or inside it.

        Births of one run count once if they were inside the same function and not at one place.
        """
        place = id(code), offset
        times = self._times.get(place)
        if times is None:
            # For each function called there, how many births there were on each way inside it.
            ways: dict[int, Counter[tuple[tuple[int, int], ...]]] = {}
            for marks, count in zip(self.inside(code, offset), self._births_inside.get(place, []), strict=True):
                way = tuple((id(each), inner) for each, inner in marks)
                ways.setdefault(id(_function_called(marks)[0]), Counter())[way] += count
            times = self._births_at[place] + sum(max(each.values()) for each in ways.values())
            self._times[place] = times
        return times


@final
class Source:
    """The source of a code object."""

    def __init__(self, code: CodeType, file: File | None, sources: Sources) -> None:
        self.code = code
        self.file = file
        self._sources = sources
        self._positions: list[Position] = list(code.co_positions())
        self._function = None if file is None else file.function(code)
        # Whether each handler keeps its exception, by how deep the functions nest.
        self._keeping: dict[tuple[ast.ExceptHandler, int], bool] = {}
        self._values = Values(code, file, self._function, partial(sources.is_born_at, code))

    def node(self, offset: int) -> ast.expr | None:
        """Return the expression that an instruction belongs to."""
        number = offset // 2
        if self.file is None or not 0 <= number < len(self._positions):
            return None
        return self.file.expressions.get(self._positions[number])

    def target_of(self, offset: int) -> ast.expr | None:
        """Return what the value that `offset` makes is assigned to, perhaps after operators."""
        statement = self._around_operators(offset)
        return statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None

    def returns_result_of(self, offset: int) -> bool:
        """Return whether the value that `offset` makes is returned, perhaps after operators."""
        return isinstance(self._around_operators(offset), ast.Return)

    def _around_operators(self, offset: int) -> ast.AST | None:
        """Return the node around the value that an instruction makes, and operators around that.

        NumPy writes the result of ``x * 2 + 1`` over that of ``x * 2``, if that is large: then the
        memory of the result was born at ``x * 2``.
        """
        node = self.node(offset)
        parent = None if self.file is None or node is None else self.file.parents.get(node)
        while self.file is not None and isinstance(parent, (ast.BinOp, ast.UnaryOp)):
            parent = self.file.parents.get(parent)
        return parent

    # ------------------------------------------------------------------ whose memory a value has

    def makes_new(self, offset: int, inside: tuple[Mark, ...]) -> bool:
        """Return whether an instruction made an array or tensor that nothing else refers to.

        Parameters
        ----------
        offset : int
            The instruction of the birth.
        inside : tuple of (code, int)
            The frames of the birth inside that instruction.
        """
        node = self.node(offset)
        if not all(is_library_code(code) for code, _ in inside):
            return False
        if not isinstance(node, ast.Call):
            return not inside and isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript))
        function = self._values.meant_by(node.func)
        if inside and plain_module_call(inside[-1][0]) == "calls":
            return True
        if function is not None and not is_library_function(function) and not isinstance(function, np.ufunc):
            return False
        if isinstance(function, np.ufunc):
            return not has_option(node) and len(node.args) <= function.nin
        name = name_of(node)
        is_method = isinstance(node.func, ast.Attribute) and function is None
        if name in VIEWS:
            # Memory was born there, so it is no view but a copy.
            return not has_option(node)
        if is_method and name in RANDOM:
            return not has_option(node)
        return makes_new(name, node, is_method=is_method) or (is_method and makes_new(name, node, is_method=False))

    def calls_directly(self, offset: int, inner: CodeType) -> bool:
        """Return whether an instruction calls a function by its name, or reads it as a property.

        False where the function has another decorator: ``lru_cache`` keeps what it returns.
        """
        node, function = self.node(offset), self._sources.of(inner)._function
        if not isinstance(function, FUNCTIONS):
            return False
        decorators = [getattr(each, "id", "") for each in getattr(function, "decorator_list", ())]
        if isinstance(node, ast.Attribute):
            return decorators == ["property"] and node.attr == inner.co_name
        is_plain = set(decorators) <= {"staticmethod", "classmethod"}
        if not is_plain or not isinstance(node, ast.Call) or name_of(node) != inner.co_name:
            return False
        # The name may stand for something else around the function, such as a cache.
        meant = self._values.meant_by(node.func)
        if meant is None:
            return self._is_bound_by_def(node.func)
        return getattr(getattr(meant, "__func__", meant), "__code__", None) is inner

    def _is_bound_by_def(self, called: ast.expr) -> bool:
        """Return whether only a ``def`` binds a name or an attribute that is called."""
        if self.file is None:
            return False
        if isinstance(called, ast.Attribute):
            return not self.file.has_attribute_stored(called.attr)
        if not isinstance(called, ast.Name) or called.id in self.code.co_varnames[: argument_count(self.code)]:
            return False
        return all(isinstance(each.ctx, ast.Load) for each in self.file.names(called.id, self.file.tree))

    # ------------------------------------------------------------------ what becomes of a value

    def fates_at(self, name: str, offset: int) -> set[Fate]:
        """Return what happens to the value of a variable that an instruction loads.

        Where the position of the instruction is not that of the variable, the fates of all loads of
        the variable in the statement are returned.
        """
        return {self.fate_of(each, 0) for each in self._loads_at(name, offset)} or {"kept"}

    def _loads_at(self, name: str, offset: int) -> list[ast.Name]:
        """Return the nodes that an instruction which loads a variable may be of."""
        node = self.node(offset)
        if isinstance(node, ast.Name) and node.id == name:
            return [node]
        if self.file is None or self._function is None:
            return []
        line = self._positions[offset // 2][0] or 0
        return [
            each
            for each in self.file.names(name, self._function)
            if isinstance(each.ctx, ast.Load) and _covers(self.file.statement(each), line)
        ]

    def last_line_of_use(self, name: str, load: int, bound: int) -> int:
        """Return the last line on which a load of a variable may run before it is bound again.

        It is the last line of the loops around the load. A loop that binds the variable too does
        not count: in each of its turns the variable has another value.

        Parameters
        ----------
        name : str
            The variable.
        load, bound : int
            The offsets of the instructions that load and bind it.
        """
        last = self._positions[load // 2][0] or 0
        binding = self.node(bound)
        if self.file is None or binding is None:
            return last
        around = list(self.file.up(binding))
        for node in self._loads_at(name, load):
            inner: ast.AST = node
            for outer in self.file.up(node):
                if outer in around:
                    break
                is_in_turn = isinstance(outer, LOOPS) and (inner in outer.body or inner is getattr(outer, "test", None))
                if is_in_turn or isinstance(outer, COMPREHENSIONS):
                    last = max(last, _last_line(outer))
                inner = outer
        return last

    def loop_that_hands_on(self, name: str, bound: int) -> ast.stmt | None:
        """Return the loop whose next turn may use the value of a variable that it binds, or None.

        Such as ``for layer in layers: x = layer(x)``. The variable is a parameter, or is bound
        before the loop in the same block. So it is bound behind the loop, however many turns there
        were.

        Parameters
        ----------
        name : str
            The variable.
        bound : int
            The offset of the instruction that binds it in the loop.
        """
        binding = self.node(bound)
        if self.file is None or binding is None:
            return None
        loop: ast.stmt | None = None
        for node in self.file.up(binding):
            if node is self._function:
                break
            if isinstance(node, LOOPS):
                loop = node
            if isinstance(node, ast.stmt) and _is_bound_before(name, node, self.file):
                return loop
        has_parameter = (
            isinstance(self._function, FUNCTIONS) and name in self.code.co_varnames[: argument_count(self.code)]
        )
        return loop if has_parameter else None

    def fate_of(self, value: ast.expr, depth: int, held_by: _HeldBy = "nothing") -> Fate:
        """Return what happens to the value of an expression, or to a view or container of it.

        Parameters
        ----------
        value : expr
            The expression.
        depth : int
            How many functions the value was followed into.
        held_by : {"nothing", "sequence", "other"}
            What is around the value already: the expression may be a container of it.
        """
        file = self.file
        if file is None or depth > _CALLS_FOLLOWED or file.scope(value) is not self._function:
            return "kept"
        node: ast.AST = value
        while True:
            parent = file.parents.get(node)
            if isinstance(parent, (ast.Set, ast.Dict)):
                held_by = "other"
            elif isinstance(parent, _DISPLAYS) and held_by == "nothing":
                held_by = "sequence"
            if isinstance(parent, ast.Attribute) and self._is_called(parent):
                step, parent = self._step_of_method(parent)
                if held_by != "nothing":
                    # The method is the container's.
                    step = "kept"
            elif isinstance(parent, (ast.Call, ast.keyword)):
                call = parent if isinstance(parent, ast.Call) else file.parents[parent]
                argument = node if isinstance(parent, ast.Call) else parent
                step = self._step_in_call(call, argument, depth, held_by) if isinstance(call, ast.Call) else "kept"
                parent = call
            elif isinstance(parent, (ast.BinOp, ast.Compare, ast.AugAssign)):
                step = self._step_of_operator(parent, node, is_inside=held_by != "nothing")
            else:
                step = self._step(parent, node)
            if step == "part in another":
                held_by = "other"
            elif step == "returned" and held_by != "nothing":
                return "returned in another"
            elif step != "part":
                return step
            assert parent is not None
            node = parent

    def _step(self, parent: ast.AST | None, node: ast.AST) -> _Step:
        """Return what happens to a value in the node around it."""
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.UAdd):
            # PyTorch returns the tensor itself.
            return "part"
        if isinstance(parent, (ast.UnaryOp, ast.Expr, ast.FormattedValue, ast.If, ast.While)):
            return "gone"
        if isinstance(parent, ast.Return):
            return "returned"
        if isinstance(parent, ast.Assign):
            return "gone" if all(self._values.is_part_of_array(each) for each in parent.targets) else "kept"
        if isinstance(parent, ast.Subscript):
            if node is parent.value:
                return "part" if isinstance(parent.ctx, ast.Load) else "changed"
            is_made = isinstance(parent.ctx, ast.Load) and self._values.is_born_at(parent)
            return "gone" if is_made or self._values.kind_of(parent.value) is not None else "kept"
        if isinstance(parent, ast.Attribute):
            if isinstance(parent.ctx, ast.Store):
                return "changed"
            return "gone" if parent.attr in FACTS else "part" if parent.attr in VIEWS else "kept"
        if isinstance(parent, (ast.IfExp, ast.Assert)) and node is parent.test:
            return "gone"
        is_part = isinstance(parent, (*_DISPLAYS, ast.BoolOp, ast.IfExp, ast.Slice, ast.JoinedStr))
        return "part" if is_part else "kept"

    def _step_of_operator(
        self, parent: ast.BinOp | ast.Compare | ast.AugAssign, node: ast.AST, *, is_inside: bool
    ) -> _Step:
        if isinstance(parent, ast.AugAssign):
            if node is parent.target:
                return "changed"
            others: list[ast.expr] = [parent.target]
        elif isinstance(parent, ast.BinOp):
            others = [parent.right if node is parent.left else parent.left]
        else:
            if all(isinstance(each, (ast.Is, ast.IsNot)) for each in parent.ops):
                return "gone"
            others = [each for each in (parent.left, *parent.comparators) if each is not node]
        if self._values.is_born_at(parent):
            return "gone"
        # If the value is in a list, the operator may be the list's, which keeps it.
        return "gone" if not is_inside and all(self._values.kind_of(each) is not None for each in others) else "kept"

    def _is_called(self, attribute: ast.Attribute) -> bool:
        assert self.file is not None
        call = self.file.parents.get(attribute)
        return isinstance(call, ast.Call) and call.func is attribute

    def _step_of_method(self, attribute: ast.Attribute) -> tuple[_Step, ast.AST]:
        """Return what happens to a value whose method is called, and the call."""
        assert self.file is not None
        call = self.file.parents[attribute]
        assert isinstance(call, ast.Call)
        if attribute.attr in FACTS or makes_new(attribute.attr, call, is_method=True):
            return "gone", call
        if attribute.attr in CHANGING_METHODS:
            return "changed" if isinstance(self.file.parents.get(call), ast.Expr) else "kept", call
        return "part" if attribute.attr in VIEWS else "kept", call

    def _step_in_call(self, call: ast.Call, argument: ast.AST, depth: int, held_by: _HeldBy) -> _Step:
        """Return what a call does with an argument: "part" where the result may refer to it."""
        assert self.file is not None
        if argument is call.func or any(isinstance(each, ast.Starred) for each in call.args):
            return "kept"
        is_statement = isinstance(self.file.parents.get(call), ast.Expr)
        if isinstance(argument, ast.keyword) and argument.arg in ("out", None):
            return "changed" if argument.arg and is_statement else "kept"
        name, function = name_of(call), self._values.meant_by(call.func)
        if function is not None and getattr(builtins, name, None) is function:
            # ``sum([[x]], [])`` returns a list that has x.
            # ``type("Box", (), {"x": x})`` makes a class.
            is_short = len(call.args) == 1 and not call.keywords
            is_done = name in BUILTINS_THAT_MAKE_NEW and (name not in ("sum", "type") or is_short)
            return "gone" if is_done else "kept"
        if held_by == "other" and not isinstance(function, FunctionType):
            # An array of dicts, for example, refers to them.
            return "kept"
        if isinstance(function, np.ufunc) or isinstance(getattr(function, "__self__", None), np.ufunc):
            return self._step_in_ufunc(call, argument, function, is_statement=is_statement)
        if self._is_in_kept_exception(call, depth):
            return "kept"
        if is_library_function(function):
            name = str(getattr(function, "__name__", name))
            if name in CHANGING_FUNCTIONS and is_statement and call.args:
                return "changed" if argument is call.args[0] else "gone"
            if argument in call.args[2:] and name not in READING_MORE:
                # This argument may be ``out``.
                return "kept"
            return "gone" if makes_new(name, call, is_method=False) else "part" if name in VIEWS else "kept"
        if isinstance(function, FunctionType):
            if role_of(function.__code__) is not Role.USER or not self._is_always(function.__code__, call):
                return "kept"
            parameters = _parameters(function.__code__, call, argument)
            fate = self._fate_of_parameter(function.__code__, parameters[0], depth, held_by) if parameters else "kept"
        elif function is not None and not _is_module_of_torch(function):
            return "kept"
        elif self._values.is_born_at(call) and makes_new(name, call, is_method=False):
            # The module has a local name, as in ``xp = numpy``.
            return "gone"
        else:
            fate = self._fate_inside(call, argument, depth, held_by)
        return "part" if fate == "returned" else "part in another" if fate == "returned in another" else fate

    def _step_in_ufunc(self, call: ast.Call, argument: ast.AST, function: object, *, is_statement: bool) -> _Step:
        if not isinstance(function, np.ufunc):
            # ``np.add.at`` changes its first argument.
            is_at = getattr(function, "__name__", "") == "at"
            if not is_at and len(call.args) > _ARGUMENTS_BEFORE_OUT:
                return "kept"
            return "gone" if not is_at else "changed" if is_statement else "kept"
        if len(call.args) > function.nin:
            return "kept"
        others = [each for each in call.args if each is not argument]
        is_known = self._values.is_born_at(call) or all(self._values.kind_of(each) is not None for each in others)
        return "gone" if is_known else "kept"

    def _fate_inside(self, call: ast.Call, argument: ast.AST, depth: int, held_by: _HeldBy) -> Fate:
        """Return what a call does with an argument, by the functions recorded inside it."""
        is_same = self._is_always_the_same(call.func)
        fates: set[Fate] = set()
        for marks in self._inside(call):
            code, is_module = _function_called(marks)
            if code is None or not (is_same or (is_module and self._is_given(call.func))):
                # Several functions may be called there. Those that make no memory are not recorded.
                return "kept"
            if is_module and not self._makes_memory_each_time(call):
                # An instance of this class may have `torch.nn.Identity` there, another has not.
                return "kept"
            if role_of(code) is not Role.USER:
                fates.add("gone")
                continue
            is_bound = code.co_varnames[:1] in (("self",), ("cls",))
            if not is_bound and (is_module or isinstance(call.func, ast.Attribute)):
                return "kept"
            # A `partial`, or a method, has other arguments in front of those of the call.
            parameters = _parameters(code, call, argument, is_bound=is_bound)
            if not parameters:
                return "kept"
            fates.update(
                self._fate_of_parameter(code, each, depth, held_by) for each in parameters[: 1 if is_module else None]
            )
        return _worst(fates)

    def _makes_memory_each_time(self, call: ast.Call) -> bool:
        """Return whether memory was born in a call as often as in the statements beside it."""
        assert self.file is not None
        times = self._times_of(call)
        return all(self._times_of(each) <= times for each in self._results_beside(call))

    def _times_of(self, node: ast.expr) -> int:
        return sum(self._sources.times_at(self.code, offset) for offset in self._values.offsets_of(node))

    def _results_beside(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yield the operators and calls with one result in the block that a call is in."""
        assert self.file is not None
        statement = self.file.statement(call)
        around = None if statement is None else self.file.parents.get(statement)
        fields = () if around is None else ast.iter_fields(around)
        blocks = [cast("list[ast.AST]", block) for _, block in fields if isinstance(block, list)]
        for beside in next((block for block in blocks if statement in block), ()):
            for node in ast.walk(beside) if isinstance(beside, _SIMPLE) else ():
                parent = self.file.parents.get(node)
                is_one = isinstance(parent, (ast.BinOp, ast.Call, ast.Return)) or (
                    isinstance(parent, ast.Assign) and all(isinstance(each, ast.Name) for each in parent.targets)
                )
                if is_one and isinstance(node, (ast.BinOp, ast.Call)) and self.file.scope(node) is self._function:
                    yield node

    def _inside(self, call: ast.expr) -> list[tuple[Mark, ...]]:
        """Return the frames inside a call, innermost first, for each birth there."""
        return [marks for offset in self._values.offsets_of(call) for marks in self._sources.inside(self.code, offset)]

    def _is_always(self, code: CodeType, call: ast.Call) -> bool:
        """Return whether a call runs some code each time, although its name may be bound anew."""
        return self._is_always_the_same(call.func) and all(marks[-1][0] is code for marks in self._inside(call))

    def _is_always_the_same(self, expression: ast.expr, *, is_called: bool = True) -> bool:
        """Return whether a name that is called stands for the same object each time.

        A method of an argument, or of a variable of a function around this one, counts as the same:
        objects of several classes are rarely given.
        """
        if self.file is None or self._function is None:
            return False
        if isinstance(expression, ast.Attribute):
            is_stored = self.file.has_attribute_stored(expression.attr)
            return not is_stored and self._is_always_the_same(expression.value, is_called=False)
        if not isinstance(expression, ast.Name):
            return False
        name = expression.id
        stores = [each for each in self.file.names(name, self._function) if isinstance(each.ctx, ast.Store)]
        if name in self.code.co_varnames[: argument_count(self.code)] or name in self.code.co_freevars:
            # Whoever calls this function, or makes it, may give another object each time.
            return not is_called and not stores
        if not stores:
            return not self.file.is_bound_anew(name)
        parent = self.file.parents.get(stores[0])
        if len(stores) > 1 or not isinstance(parent, ast.Assign) or parent.targets != stores:
            return False
        # Another name of what is always the same, or an object that is made there.
        value = parent.value
        if isinstance(value, ast.Call):
            return not is_called or self._values.meant_by(value.func) is partial
        return self._is_always_the_same(value)

    def _is_given(self, expression: ast.expr) -> bool:
        """Return whether a name that is called is an argument, or an attribute of one."""
        while isinstance(expression, ast.Attribute):
            expression = expression.value
        if not isinstance(expression, ast.Name) or self.file is None or self._function is None:
            return False
        return all(isinstance(each.ctx, ast.Load) for each in self.file.names(expression.id, self._function))

    def _is_in_kept_exception(self, call: ast.Call, depth: int) -> bool:
        """Return whether an exception from a call may be kept: its traceback holds frames."""
        assert self.file is not None
        inside: ast.AST = call
        for node in self.file.up(call):
            if node is self._function:
                break
            if isinstance(node, (ast.With, ast.AsyncWith)) and inside in node.body:
                made = [call for item in node.items for call in self._calls_that_make(item.context_expr)]
                if not _KEEP_EXCEPTIONS.isdisjoint(name_of(each) for each in made):
                    return True
            handlers = node.handlers if isinstance(node, (ast.Try, ast.TryStar)) and inside in node.body else []
            if any(self._keeps_exception(each, depth) for each in handlers):
                return True
            inside = node
        return False

    def _calls_that_make(self, value: ast.expr) -> list[ast.Call]:
        """Return the calls that a value may be the result of: for a name, those it is bound to."""
        assert self.file is not None
        parents = (
            [self.file.parents[each] for each in self.file.names(value.id, self.file.tree)]
            if isinstance(value, ast.Name)
            else []
        )
        values = [value, *(each.value for each in parents if isinstance(each, ast.Assign))]
        return [each for each in values if isinstance(each, ast.Call)]

    def _keeps_exception(self, handler: ast.ExceptHandler, depth: int) -> bool:
        """Return whether a handler hands its exception on, other than by ``raise``."""
        known = self._keeping.get((handler, depth))
        if known is None:
            self._keeping[handler, depth] = known = self._hands_on(handler, depth)
        return known

    def _hands_on(self, handler: ast.ExceptHandler, depth: int) -> bool:
        if self.file is None:
            return False
        named = [each for each in ast.walk(handler) if isinstance(each, ast.Attribute) and each.attr in _HANDLED]
        if any(isinstance(each.value, ast.Name) and each.value.id == "sys" for each in named):
            return True
        if handler.name is None:
            return False
        loads = [each for each in self.file.names(handler.name, handler) if isinstance(each.ctx, ast.Load)]
        return any(
            not isinstance(self.file.parents[each], ast.Raise) and self.fate_of(each, depth + 1) != "gone"
            for each in loads
        )

    def _fate_of_parameter(self, code: CodeType, name: str, depth: int, held_by: _HeldBy) -> Fate:
        """Return what a function in Python does with the value of a parameter."""
        key = id(code), name, depth, held_by
        fate = self._sources.fates.get(key)
        if fate is None:
            self._sources.fates[key] = fate = self._followed(code, name, depth, held_by)
        return fate

    def _followed(self, code: CodeType, name: str, depth: int, held_by: _HeldBy) -> Fate:
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return "kept"
        inner = self._sources.of(code)
        if inner.file is None or inner._function is None or inner.file.reads_by_text(inner._function):
            return "kept"
        handlers = [each for each in ast.walk(inner._function) if isinstance(each, ast.ExceptHandler)]
        if any(inner._keeps_exception(each, depth + 1) for each in handlers):
            # The traceback holds the frame, and that the parameter.
            return "kept"
        loads = inner.file.names(name, inner._function)
        used = [each for each in loads if isinstance(each.ctx, ast.Load)]
        fates: set[Fate] = {inner.fate_of(each, depth + 1, held_by) for each in used}
        if any(isinstance(inner.file.parents.get(each), ast.AugAssign) for each in loads):
            fates.add("changed")
        return _worst(fates) if fates else "gone"

    # ------------------------------------------------------------------ where a change can be made

    def is_variable_of_its_own(self, name: str) -> bool:
        """Return whether only this code can read a variable, and only by its name."""
        file, function = self.file, self._function
        if file is None or function is None or file.reads_by_text(function):
            return False
        if file.is_named_in_text(name, function) or name in file.bound_otherwise(function):
            return False
        if function is file.tree and globals_of_file(self.code.co_filename).get("__name__") != "__main__":
            # Other modules may read a global variable of an imported module.
            return False
        return all(
            file.scope(each) is function for each in file.names(name, file.tree if function is file.tree else function)
        )

    def end_of_use(self, name: str, bound: int, line: int, loop: ast.stmt | None = None) -> EndOfUse | None:
        """Return behind which statement a variable can be deleted; None if behind none.

        It is the statement with the last use that is in the same block as the statement which binds
        the variable, or in a block around that: there the variable is bound on every path.

        Parameters
        ----------
        name : str
            The variable.
        bound : int
            The offset of the instruction that binds it.
        line : int
            The line of the last use.
        loop : stmt, optional
            The loop that hands the value on to its next turn: see `loop_that_hands_on`. The
            variable can be deleted behind it.
        """
        binding = self.node(bound)
        statement = None if self.file is None or binding is None else self.file.statement(binding)
        if self.file is None or self._function is None or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            return None
        if any(isinstance(each.ctx, ast.Del) for each in self.file.names(name, self._function)):
            return None
        header = self.file.parents[statement]
        if isinstance(header, ast.stmt) and header.lineno == statement.lineno:
            # A block on the line of its header, such as ``if c: x = f()``: no line follows in it.
            return None
        around: ast.stmt = statement if loop is None else loop
        while True:
            parent = self.file.parents[around]
            passed: list[ast.stmt] = []
            for each in _from(around, parent):
                passed.append(each)
                end: int = each.end_lineno or each.lineno
                if each.lineno <= line <= end:
                    if any(_leaves_a_loop(inner, self.file) for inner in passed):
                        return None
                    called = _NAMES_OF_STATEMENTS.get(type(each), "")
                    return EndOfUse(called, around.lineno, end, self._end_of_what_catches(each))
            if not isinstance(parent, ast.With) or not all(_is_harmless(item) for item in parent.items):
                return None
            around = parent

    def _end_of_what_catches(self, statement: ast.stmt) -> int:
        """Return the last line of the innermost block around a statement that may catch exceptions.

        Without such a block, a line that no file has.
        """
        assert self.file is not None
        inside: ast.AST = statement
        for node in self.file.up(statement):
            if node is self._function:
                break
            catches = isinstance(node, (ast.Try, ast.TryStar)) and bool(node.handlers)
            if isinstance(node, (ast.With, ast.AsyncWith)):
                catches = not all(_is_harmless(item) for item in node.items)
            if catches and isinstance(node, _WITH_BODY) and inside in node.body:
                return node.body[-1].end_lineno or node.body[-1].lineno
            inside = node
        return sys.maxsize

    def can_recompute(self, name: str, bound: int, line: int) -> bool:
        """Return whether the value of a variable can be computed a second time, before a line.

        It can where one operation makes it from numbers, and from arrays that only this function
        refers to and nothing changes.
        """
        binding = self.node(bound)
        statement = None if self.file is None or binding is None else self.file.statement(binding)
        if not isinstance(statement, ast.Assign) or not self._is_only_read(name) or self.file is None:
            return False
        blocks = [each for each in self.file.up(statement) if isinstance(each, (ast.With, ast.AsyncWith))]
        if any(line > (each.end_lineno or each.lineno) for each in blocks):
            # Outside of the block it may be another value: ``autocast`` says which dtype it has.
            return False
        # What may run between the two computations.
        lines = range((statement.end_lineno or statement.lineno) + 1, line + 1)
        value = statement.value
        operands: list[ast.expr]
        is_creating = False
        if isinstance(value, ast.BinOp):
            operands = [value.left, value.right]
        elif isinstance(value, ast.Call):
            function = self._values.meant_by(value.func)
            function_name = str(getattr(function, "__name__", ""))
            is_creating = is_library_function(function) and function_name in CREATING and function_name != "empty"
            is_pure = is_creating or (isinstance(function, np.ufunc) and function.signature is None)
            types = [each.value for each in value.keywords if each.arg == "dtype"]
            is_same = self._is_always_the_same(value.func) and all(is_number_type(each) for each in types)
            # ``torch.set_default_dtype`` changes what PyTorch makes.
            is_same = is_same and (vars(np).get(function_name) is function or self._change_nothing(lines))
            if not is_pure or has_option(value) or not is_same:
                return False
            operands = [*value.args, *(each.value for each in value.keywords if each.arg != "dtype")]
        else:
            return False
        return all(self._is_constant(each, lines, is_creating=is_creating) for each in operands)

    def _is_constant(self, value: ast.expr, lines: range, *, is_creating: bool) -> bool:
        """Return whether an operand is a number, or an array, that is the same behind some lines.

        An argument of the function is taken for one only if the operation makes an array from
        numbers, as `is_creating` says.
        """
        if isinstance(value, (ast.Tuple, ast.List)) and is_creating:
            return all(self._is_constant(each, lines, is_creating=True) for each in value.elts)
        if isinstance(value, ast.Constant):
            return True
        # An attribute of a class, a module or an object may be set from anywhere.
        if not isinstance(value, ast.Name) or self.file is None:
            return False
        stores = [each for each in self.file.names(value.id, self.file.tree) if isinstance(each.ctx, ast.Store)]
        if any(each.lineno in lines for each in stores):
            return False
        if value.id in self.code.co_varnames[: argument_count(self.code)]:
            # The caller may have other names of its array.
            return is_creating and self._is_only_read(value.id) and self._change_nothing(lines)
        if value.id in self.code.co_varnames:
            return self._is_only_read(value.id) and self._has_memory_of_its_own(value.id)
        if value.id in (*self.code.co_freevars, *self.code.co_cellvars):
            return False
        if len(stores) != 1 or self.file.is_rebound_by_functions(value.id) or not self._change_nothing(lines):
            return False
        return type(globals_of_file(self.code.co_filename).get(value.id)) in (int, float, complex, bool)

    def _has_memory_of_its_own(self, name: str) -> bool:
        """Return whether a variable that is bound once has a number, or memory made for it."""
        assert self.file is not None
        assert self._function is not None
        [store] = [each for each in self.file.names(name, self._function) if isinstance(each.ctx, ast.Store)]
        assignment, kind = self.file.parents[store], self._values.kind_of(store)
        if kind == NUMBER:
            return True
        if kind is None or not isinstance(assignment, ast.Assign) or len(assignment.targets) > 1:
            return False
        value = assignment.value
        # Where no memory is born it may be an operand itself, as with `numpy.round` once.
        is_made = kind.ndim == 0 or self._values.is_born_at(value) or self._is_born_in_library(value)
        return is_made and not isinstance(value, ast.Name) and self._is_fresh(value)

    def _is_born_in_library(self, value: ast.expr) -> bool:
        """Return whether memory was born in a call, and only in functions of NumPy and PyTorch."""
        marks = self._inside(value)
        return bool(marks) and all(is_library_code(code) for each in marks for code, _ in each)

    def _change_nothing(self, lines: range) -> bool:
        """Return whether some lines of this function leave all memory as it is, and all globals.

        They may make arrays and numbers, and change those that the function has made.
        """
        assert self._function is not None
        nodes = [each for each in ast.walk(self._function) if getattr(each, "lineno", 0) in lines]
        return all(self._changes_nothing(each) for each in nodes)

    def _changes_nothing(self, node: ast.AST) -> bool:
        """Return whether a node runs no code of the program's, and changes nothing."""
        if isinstance(node, ast.AugAssign):
            return self._values.kind_of(node.target) is not None and self._is_fresh(node.target)
        if isinstance(node, ast.For):
            return is_range(node.iter)
        if not isinstance(node, ast.Name) and not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        if isinstance(node, ast.Attribute) and (self._is_called(node) or self._values.meant_by(node) is not None):
            return True
        if isinstance(node, ast.expr) and not isinstance(node, _WITHOUT_OPERATION):
            return self._values.kind_of(node) is not None or is_range(node)
        return isinstance(node, (*_WITHOUT_OPERATION, *_WITHOUT_CALLS))

    def _is_only_read(self, name: str) -> bool:
        """Return whether a variable is bound once in this function, and its value only read."""
        if self.file is None or self._function is None or not self.is_variable_of_its_own(name):
            return False
        names = self.file.names(name, self._function)
        stores = [each for each in names if not isinstance(each.ctx, ast.Load)]
        is_argument = name in self.code.co_varnames[: argument_count(self.code)]
        if len(stores) != (not is_argument) or any(
            not isinstance(self.file.parents[each], ast.Assign) for each in stores
        ):
            return False
        return all(self.fate_of(each, 0) == "gone" for each in names if isinstance(each.ctx, ast.Load))

    def operands_for_result(self, offset: int) -> list[ast.expr]:
        """Return the operands into whose memory an elementwise operation could write its result.

        They have inexact numbers, so that the result has such numbers too, and no other operand has
        more dimensions.
        """
        node = self.node(offset)
        operands: list[ast.expr]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operands = [node.operand]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Call) and not node.keywords and not has_option(node):
            function = self._values.meant_by(node.func)
            is_known = isinstance(function, np.ufunc) or is_library_function(function)
            if not is_known or getattr(function, "__name__", "") not in {*INEXACT, "divide"}:
                return []
            if isinstance(function, np.ufunc) and len(node.args) > function.nin:
                return []
            operands = list(node.args)
        else:
            return []
        kinds = [self._values.kind_of(each) for each in operands]
        if any(kind is None or kind.numbers in ("any", "unknown") for kind in kinds):
            return []
        return [
            each
            for each, kind in zip(operands, kinds, strict=True)
            if kind is not None
            and kind.numbers == "inexact"
            and kind.ndim != 0
            and self._is_fresh(each)
            and all(other is each or _fits(beside, kind) for other, beside in zip(operands, kinds, strict=True))
            and not self._is_read_beside(each, node, operands)
        ]

    def _is_read_beside(self, operand: ast.expr, node: ast.expr, operands: list[ast.expr]) -> bool:
        """Return whether a statement reads an operand also outside an operation, or through a view.

        Working in place, ``a + a.T`` would read what it has overwritten; ``a / a.max()`` has read
        all of ``a`` before.
        """
        if not isinstance(operand, ast.Name) or self.file is None:
            return False
        others = [each for each in operands if not _is_name(each, operand.id)]
        if any(_count(operand.id, each) and not self._is_fresh(each) for each in others):
            return True
        statement = self.file.statement(node)
        return statement is None or _count(operand.id, statement) != _count(operand.id, node)

    def _is_fresh(self, operand: ast.expr) -> bool:
        """Return whether an operand has memory of its own, as far as its expression says.

        It is a variable that is bound to no other variable or view, or the result of an operation.
        """
        if isinstance(operand, ast.Name) and self.file is not None and self._function is not None:
            parents = [self.file.parents[each] for each in self.file.names(operand.id, self._function)]
            values = [each.value for each in parents if isinstance(each, (ast.Assign, ast.AnnAssign))]
            return all(not isinstance(each, ast.Name) and each is not None and self._is_fresh(each) for each in values)
        if isinstance(operand, ast.Call):
            # ``float(x)`` is a number of Python's, ``x.float()`` may be `x`.
            is_builtin = isinstance(operand.func, ast.Name) and hasattr(builtins, operand.func.id)
            return is_builtin or name_of(operand) not in VIEWS
        # PyTorch returns the tensor itself for ``+x``.
        is_itself = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.UAdd)
        return isinstance(operand, (ast.BinOp, ast.UnaryOp, ast.Constant)) and not is_itself

    def end_line(self, offset: int) -> int:
        """Return the last line of the statement of an instruction; 0 if it is not known."""
        node = self.node(offset)
        statement = None if node is None or self.file is None else self.file.statement(node)
        return 0 if statement is None else statement.end_lineno or statement.lineno


def _blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            # Handlers and cases are no statements, but have lines as these do.
            yield cast("list[ast.stmt]", block)


def _from(statement: ast.stmt, parent: ast.AST) -> list[ast.stmt]:
    """Return a statement and those that follow it in its block."""
    for block in _blocks_of(parent):
        if statement in block:
            return block[block.index(statement) :]
    return []


def _is_bound_before(name: str, statement: ast.stmt, file: File) -> bool:
    """Return whether an assignment before a statement, in its block, binds a variable anew.

    Not one that uses the value which the variable had, such as ``x = x + 1.0``.
    """
    for block in _blocks_of(file.parents[statement]):
        if statement in block:
            assignments = [each for each in block[: block.index(statement)] if isinstance(each, ast.Assign)]
            named = [file.names(name, each) for each in assignments]
            return any(nodes and all(isinstance(node.ctx, ast.Store) for node in nodes) for nodes in named)
    return False


def _is_harmless(item: ast.withitem) -> bool:
    return isinstance(item.context_expr, ast.Call) and name_of(item.context_expr) in _HARMLESS_BLOCKS


def _leaves_a_loop(statement: ast.stmt, file: File) -> bool:
    """Return whether a statement has a ``continue`` or ``break`` of a loop around it."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Continue, ast.Break)):
            loop = next((each for each in file.up(node) if isinstance(each, LOOPS)), None)
            if loop is None or not any(each is statement for each in file.up(loop)):
                return True
    return False


def _last_line(repeated: ast.AST) -> int:
    """Return the last line of what a loop or a comprehension repeats."""
    body = repeated.body[-1] if isinstance(repeated, LOOPS) else cast("ast.expr", repeated)
    return body.end_lineno or body.lineno


def _covers(statement: ast.stmt | None, line: int) -> bool:
    return statement is not None and statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _parameters(code: CodeType, call: ast.Call, argument: ast.AST, *, is_bound: bool = False) -> tuple[str, ...]:
    """Return the parameter that an argument of a call is for, and those after it by position.

    Empty where the code has no such parameter, or one with ``*`` or ``**`` takes the argument.
    """
    if isinstance(argument, ast.keyword):
        names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
        return (argument.arg,) if argument.arg in names else ()
    number = call.args.index(argument) + is_bound  # type: ignore[arg-type]  # it is one of them
    return code.co_varnames[number : code.co_argcount]


def _function_called(marks: tuple[Mark, ...]) -> tuple[CodeType | None, bool]:
    """Return the code that a call runs, and whether it is called as a module of PyTorch.

    PyTorch's code that calls ``forward`` is passed over. The code is None where it is a library's
    and it is not known what it does.
    """
    is_module = False
    for code, _ in reversed(marks):
        if role_of(code) is Role.USER:
            return (code, is_module) if not is_module or code.co_name == "forward" else (None, True)
        does = plain_module_call(code)
        if does != "calls":
            return (code if does == "computes" and is_module else None), is_module
        is_module = True
    return None, is_module


def _worst(fates: set[Fate]) -> Fate:
    """Return the one fate that covers several: without any, a value counts as kept."""
    is_returned = not fates.isdisjoint({"returned", "returned in another"})
    if not fates or "kept" in fates or ("changed" in fates and is_returned):
        return "kept"
    order: tuple[Fate, ...] = ("returned in another", "returned", "changed", "gone")
    return next(each for each in order if each in fates)


def _fits(kind: ValueKind | None, other: ValueKind) -> bool:
    """Return whether an operand has no more dimensions than another operand has."""
    ndim = None if kind is None else kind.ndim
    return ndim == 0 or (ndim is not None and other.ndim is not None and ndim <= other.ndim)


def _is_name(value: ast.AST, name: str) -> bool:
    return isinstance(value, ast.Name) and value.id == name and isinstance(value.ctx, ast.Load)


def _count(name: str, node: ast.AST) -> int:
    return sum(_is_name(each, name) for each in ast.walk(node))


def _is_module_of_torch(thing: object) -> bool:
    cls = thing.type if isinstance(thing, Instance) else type(thing)
    return any(each.__module__ == "torch.nn.modules.module" for each in cls.__mro__)
