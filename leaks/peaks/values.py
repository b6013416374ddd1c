"""Tell from the source, and from recorded births, whether an expression is a number or an array.

An expression of which that cannot be told may be a container, or an object with operators of the
program's own.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, final

import numpy as np

from .files import File, Position, position
from .functions import CREATING, FACTS, INEXACT, VIEWS, has_option, is_library_function, is_number_type, makes_new
from .recording import globals_of_file

__all__ = ["NUMBER", "ValueKind", "Values", "argument_count", "name_of"]

_KNOWN_NAMES: Final[Mapping[str, str]] = {"np": "numpy", "numpy": "numpy", "torch": "torch", "F": "torch.nn.functional"}
"""The modules that these names are taken for where the globals of the file do not have them."""


Numbers: TypeAlias = Literal["python", "inexact", "unknown"]
"""The numbers of a value: exact ones of Python's, floating-point or complex ones, or either."""


class ValueKind(NamedTuple):
    """What is known of a value that is a number, an array or a tensor.

    Attributes
    ----------
    numbers : Numbers
        Its numbers.
    ndim : int or None
        How many dimensions it has: 0 for a number, None where that is not known.
    """

    numbers: Numbers
    ndim: int | None


NUMBER: Final = ValueKind("python", 0)
"""An exact number, or another value of Python's that holds nothing, such as a string."""
UNKNOWN: Final = ValueKind("unknown", None)
"""An array or a tensor of which no more is known."""


@final
class Values:
    """The values of the expressions of a function or a module.

    Parameters
    ----------
    code : CodeType
        The code of the function or module.
    file : File or None
        The file that the code is from.
    function : AST or None
        The node of the function or module in the file.
    is_born : callable
        Called with the offset of an instruction, returns whether memory was born at that
        instruction without other Python code in between.
    """

    def __init__(
        self, code: CodeType, file: File | None, function: ast.AST | None, is_born: Callable[[int], bool]
    ) -> None:
        self.code = code
        self.file = file
        self._function = function
        self._is_born = is_born
        self._offsets: dict[Position, list[int]] = {}
        for number, place in enumerate(code.co_positions()):
            self._offsets.setdefault(place, []).append(2 * number)

    def offsets_of(self, node: ast.expr | ast.stmt) -> list[int]:
        """Return the instructions of a node."""
        return self._offsets.get(position(node), [])

    def meant_by(self, expression: ast.expr) -> object:
        """Return the object that a dotted name stands for; None where that is not known."""
        if isinstance(expression, ast.Attribute):
            whole = self.meant_by(expression.value)
            if isinstance(whole, np.ufunc):
                return getattr(whole, expression.attr, None)
            # From the dict: a module or a class may have a ``__getattr__``.
            return vars(whole).get(expression.attr) if isinstance(whole, (ModuleType, type)) else None
        if not isinstance(expression, ast.Name) or expression.id in self.code.co_varnames:
            return None
        if expression.id in (*self.code.co_freevars, *self.code.co_cellvars):
            return None
        known = globals_of_file(self.code.co_filename).get(expression.id)
        if known is None:
            known = getattr(builtins, expression.id, None)
        return sys.modules.get(_KNOWN_NAMES.get(expression.id, "")) if known is None else known

    def is_born_at(self, node: ast.expr | ast.stmt) -> bool:
        """Return whether memory was born at an operation, without other Python code in between."""
        return any(self._is_born(offset) for offset in self.offsets_of(node))

    def is_part_of_array(self, target: ast.expr) -> bool:
        """Return whether what is assigned to a target is copied into an array."""
        return isinstance(target, ast.Subscript) and self.kind_of(target.value) is not None

    def kind_of(self, value: ast.expr, pending: frozenset[str] = frozenset()) -> ValueKind | None:
        """Return what is known of a value; None where it may be a container or another object.

        Parameters
        ----------
        value : expr
            The expression.
        pending : frozenset of str
            The variables whose values are being looked at: they are not looked at once more.
        """
        if isinstance(value, ast.Constant):
            return ValueKind("inexact", 0) if isinstance(value.value, (float, complex)) else NUMBER
        if isinstance(value, ast.UnaryOp):
            return NUMBER if isinstance(value.op, ast.Not) else self.kind_of(value.operand, pending)
        if isinstance(value, ast.BinOp):
            return self._kind_of_operator(value, pending)
        if isinstance(value, ast.Compare):
            parts = [self.kind_of(each, pending) for each in (value.left, *value.comparators)]
            return UNKNOWN if None not in parts or self.is_born_at(value) else None
        if isinstance(value, ast.Subscript):
            whole = self.kind_of(value.value, pending)
            is_fact = isinstance(value.value, ast.Attribute) and value.value.attr in FACTS
            return None if whole is None else NUMBER if is_fact else ValueKind(whole.numbers, None)
        if isinstance(value, ast.Call):
            return self._kind_of_call(value, pending)
        if isinstance(value, ast.Attribute):
            if value.attr in FACTS:
                return NUMBER
            meant = self.meant_by(value)
            if meant is not None:
                return _kind_of_object(meant)
            whole = self.kind_of(value.value, pending) if value.attr in VIEWS else None
            return None if whole is None else ValueKind(whole.numbers, None)
        return self._kind_of_name(value, pending) if isinstance(value, ast.Name) else None

    def _kind_of_name(self, value: ast.Name, pending: frozenset[str]) -> ValueKind | None:
        """Return what is known of a variable: what holds for everything that it is bound to."""
        if self.file is None or self._function is None or self.file.is_rebound_by_functions(value.id):
            return None
        names = self.file.names(value.id, self._function)
        stores = [each for each in names if not isinstance(each.ctx, ast.Load)]
        if not stores:
            is_global = value.id not in (*self.code.co_varnames, *self.code.co_freevars, *self.code.co_cellvars)
            return _kind_of_object(globals_of_file(self.code.co_filename).get(value.id)) if is_global else None
        if value.id in self.code.co_varnames[: argument_count(self.code)]:
            return None
        kinds: list[ValueKind | None] = []
        for store in stores:
            parent = self.file.parents.get(store)
            if self.file.scope(store) is not self._function:
                return None
            if isinstance(parent, (ast.For, ast.comprehension)) and _is_range(parent.iter):
                kinds.append(NUMBER)
            elif isinstance(parent, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and parent.value is not None:
                # While a variable is None no operator is used on it.
                if not _is_none(parent.value) and not _mentions(parent.value, pending):
                    kinds.append(self.kind_of(parent.value, pending | {value.id}))
            elif not isinstance(parent, ast.Delete):
                return None
        return _joined(kinds) if kinds else None

    def _kind_of_operator(self, value: ast.BinOp, pending: frozenset[str]) -> ValueKind | None:
        kinds = [self.kind_of(value.left, pending), self.kind_of(value.right, pending)]
        if None in kinds:
            return UNKNOWN if self.is_born_at(value) else None
        joined = _combined([each for each in kinds if each is not None])
        if isinstance(value.op, ast.MatMult):
            is_of_matrices = all(each is not None and each.ndim == 2 for each in kinds)
            return ValueKind(joined.numbers, 2 if is_of_matrices else None)
        if joined == NUMBER and isinstance(value.op, ast.Div):
            return ValueKind("inexact", 0)
        return joined

    def _kind_of_call(self, call: ast.Call, pending: frozenset[str]) -> ValueKind | None:
        name, function = name_of(call), self.meant_by(call.func)
        if function is not None and getattr(builtins, name, None) is function:
            if name == "abs" and len(call.args) == 1:
                return self.kind_of(call.args[0], pending)
            return (
                ValueKind("inexact", 0) if name == "float" else NUMBER if name in ("int", "len", "id", "hash") else None
            )
        if isinstance(function, np.ufunc):
            kinds = [self.kind_of(each, pending) for each in call.args]
            if has_option(call) or len(kinds) > function.nin or (None in kinds and not self.is_born_at(call)):
                return None
            is_known = name in INEXACT and None not in kinds and not call.keywords
            return _combined([each for each in kinds if each is not None]) if is_known else UNKNOWN
        if is_library_function(function):
            return (
                self._kind_of_library_call(call, function, pending) if makes_new(name, call, is_method=False) else None
            )
        if function is None and isinstance(call.func, ast.Attribute):
            return self._kind_of_method(call, call.func, pending)
        return None

    def _kind_of_library_call(self, call: ast.Call, function: object, pending: frozenset[str]) -> ValueKind | None:
        name = str(getattr(function, "__name__", ""))
        if name in INEXACT and not call.keywords:
            kinds = [self.kind_of(each, pending) for each in call.args]
            return UNKNOWN if None in kinds else _combined([each for each in kinds if each is not None])
        if self._may_have_objects(name, call, pending):
            return None
        is_inexact = name in ("ones", "zeros", "empty", "eye", "identity", "linspace", "rand", "randn")
        if name in ("full", "arange"):
            kinds = [self.kind_of(each, pending) for each in call.args]
            is_inexact = ValueKind("inexact", 0) in kinds[name == "full" :]
        is_torch = vars(sys.modules.get("torch", builtins)).get(name) is function
        given = list(call.args) if is_torch or name in ("rand", "randn") else call.args[:1]
        types = [*([] if is_torch or name not in ("ones", "zeros", "empty") else call.args[1:2])]
        types += [each.value for each in call.keywords if each.arg == "dtype"]
        if types:
            is_inexact = name in CREATING and all(_is_inexact_type(each) for each in types)
        is_inexact = is_inexact and all(each.arg == "dtype" for each in call.keywords)
        return ValueKind("inexact", self._ndim_of(name, given, pending)) if is_inexact else UNKNOWN

    def _may_have_objects(self, name: str, call: ast.Call, pending: frozenset[str]) -> bool:
        """Return whether an array that a function makes may be one of objects, a container."""
        types = [each.value for each in call.keywords if each.arg == "dtype"]
        types += call.args[1:2] if name in ("ones", "zeros", "empty") and not types else []
        types += call.args[2:3] if name == "full" else []
        if name in CREATING and types:
            # PyTorch has the second number of a shape there.
            return not all(is_number_type(each) or self.kind_of(each, pending) == NUMBER for each in types)
        content = {"array": call.args[:1], "full": call.args[1:2]}.get(name, []) if not types else []
        return any(not self._has_numbers(each, pending) for each in content)

    def _has_numbers(self, value: ast.expr, pending: frozenset[str]) -> bool:
        """Return whether a value, or a list that is written out, has numbers and arrays only."""
        if isinstance(value, (ast.List, ast.Tuple)):
            return all(self._has_numbers(each, pending) for each in value.elts)
        return not _is_none(value) and self.kind_of(value, pending) is not None

    def _ndim_of(self, name: str, shape: list[ast.expr], pending: frozenset[str]) -> int | None:
        if name in ("linspace", "arange"):
            return 1
        if name in ("eye", "identity"):
            return 2
        if len(shape) == 1 and isinstance(shape[0], (ast.Tuple, ast.List)):
            shape = shape[0].elts
        kinds = [self.kind_of(each, pending) for each in shape]
        return len(kinds) if all(each == NUMBER for each in kinds) else None

    def _kind_of_method(self, call: ast.Call, method: ast.Attribute, pending: frozenset[str]) -> ValueKind | None:
        whole = self.kind_of(method.value, pending)
        if whole is None:
            return None
        if method.attr == "astype" and len(call.args) == 1 and _is_inexact_type(call.args[0]):
            return ValueKind("inexact", whole.ndim)
        if method.attr in ("copy", "clone"):
            return whole
        if method.attr in ("mean", "sum", "max", "min", "std", "var", "prod") and not call.args and not call.keywords:
            return ValueKind(whole.numbers, 0)
        if makes_new(method.attr, call, is_method=True):
            return UNKNOWN
        # Not where an argument is of unknown kind: ``x.view(Sub)`` has the operators of a class.
        is_array = method.attr in VIEWS and None not in [self.kind_of(each, pending) for each in call.args]
        return ValueKind(whole.numbers, None) if is_array and method.attr not in ("astype", "to") else None


def argument_count(code: CodeType) -> int:
    """Return how many of the variables of some code are its arguments."""
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _kind_of_object(thing: object) -> ValueKind | None:
    """Return what is known of the value of a global variable."""
    if isinstance(thing, (float, complex)):
        return ValueKind("inexact", 0)
    if type(thing) in (int, bool, str):
        return NUMBER
    if type(thing) is np.ndarray:
        return ValueKind("inexact" if thing.dtype.kind in "fc" else "unknown", thing.ndim)
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and type(thing) in (tensor, getattr(sys.modules["torch"].nn, "Parameter", None)):
        is_inexact = cast("Any", thing).is_floating_point() and not cast("Any", thing).requires_grad
        return ValueKind("inexact" if is_inexact else "unknown", cast("Any", thing).ndim)
    return None


def _combined(kinds: list[ValueKind]) -> ValueKind:
    """Return what is known of the result of an operation on operands of some kinds."""
    numbers = {each.numbers for each in kinds}
    dims = [each.ndim for each in kinds if each.ndim is not None]
    ndim = max(dims) if len(dims) == len(kinds) and dims else None
    if "unknown" in numbers:
        return ValueKind("unknown", ndim)
    return ValueKind("inexact" if "inexact" in numbers else "python", ndim)


def _joined(kinds: list[ValueKind | None]) -> ValueKind | None:
    """Return what is known of a value that has one of several kinds."""
    if None in kinds or not kinds:
        return None
    numbers: set[Numbers] = {each.numbers for each in kinds if each is not None}
    dims = {each.ndim for each in kinds if each is not None}
    return ValueKind(numbers.pop() if len(numbers) == 1 else "unknown", dims.pop() if len(dims) == 1 else None)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_range(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "range"


def _is_inexact_type(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str) and value.value[:1] == "f"
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name in ("float", "float16", "float32", "float64", "half", "single", "double", "complex64", "complex128")


def _mentions(value: ast.expr, names: frozenset[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(value))


def name_of(call: ast.Call) -> str:
    """Return the last name of the function of a call; ``""`` where it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
