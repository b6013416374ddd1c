"""Source files, parsed: what their nodes are in, and where their functions have which names."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Final, TypeAlias, final

__all__ = ["FUNCTIONS", "File", "Position", "file_of", "position"]

_FILES_AT_MOST: Final = 500
_BY_TEXT: Final = frozenset(
    {
        *("__main__", "_getframe", "atexit", "breakpoint", "currentframe", "dir", "eval", "exec", "globals", "locals"),
        *("runpy", "set_trace", "timeit", "vars"),
    }
)
"""Names with which code reads variables that it does not name."""
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES: Final = (*FUNCTIONS, ast.ClassDef, *_COMPREHENSIONS)

Position: TypeAlias = tuple[int | None, int | None, int | None, int | None]


@final
class File:
    """A parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        # The innermost expression at each position.
        self.expressions: dict[Position, ast.expr] = {}
        self._functions: dict[tuple[int, str], list[ast.AST]] = {}
        self._names: dict[str, list[ast.Name]] = {}
        self._speaking: dict[ast.AST, bool] = {}
        self._codes: dict[tuple[int, str], CodeType] | None = None
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                self.expressions[position(node)] = node
            if isinstance(node, ast.Name):
                self._names.setdefault(node.id, []).append(node)
            if isinstance(node, FUNCTIONS):
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                self._functions.setdefault((first, getattr(node, "name", "<lambda>")), []).append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield a node and what it is in, from inside out."""
        at: ast.AST | None = node
        while at is not None:
            yield at
            at = self.parents.get(at)

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function, comprehension or module that a node belongs to."""
        return next(each for each in self.up(self.parents.get(node, node)) if isinstance(each, (*_SCOPES, ast.Module)))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that a node is in."""
        return next((each for each in self.up(node) if isinstance(each, ast.stmt)), None)

    def function(self, code: CodeType) -> ast.AST | None:
        """Return the function or module that some code was compiled of; None if it is not clear."""
        if code.co_name == "<module>":
            return self.tree
        found = self._functions.get((code.co_firstlineno, code.co_name), [])
        return found[0] if len(found) == 1 and self._is_compiled_from_it(code) else None

    def _is_compiled_from_it(self, code: CodeType) -> bool:
        """Return whether a function's code is that of the file: it may have been written anew."""
        if self._codes is None:
            self._codes = {}
            pending = [compile(self.tree, code.co_filename, "exec", dont_inherit=True)]
            while pending:
                each = pending.pop()
                self._codes[each.co_firstlineno, each.co_name] = each
                pending += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
        own = self._codes.get((code.co_firstlineno, code.co_name))
        return own is not None and _instructions(own) == _instructions(code)

    def names(self, name: str, scope: ast.AST) -> list[ast.Name]:
        """Return where a function, or what is in it, has a name."""
        return [each for each in self._names.get(name, ()) if scope in self.up(each)]

    def is_rebound_by_functions(self, name: str) -> bool:
        """Return whether functions may bind a variable of the module."""
        return any(isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in ast.walk(self.tree))

    def reads_by_text(self, scope: ast.AST) -> bool:
        """Return whether code may read variables that it does not name."""
        known = self._speaking.get(scope)
        if known is None:
            known = self._speaking[scope] = any(self._says(node) for node in ast.walk(scope))
        return known

    def _says(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return "__main__" in node.value and not isinstance(self.parents.get(node), ast.Compare)
        if isinstance(node, ast.ImportFrom) and node.module in _BY_TEXT:
            return True
        named = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(node, ast.alias):
            named = node.name
        return named in _BY_TEXT


def _instructions(code: CodeType) -> tuple[object, ...]:
    return code.co_code, code.co_names, code.co_varnames, list(code.co_positions())


def position(node: ast.expr | ast.stmt) -> Position:
    """Return the lines and columns of a node."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _parsed(file: str, text: str) -> File | None:
    try:
        return File(ast.parse(text, file)) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


# What was read of each file, with the lines that it was read from.
_files: Final[dict[str, tuple[list[str], File | None]]] = {}


def file_of(code: CodeType) -> File | None:
    """Return the file that some code is from; None where there is none to be read."""
    lines = linecache.getlines(code.co_filename)
    known = _files.get(code.co_filename)
    if known is None or known[0] is not lines:
        if len(_files) >= _FILES_AT_MOST:
            _files.clear()
        _files[code.co_filename] = known = lines, _parsed(code.co_filename, "".join(lines))
    return known[1]
