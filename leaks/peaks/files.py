"""Parsed source files: the parents of nodes, and the nodes that have a name or belong to code."""

from __future__ import annotations

import ast
import linecache
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType
from typing import Final, TypeAlias, final

__all__ = ["COMPREHENSIONS", "FUNCTIONS", "LOOPS", "File", "Position", "file_of", "position"]

_NAMES_THAT_READ_BY_TEXT: Final = frozenset(
    {
        *("__main__", "_getframe", "atexit", "breakpoint", "currentframe", "dir", "eval", "exec", "globals", "locals"),
        *("runpy", "set_trace", "timeit", "vars"),
    }
)
"""Names by which code can read variables without naming them, such as ``locals``."""
_FORMAT: Final = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z](?!\w)")
"""Where the operator ``%`` puts a value into a text."""
COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_SCOPES: Final = (*FUNCTIONS, ast.ClassDef, *COMPREHENSIONS)

Position: TypeAlias = tuple[int | None, int | None, int | None, int | None]
"""First line, last line, first column and last column, as `CodeType.co_positions` yields them."""


@final
class File:
    """A parsed file.

    Attributes
    ----------
    tree : ast.Module
        Its syntax tree.
    parents : dict
        The parent of each node.
    expressions : dict
        The innermost expression at each position.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.expressions: dict[Position, ast.expr] = {}
        # By first line (that of a decorator, if any) and name, as code objects have them.
        self._functions: dict[tuple[int, str], list[ast.AST]] = {}
        self._names: dict[str, list[ast.Name]] = {}
        self._names_in: dict[tuple[str, ast.AST], list[ast.Name]] = {}
        self._bound_otherwise: dict[ast.AST, frozenset[str]] = {}
        self._anew: dict[str, bool] = {}
        self._rebound: set[str] = set()
        self._attributes_stored: set[str] = set()
        self._reads_by_text: dict[ast.AST, bool] = {}
        # Those with values between their parts are there as a whole.
        self._texts: list[ast.Constant | ast.JoinedStr] = []
        # The texts that may be run as code, by the names in them.
        self._texts_with: dict[str, list[ast.Constant | ast.JoinedStr]] | None = None
        # The code objects that the file compiles to, by first line and name.
        self._codes: dict[tuple[int, str], CodeType] | None = None
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                self.expressions[position(node)] = node
            if isinstance(node, ast.Name):
                self._names.setdefault(node.id, []).append(node)
            is_part = isinstance(self.parents.get(node), ast.JoinedStr)
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                self._texts.extend([] if is_part else [node])
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                self._attributes_stored.add(node.attr)
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                self._rebound.update(node.names)
            if isinstance(node, FUNCTIONS):
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                self._functions.setdefault((first, getattr(node, "name", "<lambda>")), []).append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield a node and the nodes around it, from inside out."""
        current: ast.AST | None = node
        while current is not None:
            yield current
            current = self.parents.get(current)

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function, comprehension or module that a node belongs to."""
        return next(each for each in self.up(self.parents.get(node, node)) if isinstance(each, (*_SCOPES, ast.Module)))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that a node is in."""
        return next((each for each in self.up(node) if isinstance(each, ast.stmt)), None)

    def function(self, code: CodeType) -> ast.AST | None:
        """Return the function or module that code was compiled from; None if that is not sure."""
        if code.co_name == "<module>":
            return self.tree
        found = self._functions.get((code.co_firstlineno, code.co_name), [])
        return found[0] if len(found) == 1 and self._is_compiled_from_it(code) else None

    def _is_compiled_from_it(self, code: CodeType) -> bool:
        """Return whether the file compiles to this code: a library may have replaced it."""
        if self._codes is None:
            self._codes = {}
            pending: list[CodeType] = []
            # It may have been compiled otherwise, as a notebook does, or be another file by now.
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pending.append(compile(self.tree, code.co_filename, "exec", dont_inherit=True))
            while pending:
                each = pending.pop()
                self._codes[each.co_firstlineno, each.co_name] = each
                pending += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
        own = self._codes.get((code.co_firstlineno, code.co_name))
        return own is not None and _instructions(own) == _instructions(code)

    def names(self, name: str, scope: ast.AST) -> list[ast.Name]:
        """Return the nodes with a name in a function, also those in functions inside it."""
        known = self._names_in.get((name, scope))
        if known is None:
            known = [each for each in self._names.get(name, ()) if scope in self.up(each)]
            self._names_in[name, scope] = known
        return known

    def bound_otherwise(self, scope: ast.AST) -> frozenset[str]:
        """Return the variables that a handler, a pattern, an import, a ``def`` or a class binds."""
        known = self._bound_otherwise.get(scope)
        if known is None:
            known = frozenset(name for node in ast.walk(scope) for name in _names_bound_by(node))
            self._bound_otherwise[scope] = known
        return known

    def is_rebound_by_functions(self, name: str) -> bool:
        """Return whether a function declares a name as ``global`` or ``nonlocal``."""
        return name in self._rebound

    def has_attribute_stored(self, name: str) -> bool:
        """Return whether the file sets an attribute with a name on any object."""
        return name in self._attributes_stored

    def is_bound_anew(self, name: str) -> bool:
        """Return whether a global name may stand for several objects, one after the other."""
        known = self._anew.get(name)
        if known is None:
            self._anew[name] = known = self._may_be_bound_anew(name)
        return known

    def _may_be_bound_anew(self, name: str) -> bool:
        stores = [each for each in self.names(name, self.tree) if isinstance(each.ctx, ast.Store)]
        # A loop may bind it to several objects.
        of_module = [each for each in stores if self.scope(each) is self.tree]
        own = sum(1 + any(isinstance(outer, LOOPS) for outer in self.up(each)) for each in of_module)
        own += sum(getattr(each, "name", "") == name for each in self.tree.body)
        return own > 1 or self.is_rebound_by_functions(name)

    def is_named_in_text(self, name: str, scope: ast.AST) -> bool:
        """Return whether a text of a function, or of a variable that it reads, names a variable.

        A library may compute it with the variables of its caller: ``numexpr.evaluate("x * 2")`` and
        ``table.query("a > @x")`` do.
        """
        if self._texts_with is None:
            self._texts_with = {}
            with warnings.catch_warnings():
                # A text need not be code at all.
                warnings.simplefilter("ignore")
                for text in self._texts:
                    # Not a text on a line of its own, which documents.
                    is_used = not isinstance(self.parents.get(text), ast.Expr)
                    for each in _names_of_code(_written(text)) if is_used else ():
                        self._texts_with.setdefault(each, []).append(text)
        return any(self._is_read_by(text, scope) for text in self._texts_with.get(name, ()))

    def _is_read_by(self, text: ast.Constant | ast.JoinedStr, scope: ast.AST) -> bool:
        around = list(self.up(text))
        if scope in around:
            return True
        # The statement of the module that the text is in.
        statement = around[-2]
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        return any(isinstance(each, ast.Name) and self.names(each.id, scope) for each in targets)

    def reads_by_text(self, scope: ast.AST) -> bool:
        """Return whether code may read variables that it does not name."""
        known = self._reads_by_text.get(scope)
        if known is None:
            known = self._reads_by_text[scope] = any(self._may_read_by_text(node) for node in ast.walk(scope))
        return known

    def _may_read_by_text(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Not for ``__name__ == "__main__"``, which reads nothing.
            return "__main__" in node.value and not isinstance(self.parents.get(node), ast.Compare)
        if isinstance(node, ast.ImportFrom) and node.module in _NAMES_THAT_READ_BY_TEXT:
            return True
        named = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(node, ast.alias):
            named = node.name
        return named in _NAMES_THAT_READ_BY_TEXT


def _instructions(code: CodeType) -> tuple[object, ...]:
    return code.co_code, code.co_names, code.co_varnames, list(code.co_positions())


def _names_bound_by(node: ast.AST) -> list[str]:
    """Return the variables that a node binds, other than by a `Name`."""
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, *FUNCTIONS[:2], ast.ClassDef)):
        return [node.name] if node.name else []
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest else []


def _written(text: ast.Constant | ast.JoinedStr) -> str:
    """Return a text with a 0 for each value that the program puts into it."""
    if isinstance(text, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "0" for each in text.values)
    return _FORMAT.sub("0", str(text.value))


def _names_of_code(text: str) -> set[str]:
    """Return the names that a text reads if it is code; none for a lone name: it may be a key."""
    # Pandas writes ``@`` before variables.
    for code in () if text.isidentifier() else (text, text.replace("@", " ")):
        try:
            tree = ast.parse(code.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return set()


def position(node: ast.expr | ast.stmt) -> Position:
    """Return the lines and columns of a node."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _parsed(file: str, text: str) -> File | None:
    try:
        with warnings.catch_warnings():
            # Python has said them when it read the file.
            warnings.simplefilter("ignore")
            return File(ast.parse(text, file)) if text else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def file_of(code: CodeType) -> File | None:
    """Return the parsed file that code is from; None where it cannot be read or parsed."""
    return _parsed(code.co_filename, "".join(linecache.getlines(code.co_filename)))
