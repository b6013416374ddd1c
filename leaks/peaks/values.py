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

from ...scopes.base.sites import globals_of_file
from .files import File, Position, position
from .functions import CREATING, FACTS, INEXACT, VIEWS, has_option, is_library_function, is_number_type, makes_new

__all__ = ["NUMBER", "Instance", "ValueKind", "Values", "argument_count", "is_range", "name_of"]

_KNOWN_NAMES: Final[Mapping[str, str]] = {"np": "numpy", "numpy": "numpy", "torch": "torch", "F": "torch.nn.functional"}
"""The modules that these names are taken for where the globals of the file do not have them."""


_COPYING: Final = frozenset({"copy", "repeat", "tile", "where"})
"""Functions whose results have objects in them if an argument is None."""
_PLACES_OF_TYPES: Final = {
    "ones": 1,
    "zeros": 1,
    "empty": 1,
    "identity": 1,
    "full": 2,
    "arange": 3,
    "eye": 3,
    "linspace": 5,
}
"""Which positional argument of functions of NumPy is the ``dtype``."""
_OF_ANOTHER_TYPE: Final = frozenset({"int", "long", "type_as", "view"})
"""Methods in `VIEWS` whose results may have other numbers."""
_WITHOUT_CODE_OF_THE_PROGRAM: Final = ("builtins", "numpy", "torch")
"""Packages of the types at whose instances an attribute is read: no code of the program runs."""
Numbers: TypeAlias = Literal["python", "inexact", "any", "unknown"]
"""The numbers of a value: exact ones of Python's, floating-point or complex ones, or any.

For ``"unknown"``, an array may be one of objects, which refers to what is put into it.
"""


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


class Instance(NamedTuple):
    """Stands for an object whose attributes may be code of the program's: they are not read.

    Attributes
    ----------
    type : type
        The type of the object.
    """

    type: type


NUMBER: Final = ValueKind("python", 0)
"""An exact number, or another value of Python's that holds nothing, such as a string."""
NUMERIC: Final = ValueKind("any", None)
"""An array or a tensor of numbers of which no more is known."""
UNKNOWN: Final = ValueKind("unknown", None)
"""An array or a tensor, perhaps of objects."""


class _Bound(NamedTuple):
    """What a variable is bound to at one place: a value, or what is known of that."""

    value: ast.expr | ValueKind | None
    names: frozenset[str] = frozenset()
    """The names in the value."""


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
        # What is known of the variables, once it has been asked for.
        self._kinds: dict[str, ValueKind | None] | None = None
        self._offsets: dict[Position, list[int]] = {}
        for number, place in enumerate(code.co_positions()):
            self._offsets.setdefault(place, []).append(2 * number)

    def offsets_of(self, node: ast.expr | ast.stmt) -> list[int]:
        """Return the instructions of a node."""
        return self._offsets.get(position(node), [])

    def meant_by(self, expression: ast.expr) -> object:
        """Return the object that a dotted name stands for; None where that is not known.

        For an object with a type of the program's, or of an unknown package, its `Instance`.
        """
        meant = self._object_meant_by(expression)
        cls = type(meant)
        # A class of the program may have anything there.
        package = str(cls.__module__).partition(".")[0]
        # Functions that Cython has compiled have types of packages that begin with its name.
        is_plain = package in _WITHOUT_CODE_OF_THE_PROGRAM or package.startswith("_cython")
        return meant if is_plain or issubclass(cls, (Instance, ModuleType, type)) else Instance(cls)

    def _object_meant_by(self, expression: ast.expr) -> object:
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
        """Return whether what is assigned to a target is copied into an array of numbers."""
        return isinstance(target, ast.Subscript) and self._is_numeric(target.value)

    def kind_of(self, value: ast.expr) -> ValueKind | None:
        """Return what is known of a value; None where it may be a container or another object."""
        if isinstance(value, ast.Constant):
            return ValueKind("inexact", 0) if isinstance(value.value, (float, complex)) else NUMBER
        if isinstance(value, ast.UnaryOp):
            return NUMBER if isinstance(value.op, ast.Not) else self.kind_of(value.operand)
        if isinstance(value, ast.BinOp):
            return self._kind_of_operator(value)
        if isinstance(value, ast.Compare):
            parts = [self.kind_of(each) for each in (value.left, *value.comparators)]
            return UNKNOWN if None not in parts or self.is_born_at(value) else None
        if isinstance(value, ast.Subscript):
            whole = self.kind_of(value.value)
            is_fact = isinstance(value.value, ast.Attribute) and value.value.attr in FACTS
            return None if whole is None else NUMBER if is_fact else ValueKind(whole.numbers, None)
        if isinstance(value, ast.Call):
            return self._kind_of_call(value)
        if isinstance(value, ast.Attribute):
            if value.attr in FACTS:
                return ValueKind("python", None) if value.attr in ("shape", "strides") else NUMBER
            meant = self.meant_by(value)
            if meant is not None:
                return _kind_of_object(meant)
            whole = self.kind_of(value.value) if value.attr in VIEWS else None
            return None if whole is None else ValueKind(whole.numbers, None)
        return self._kind_of_name(value) if isinstance(value, ast.Name) else None

    def _kind_of_name(self, value: ast.Name) -> ValueKind | None:
        if self.file is None or self._function is None or self.file.is_rebound_by_functions(value.id):
            return None
        if self._kinds is None:
            kinds: dict[str, ValueKind | None] = {}
            self._kinds = kinds
            stores = _stores_in(self._function)
            try:
                self._find_kinds(kinds, stores)
            except RecursionError:
                kinds.update(dict.fromkeys(stores))
        if value.id in self._kinds:
            return self._kinds[value.id]
        is_global = value.id not in (*self.code.co_varnames, *self.code.co_freevars, *self.code.co_cellvars)
        if self.file.is_bound_anew(value.id):
            # It may have been something else when the pass ran.
            return None
        return _kind_of_object(globals_of_file(self.code.co_filename).get(value.id)) if is_global else None

    def _find_kinds(self, kinds: dict[str, ValueKind | None], stores: dict[str, list[ast.Name]]) -> None:
        """Find what is known of the variables: what holds for everything that each is bound to.

        A variable may be bound to what is made of its own value, as in a loop. So this goes on
        until nothing changes. A value waits while it is made of variables without any kind so far.
        """
        assert self.file is not None
        assert self._function is not None
        bound = {name: [each for node in nodes for each in self._bound_at(node)] for name, nodes in stores.items()}
        for name in self.file.bound_otherwise(self._function):
            bound.setdefault(name, []).append(_Bound(None))
        waiting = set(bound)
        is_changed = True
        while is_changed:
            is_changed = False
            for name, values in bound.items():
                found = [self._kind_of_bound(each) for each in values if waiting.isdisjoint(each.names)]
                if name in kinds:
                    found.append(kinds[name])
                if found and (name not in kinds or kinds[name] != _joined(found)):
                    kinds[name] = _joined(found)
                    waiting.discard(name)
                    is_changed = True
            if waiting and not is_changed:
                kinds.update(dict.fromkeys(waiting))
                waiting.clear()
                is_changed = True

    def _bound_at(self, node: ast.Name) -> list[_Bound]:
        """Return what a variable is bound to at a node: nothing where it is deleted or None."""
        assert self.file is not None
        parent = self.file.parents.get(node)
        is_argument = node.id in self.code.co_varnames[: argument_count(self.code)]
        if is_argument or self.file.scope(node) is not self._function:
            return [_Bound(None)]
        if isinstance(parent, (ast.For, ast.comprehension)) and is_range(parent.iter):
            return [_Bound(NUMBER)]
        if isinstance(parent, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and parent.value is not None:
            # While a variable is None no operator is used on it.
            return [] if _is_none(parent.value) else [_Bound(parent.value, _names_in(parent.value))]
        return [] if isinstance(parent, ast.Delete) else [_Bound(None)]

    def _kind_of_bound(self, bound: _Bound) -> ValueKind | None:
        if not isinstance(bound.value, ast.expr):
            return bound.value
        try:
            return self.kind_of(bound.value)
        except RecursionError:
            # A sum of a thousand terms, for example.
            return None

    def _kind_of_operator(self, value: ast.BinOp) -> ValueKind | None:
        kinds = [self.kind_of(value.left), self.kind_of(value.right)]
        if None in kinds:
            return UNKNOWN if self.is_born_at(value) else None
        joined = _combined([each for each in kinds if each is not None])
        if isinstance(value.op, ast.MatMult):
            is_of_matrices = all(each is not None and each.ndim == 2 for each in kinds)
            return ValueKind(joined.numbers, 2 if is_of_matrices else None)
        if joined == NUMBER and isinstance(value.op, ast.Div):
            return ValueKind("inexact", 0)
        return joined

    def _kind_of_call(self, call: ast.Call) -> ValueKind | None:
        name, function = name_of(call), self.meant_by(call.func)
        if function is not None and getattr(builtins, name, None) is function:
            if name == "abs" and len(call.args) == 1:
                return self.kind_of(call.args[0])
            return (
                ValueKind("inexact", 0) if name == "float" else NUMBER if name in ("int", "len", "id", "hash") else None
            )
        if isinstance(function, np.ufunc):
            kinds = [self.kind_of(each) for each in call.args]
            if has_option(call) or len(kinds) > function.nin or (None in kinds and not self.is_born_at(call)):
                return None
            is_known = name in INEXACT and None not in kinds and not call.keywords
            if is_known:
                return _combined([each for each in kinds if each is not None])
            return NUMERIC if all(map(self._is_numeric, call.args)) and not call.keywords else UNKNOWN
        if is_library_function(function):
            return self._kind_of_library_call(call, function) if makes_new(name, call, is_method=False) else None
        if function is None and isinstance(call.func, ast.Attribute):
            return self._kind_of_method(call, call.func)
        return None

    def _kind_of_library_call(self, call: ast.Call, function: object) -> ValueKind | None:
        name = str(getattr(function, "__name__", ""))
        if name in INEXACT and not call.keywords:
            kinds = [self.kind_of(each) for each in call.args]
            return UNKNOWN if None in kinds else _combined([each for each in kinds if each is not None])
        if self._may_have_objects(name, call):
            return None
        is_inexact = name in ("ones", "zeros", "empty", "eye", "identity", "linspace", "rand", "randn")
        if name in ("full", "arange"):
            kinds = [self.kind_of(each) for each in call.args]
            is_inexact = ValueKind("inexact", 0) in kinds[name == "full" :]
        is_torch = vars(sys.modules.get("torch") or builtins).get(name) is function
        given = list(call.args) if is_torch or name in ("rand", "randn") else call.args[:1]
        place = _PLACES_OF_TYPES.get(name)
        types = [] if is_torch or place is None else call.args[place : place + 1]
        types += [each.value for each in call.keywords if each.arg == "dtype"]
        if types:
            is_inexact = name in CREATING and all(_is_inexact_type(each) for each in types)
        is_inexact = is_inexact and all(each.arg == "dtype" for each in call.keywords)
        if is_inexact:
            return ValueKind("inexact", self._ndim_of(name, given))
        content = [*call.args, *(each.value for each in call.keywords if each.arg not in ("axis", "dtype"))]
        is_numeric = (name in CREATING and name != "full") or all(map(self._is_numeric, content))
        is_numeric = all(map(self._is_number_type, types)) if types else is_numeric
        return NUMERIC if is_torch or is_numeric else UNKNOWN

    def _may_have_objects(self, name: str, call: ast.Call) -> bool:
        """Return whether an array that a function makes may be one of objects, a container."""
        types = [each.value for each in call.keywords if each.arg == "dtype"]
        types += call.args[1:2] if name.removesuffix("_like") in ("ones", "zeros", "empty") and not types else []
        types += call.args[2:3] if name == "full" else []
        if name in CREATING and types:
            # PyTorch has the second number of a shape there.
            return not all(self._is_number_type(each) for each in types)
        if name.endswith("_like"):
            is_known = all(self._is_number_type(each) for each in types)
            return not (is_known if types else call.args and self.kind_of(call.args[0]) is not None)
        content = {"array": call.args[:1], "full": call.args[1:2]}.get(name, []) if not types else []
        content += [each.value for each in call.keywords if each.arg == "fill_value"]
        # Such as ``np.repeat(None, 2)``.
        content += [each for each in call.args if _is_none(each)] if name in _COPYING else []
        return any(not self._has_numbers(each) for each in content)

    def _is_number_type(self, value: ast.expr) -> bool:
        """Return whether a value is a ``dtype`` of numbers, perhaps that of another array."""
        if isinstance(value, ast.Attribute) and value.attr == "dtype":
            return self.kind_of(value.value) is not None
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        return is_number_type(value) or (not is_text and self.kind_of(value) == NUMBER)

    def _is_numeric(self, value: ast.expr) -> bool:
        """Return whether a value, or a list that is written out, has numbers and nothing else."""
        if isinstance(value, (ast.List, ast.Tuple)):
            return all(map(self._is_numeric, value.elts))
        kind = None if _is_none(value) else self.kind_of(value)
        return kind is not None and kind.numbers != "unknown"

    def _has_numbers(self, value: ast.expr) -> bool:
        """Return whether a value, or a list that is written out, has numbers and arrays only."""
        if isinstance(value, (ast.List, ast.Tuple)):
            return all(self._has_numbers(each) for each in value.elts)
        return not _is_none(value) and self.kind_of(value) is not None

    def _ndim_of(self, name: str, shape: list[ast.expr]) -> int | None:
        if name in ("linspace", "arange"):
            return 1
        if name in ("eye", "identity"):
            return 2
        if len(shape) == 1 and isinstance(shape[0], (ast.Tuple, ast.List)):
            shape = shape[0].elts
        kinds = [self.kind_of(each) for each in shape]
        return len(kinds) if all(each == NUMBER for each in kinds) else None

    def _kind_of_method(self, call: ast.Call, method: ast.Attribute) -> ValueKind | None:
        whole = self.kind_of(method.value)
        if whole is None:
            return None
        if method.attr == "astype" and len(call.args) == 1 and _is_inexact_type(call.args[0]):
            return ValueKind("inexact", whole.ndim)
        if method.attr in ("copy", "clone"):
            return whole
        if method.attr == "tolist":
            return None
        if method.attr in ("mean", "sum", "max", "min", "std", "var", "prod") and not call.args and not call.keywords:
            return ValueKind(whole.numbers, 0)
        types = [each.value for each in call.keywords if each.arg == "dtype"]
        types += call.args[:1] if method.attr == "astype" else []
        is_numeric = whole.numbers != "unknown" and all(map(self._is_number_type, types))
        if makes_new(method.attr, call, is_method=True):
            return NUMERIC if is_numeric else UNKNOWN
        # Not where an argument is of unknown kind: ``x.view(Sub)`` has the operators of a class.
        is_array = method.attr in VIEWS and None not in [self.kind_of(each) for each in call.args]
        numbers: Numbers = whole.numbers
        if method.attr in _OF_ANOTHER_TYPE:
            numbers = "any" if is_numeric else "unknown"
        return ValueKind(numbers, None) if is_array and method.attr not in ("astype", "to") else None


def argument_count(code: CodeType) -> int:
    """Return how many of the variables of some code are its arguments."""
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _kind_of_object(thing: object) -> ValueKind | None:
    """Return what is known of the value of a global variable."""
    # By the type: `isinstance` asks the object for its class too, which a proxy may not have.
    if issubclass(type(thing), (float, complex)):
        return ValueKind("inexact", 0)
    if type(thing) in (int, bool, str):
        return NUMBER
    if type(thing) is np.ndarray and not thing.dtype.hasobject:
        return ValueKind("inexact" if thing.dtype.kind in "fc" else "any", thing.ndim)
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and type(thing) in (tensor, getattr(sys.modules["torch"].nn, "Parameter", None)):
        is_inexact = cast("Any", thing).is_floating_point() and not cast("Any", thing).requires_grad
        return ValueKind("inexact" if is_inexact else "any", cast("Any", thing).ndim)
    return None


def _combined(kinds: list[ValueKind]) -> ValueKind:
    """Return what is known of the result of an operation on operands of some kinds."""
    numbers: set[Numbers] = {each.numbers for each in kinds}
    dims = [each.ndim for each in kinds if each.ndim is not None]
    ndim = max(dims) if len(dims) == len(kinds) and dims else None
    order: tuple[Numbers, ...] = ("unknown", "any", "inexact", "python")
    found = min((order.index(each) for each in numbers), default=len(order) - 1)
    return ValueKind(order[found], ndim)


def _joined(kinds: list[ValueKind | None]) -> ValueKind | None:
    """Return what is known of a value that has one of several kinds."""
    if None in kinds or not kinds:
        return None
    numbers: set[Numbers] = {each.numbers for each in kinds if each is not None}
    dims = {each.ndim for each in kinds if each is not None}
    either: Numbers = "unknown" if "unknown" in numbers else "any"
    return ValueKind(numbers.pop() if len(numbers) == 1 else either, dims.pop() if len(dims) == 1 else None)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def is_range(value: ast.expr) -> bool:
    """Return whether an expression is a call of ``range``."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "range"


def _is_inexact_type(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str) and value.value[:1] == "f"
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name in ("float", "float16", "float32", "float64", "half", "single", "double", "complex64", "complex128")


def _names_in(value: ast.expr) -> frozenset[str]:
    return frozenset(each.id for each in ast.walk(value) if isinstance(each, ast.Name))


def _stores_in(function: ast.AST) -> dict[str, list[ast.Name]]:
    """Return for each variable of a function the nodes that bind or delete it, by their lines."""
    nodes = [each for each in ast.walk(function) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)]
    found: dict[str, list[ast.Name]] = {}
    for node in sorted(nodes, key=lambda each: (each.lineno, each.col_offset)):
        found.setdefault(node.id, []).append(node)
    return found


def name_of(call: ast.Call) -> str:
    """Return the last name of the function of a call; ``""`` where it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
