"""What becomes of a value where the source loads it: used up, returned, or perhaps kept.

`del x` frees memory only where nothing else has the value. The source says what a variable's value
goes into: an operator or a function that makes something new is done with it; a container, an
attribute, another variable or a view has it still. What the function of a call does with it is
looked up in its own source: in that of the function that a name stands for, or of the functions
that were seen to run inside of the call. In doubt it is kept.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final, Literal, TypeAlias, cast, final

import numpy as np

from ...scopes.base.sites import Mark, Role
from .recording import namespace_of, role_of

__all__ = ["Callees", "Source", "source_of"]

Fate: TypeAlias = Literal["gone", "returned", "kept"]

_DEPTH: Final = 6
_SOURCES_AT_MOST: Final = 500
_KNOWN_NAMES: Final[Mapping[str, str]] = {"np": "numpy", "numpy": "numpy", "torch": "torch", "F": "torch.nn.functional"}
_USED_UP: Final = frozenset(
    {
        *("abs", "all", "any", "bool", "complex", "divmod", "float", "format", "hash", "id", "int", "isinstance"),
        *("len", "pow", "print", "repr", "round", "str", "sum", "type"),
    }
)
"""Builtin functions whose result has nothing of what they are given."""
_FACTS: Final = frozenset(
    {
        *("device", "dtype", "element_size", "flags", "is_leaf", "itemsize", "layout", "nbytes", "ndim"),
        *("requires_grad", "shape", "size", "strides"),
    }
)
_VIEWS: Final = frozenset(
    {
        # Of NumPy, functions and methods.
        *("array", "array_split", "asanyarray", "asarray", "ascontiguousarray", "asfortranarray", "astype"),
        *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_to", "diag", "diagonal", "dsplit"),
        *("expand_dims", "flip", "fliplr", "flipud", "frombuffer", "getfield", "hsplit", "imag", "matrix_transpose"),
        *("meshgrid", "moveaxis", "nan_to_num", "ndenumerate", "nditer", "permute_dims", "ravel", "real"),
        *("real_if_close", "require", "reshape", "rollaxis", "rot90", "sliding_window_view", "split", "squeeze"),
        *("swapaxes", "transpose", "trim_zeros", "unstack", "view", "vsplit", "as_strided"),
        # Of PyTorch besides: also what may return what it is given.
        *("adjoint", "as_tensor", "bfloat16", "bool", "byte", "chunk", "conj", "contiguous", "cpu", "cuda", "data"),
        *("detach", "double", "dropout", "dropout1d", "dropout2d", "dropout3d", "expand", "expand_as", "flatten"),
        *("float", "from_dlpack", "from_numpy", "half", "int", "long", "movedim", "narrow", "numpy", "permute"),
        *("pin_memory", "positive", "refine_names", "reshape_as", "select", "short", "swapdims", "t"),
        *("tensor_split", "to", "type", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "untyped_storage"),
        *("view_as", "view_as_complex", "view_as_real", "resolve_conj", "resolve_neg", "retain_grad", "storage"),
        *("requires_grad_", "share_memory_", "rename", "align_to", "align_as", "register_hook", "Parameter"),
    }
)
"""Functions and methods whose result may have the memory of what they are given."""
_COPYING: Final = frozenset({"array", "astype", "meshgrid", "nan_to_num"})
"""Those that copy, unless they are told not to."""
_ADDS: Final = frozenset(
    {"add", "append", "appendleft", "extend", "insert", "put", "put_nowait", "setdefault", "update", "send", "submit"}
)
"""Methods that keep what they are given."""
_ELEMENTWISE: Final = frozenset({"around", "clip", "round"})
"""Beside ufuncs, what takes ``out=`` and makes an array of the same size."""
_WHOLE_NUMBERS: Final = frozenset({"arange", "argsort", "bincount", "indices", "integers", "nonzero", "randint"})
_BY_CHANCE: Final = (
    "rand",
    "normal",
    "uniform",
    "dropout",
    "choice",
    "permutation",
    "shuffle",
    "rng",
    "sample",
    "next",
)
_CALLED: Final[Mapping[type, str]] = {
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
_IN_A_ROW: Final = (ast.stmt, ast.ExceptHandler, ast.match_case, ast.Module)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

_Position = tuple[int | None, int | None, int | None, int | None]


@final
class _File:
    """A parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        # The innermost expression at each position.
        self.expressions: dict[_Position, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                self.expressions[node.lineno, node.end_lineno, node.col_offset, node.end_col_offset] = node
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield a node and what it is in, from inside out."""
        at: ast.AST | None = node
        while at is not None:
            yield at
            at = self.parents.get(at)

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function or module that a node belongs to."""
        return next(each for each in self.up(self.parents.get(node, node)) if isinstance(each, (*_SCOPES, ast.Module)))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that a node is in."""
        return next((each for each in self.up(node) if isinstance(each, ast.stmt)), None)


def _parsed(file: str, text: str) -> _File | None:
    try:
        return _File(ast.parse(text, file)) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


class Callees:
    """Which code was seen to run directly inside of which instruction, from recorded frames."""

    def __init__(self, frames: Sequence[tuple[Mark, ...]]) -> None:
        self._inside: dict[tuple[int, int], list[tuple[Mark, ...]]] = {}
        for marks in frames:
            for number, (code, offset) in enumerate(marks):
                if number:
                    self._inside.setdefault((id(code), offset), []).append(marks[:number])

    def inside(self, code: CodeType, offset: int) -> list[tuple[Mark, ...]]:
        """Return the frames inside of an instruction, innermost first, for each birth there."""
        return self._inside.get((id(code), offset), [])


@final
class Source:
    """The source of a code object."""

    def __init__(self, code: CodeType, file: _File | None) -> None:
        self.code = code
        self.file = file
        self._positions: list[_Position] = list(code.co_positions())

    def node(self, offset: int) -> ast.expr | None:
        """Return the expression that an instruction belongs to."""
        number = offset // 2
        if self.file is None or not 0 <= number < len(self._positions):
            return None
        return self.file.expressions.get(self._positions[number])

    def binds_result_of(self, offset: int, store: int) -> bool:
        """Return whether an instruction stores what operators make of what another one made.

        NumPy writes the result of ``x * 2 + 1`` over that of ``x * 2``, if that is large.
        """
        node, target = self.node(offset), self.node(store)
        if self.file is None or node is None or target is None:
            return False
        parent = self.file.parents.get(node)
        while isinstance(parent, (ast.BinOp, ast.UnaryOp)):
            parent = self.file.parents.get(parent)
        return isinstance(parent, ast.Assign) and parent.targets == [target]

    # ------------------------------------------------------------------ what becomes of a value

    def may_keep(self, offset: int, callees: Callees) -> bool:
        """Return whether something may have the value that is loaded at an instruction still."""
        node = self.node(offset)
        return node is None or self.fate_of(node, callees, 0) != "gone"

    def fate_of(self, value: ast.expr, callees: Callees, depth: int) -> Fate:
        """Return what becomes of the value of an expression.

        For what consists of it, such as a view or a container, likewise.
        """
        file = self.file
        if file is None or depth > _DEPTH:
            return "kept"
        node: ast.AST = value
        while True:
            parent = file.parents.get(node)
            if isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Expr, ast.FormattedValue, ast.AugAssign)):
                return "gone"
            if isinstance(parent, (ast.If, ast.While, ast.Assert, ast.Delete)):
                return "gone"
            if isinstance(parent, ast.Return):
                return "returned"
            if isinstance(parent, ast.Assign) and (node in parent.targets or _are_parts(parent.targets)):
                return "gone"
            if isinstance(parent, ast.Subscript):
                if node is not parent.value or isinstance(parent.ctx, (ast.Store, ast.Del)):
                    return "gone"
            elif isinstance(parent, ast.Attribute):
                if parent.attr in _FACTS or isinstance(parent.ctx, ast.Store):
                    return "gone"
                call = file.parents.get(parent)
                if isinstance(call, ast.Call) and call.func is parent:
                    if _makes_something_new(parent.attr) or _copies(parent.attr, call):
                        return "gone"
                    parent = call
            elif isinstance(parent, ast.IfExp):
                if node is parent.test:
                    return "gone"
            elif isinstance(parent, ast.Call):
                fate = self._fate_in_call(parent, node, callees, depth)
                if fate != "returned":
                    return fate
            elif isinstance(parent, ast.keyword):
                call = file.parents[parent]
                assert isinstance(call, (ast.Call, ast.ClassDef))
                fate = self._fate_in_call(call, parent, callees, depth) if isinstance(call, ast.Call) else "kept"
                if fate != "returned":
                    return fate
                parent = call
            elif not isinstance(
                parent, (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred, ast.BoolOp, ast.Slice, ast.JoinedStr)
            ):
                return "kept"
            node = parent

    def _fate_in_call(self, call: ast.Call, argument: ast.AST, callees: Callees, depth: int) -> Fate:
        """Return what a call does with an argument: "returned" where it comes out again."""
        if argument is call.func:
            return "kept"
        if isinstance(argument, ast.keyword) and argument.arg == "out":
            return "returned"
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        function = self._meant_by(call.func)
        if function is not None and getattr(builtins, name, None) is function:
            return "gone" if name in _USED_UP else "kept"
        if isinstance(function, np.ufunc):
            return "gone"
        if isinstance(function, (type, FunctionType, BuiltinFunctionType)):
            name = function.__name__
        module = str(getattr(function, "__module__", None) or "").partition(".")[0]
        if module in ("numpy", "torch") or (module == "" and isinstance(function, BuiltinFunctionType)):
            if inspect.isclass(function) or name in _ADDS:
                return "kept"
            return "returned" if name in _VIEWS and not _copies(name, call) else "gone"
        if isinstance(function, FunctionType) and role_of(function.__code__) is not Role.USER:
            return "returned" if name in _VIEWS else "gone"
        if isinstance(function, FunctionType):
            return self._fate_in_function(function.__code__, call, argument, callees, depth, is_bound=False)
        if name in _ADDS or (function is not None and not _is_module_of_torch(function)):
            return "kept"
        return self._fate_inside(call, argument, callees, depth)

    def _fate_inside(self, call: ast.Call, argument: ast.AST, callees: Callees, depth: int) -> Fate:
        """Return what the functions do that were seen to run inside of a call."""
        seen: list[tuple[Mark, ...]] = []
        for number, position in enumerate(self._positions):
            if self.file is not None and self.file.expressions.get(position) is call:
                seen += callees.inside(self.code, 2 * number)
        fates: set[Fate] = set()
        for marks in seen:
            direct = marks[-1][0]
            if role_of(direct) is not Role.USER:
                # A library's code: of those that call back, modules of PyTorch alone are known.
                called = [code for code, _ in marks if role_of(code) is Role.USER]
                if not called:
                    fates.add("gone")
                    continue
                direct = called[-1]
                if direct.co_name != "forward":
                    return "kept"
            is_bound = direct.co_varnames[:1] == ("self",)
            fates.add(self._fate_in_function(direct, call, argument, callees, depth, is_bound=is_bound))
        if not fates or "kept" in fates:
            return "kept"
        return "returned" if "returned" in fates else "gone"

    def _fate_in_function(
        self, code: CodeType, call: ast.Call, argument: ast.AST, callees: Callees, depth: int, *, is_bound: bool
    ) -> Fate:
        """Return what a function in Python does with an argument of a call."""
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return "kept"
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if isinstance(argument, ast.keyword):
            name = argument.arg
        elif any(isinstance(each, ast.Starred) for each in call.args):
            name = None
        else:
            number = call.args.index(argument) + is_bound  # type: ignore[arg-type]  # it is one of them
            name = names[number] if number < code.co_argcount else None
        if name not in names or name in code.co_cellvars:
            return "kept"
        inner = source_of(code)
        if inner.file is None:
            return "kept"
        fates: set[Fate] = set()
        for position in inner._positions:
            node = inner.file.expressions.get(position)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                fates.add(inner.fate_of(node, callees, depth + 1))
        if "kept" in fates:
            return "kept"
        return "returned" if "returned" in fates else "gone"

    def _meant_by(self, expression: ast.expr) -> object:
        """Return the object that a dotted name stands for; None where that is not known."""
        if isinstance(expression, ast.Attribute):
            whole = self._meant_by(expression.value)
            if isinstance(whole, np.ufunc):
                return getattr(whole, expression.attr, None)
            # What is there: a module or a class may make others when it is asked.
            return vars(whole).get(expression.attr) if isinstance(whole, (ModuleType, type)) else None
        if not isinstance(expression, ast.Name) or expression.id in self.code.co_varnames:
            return None
        if expression.id in (*self.code.co_freevars, *self.code.co_cellvars):
            return None
        known = namespace_of(self.code.co_filename).get(expression.id)
        if known is None:
            known = getattr(builtins, expression.id, None)
        return sys.modules.get(_KNOWN_NAMES.get(expression.id, "")) if known is None else known

    # ------------------------------------------------------------------ where a change can be made

    def is_read_elsewhere(self, name: str) -> bool:
        """Return whether other code reads a variable of this module, or may."""
        if self.file is None:
            return True
        own = self.file.tree
        return any(
            isinstance(node, ast.Name) and node.id == name and self.file.scope(node) is not own
            for node in ast.walk(self.file.tree)
        )

    def end_of_use(self, bound: int, line: int) -> tuple[str, int, int] | None:
        """Return where a variable can be deleted: behind what, its first line and its last.

        It is the statement that has the last use, beside that which binds the variable or around
        it. What it is called is empty for one without a block. The first line is that of the
        statement beside it which binds the variable, such as a loop.

        Parameters
        ----------
        bound : int
            The offset of the instruction that binds it.
        line : int
            The line of the last use.
        """
        binding = self.node(bound)
        statement = None if self.file is None or binding is None else self.file.statement(binding)
        if self.file is None or statement is None:
            return None
        for around in self.file.up(statement):
            parent = self.file.parents.get(around)
            if not isinstance(around, _IN_A_ROW) or parent is None:
                continue
            for block in _blocks_of(parent):
                if around in block:
                    for each in block[block.index(around) :]:
                        end: int = each.end_lineno or each.lineno
                        if each.lineno <= line <= end:
                            return _CALLED.get(type(each), ""), getattr(around, "lineno", line), end
            if isinstance(parent, (*_SCOPES, ast.Module)):
                return None
        return None

    def can_recompute(self, bound: int) -> bool:
        """Return whether what a variable is bound to can be made once more.

        It is: by one operation, of variables that stay as they are, and not by chance.
        """
        binding = self.node(bound)
        statement = None if self.file is None or binding is None else self.file.statement(binding)
        if self.file is None or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return False
        made = [node for node in ast.walk(statement.value) if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Call))]
        inputs = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
        words = {*inputs, *(node.attr for node in ast.walk(statement.value) if isinstance(node, ast.Attribute))}
        if len(made) != 1 or any(part in word.lower() for word in words for part in _BY_CHANCE):
            return False
        changed = {statement.targets[0].id, *inputs}
        for node in ast.walk(self.file.scope(statement)):
            if node is statement.targets[0] or getattr(node, "lineno", 0) <= statement.lineno:
                continue
            if isinstance(node, ast.Name) and node.id in inputs and not isinstance(node.ctx, ast.Load):
                return False
            is_part = isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load)
            if is_part and getattr(getattr(node, "value", None), "id", None) in changed:
                return False
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in changed:
                return False
            if isinstance(node, ast.keyword) and node.arg == "out":
                return False
        return True

    def is_elementwise(self, offset: int) -> bool:
        """Return whether an instruction could make its result in an operand.

        That is of the same size, and no other view of it is read.
        """
        node = self.node(offset)
        operands: list[ast.expr]
        if isinstance(node, ast.UnaryOp):
            operands = [node.operand]
        elif isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.MatMult):
                return False
            operands = [node.left, node.right]
        elif isinstance(node, ast.Call):
            function = self._meant_by(node.func)
            is_ufunc = isinstance(function, np.ufunc) and function.signature is None
            name = getattr(function, "__name__", "")
            module = str(getattr(function, "__module__", ""))
            if not is_ufunc and not (module.partition(".")[0] in ("numpy", "torch") and name in _ELEMENTWISE):
                return False
            operands = list(node.args)
        else:
            return False
        # ``a + a.T`` reads what it would have overwritten; whole numbers are not made into others.
        plain = {each.id for each in operands if isinstance(each, ast.Name)}
        parts = [inner for each in operands if not isinstance(each, ast.Name) for inner in ast.walk(each)]
        if any(isinstance(inner, ast.Name) and inner.id in plain for inner in parts):
            return False
        return not any(
            isinstance(inner, ast.Call) and getattr(inner.func, "attr", "") in _WHOLE_NUMBERS for inner in parts
        )


# What was read of each file, with the lines that it was read from; and the sources of code. Code is
# told by its address, as its hash is that of all that is in it.
_files: Final[dict[str, tuple[list[str], _File | None]]] = {}
_sources: Final[dict[int, Source]] = {}


def source_of(code: CodeType) -> Source:
    """Return the source of a code object; one without a tree where there is none to be read."""
    lines = linecache.getlines(code.co_filename)
    known = _files.get(code.co_filename)
    if known is None or known[0] is not lines:
        _files[code.co_filename] = known = lines, _parsed(code.co_filename, "".join(lines))
    source = _sources.get(id(code))
    if source is None or source.code is not code or source.file is not known[1]:
        if len(_sources) >= _SOURCES_AT_MOST:
            _sources.clear()
            _files.clear()
        _sources[id(code)] = source = Source(code, known[1])
    return source


def _blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            # Handlers and cases have the lines that statements have.
            yield cast("list[ast.stmt]", block)


def _makes_something_new(method: str) -> bool:
    """Return whether a method of an array or a tensor returns neither it nor a view."""
    if method in _VIEWS or method.endswith("_"):
        return False
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    return hasattr(np.ndarray, method) or (tensor is not None and hasattr(tensor, method))


def _are_parts(targets: Sequence[ast.expr]) -> bool:
    """Return whether what is assigned is copied into parts of other arrays, as ``a[:, 1:]``."""
    return all(
        isinstance(target, ast.Subscript)
        and any(
            isinstance(part, ast.Slice)
            for part in (target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice])
        )
        for target in targets
    )


def _copies(name: str, call: ast.Call) -> bool:
    return name in _COPYING and not any(each.arg in ("copy", None) for each in call.keywords)


def _is_module_of_torch(thing: object) -> bool:
    return any(cls.__module__ == "torch.nn.modules.module" for cls in type(thing).__mro__)
