"""Where in the user's code something happened: kept as code and instruction, shown as file, line and function."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final, final

__all__ = [
    "GENERATED",
    "KEEPER",
    "LIBRARY",
    "PASSING",
    "THROUGH",
    "USER",
    "Mark",
    "Site",
    "add_judge",
    "add_library",
    "is_inside",
    "mark_of",
    "rank_of",
    "site_of",
]

Mark = tuple[CodeType, int]
"""A code object and the offset of an instruction in it: what is kept at a birth, because formatting costs."""

_OURS: Final = __name__.partition(".")[0]
_COMMANDS: Final = ("leak-report", "leak-report.exe", "leak-report-script.py", "leak-report-script.pyw")
# Of these all modules are libraries', of the others those alone.
_packages: Final = {_OURS, "copy"}
_modules: Final[set[str]] = set()
USER: Final = 0
GENERATED: Final = 1
LIBRARY: Final = 2
KEEPER: Final = 3
THROUGH: Final = 4
PASSING: Final = 5
"""What code is to a person who looks for a line: theirs; generated for theirs; a library's; a library's that keeps what
it makes for itself, so that it makes no births; code that, with its caller, only passes a call on;
code that passes a call on by itself.
"""

_judges: Final[list[Callable[[CodeType, str], int | None]]] = []


def add_library(*packages: str, module: str) -> None:
    """Take code of some packages, and of one module, for a library's: no line of theirs is a birth site."""
    _packages.update(packages)
    if module != "__main__":
        _modules.add(module)
    _ranks.clear()


def add_judge(judge: Callable[[CodeType, str], int | None]) -> None:
    """Ask a function what code of a library's is, given with the name of its module; None is nothing to say."""
    _judges.append(judge)


_ranks: Final[dict[str, int]] = {}


@final
@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A line of user code.

    Attributes
    ----------
    file : str
        The path of the file, absolute where the interpreter knows it so.
    line : int
        The line number, 0 where the instruction belongs to no line.
    function : str
        The qualified name of the function, ``"<module>"`` at the top level of a file.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        where = f"{shown(self.file)}:{self.line}"
        return where if self.function == "<module>" else f"{where} in {self.function}()"


def mark_of(frame: FrameType | None) -> Mark | None:
    """The innermost place in user code, at or above a frame: not in this package, nor inside an array library."""
    # This is the hot path of a birth under the detector.
    ranks = _ranks
    generated: Mark | None = None
    outermost: Mark | None = None
    while frame is not None:
        code = frame.f_code
        rank = ranks.get(code.co_filename)
        if rank is None:
            rank = _rank(code.co_filename, frame.f_globals)
        if rank == USER:
            return code, frame.f_lasti
        outermost = code, frame.f_lasti
        if rank == GENERATED and generated is None:
            generated = outermost
        frame = frame.f_back
    return generated or outermost


def site_of(mark: Mark | None) -> Site | None:
    """The site that a mark stands for."""
    if mark is None:
        return None
    code, instruction = mark
    return Site(code.co_filename, line_of(code, instruction), code.co_qualname)


def line_of(code: CodeType, instruction: int) -> int:
    """The line of an instruction, 0 where it belongs to none."""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or 0
    return code.co_firstlineno


def is_inside(frame: FrameType) -> bool:
    """Whether a frame runs code of this package."""
    return _top_package(frame.f_globals) == _OURS and not frame.f_code.co_filename.startswith("<doctest")


def shown(file: str) -> str:
    """A path as a person would write it: relative where it is under the working directory."""
    if not os.path.isabs(file):
        return file
    try:
        below = os.getcwd().rstrip(os.sep) + os.sep
    except OSError:
        return file
    return file[len(below) :] if file.startswith(below) else file


def rank_of(code: CodeType, namespace: dict[str, Any]) -> int:
    """What code is to a person who looks for a line, given with the globals that it runs with."""
    rank = _ranks.get(code.co_filename)
    if rank is None:
        rank = _rank(code.co_filename, namespace)
    if rank == LIBRARY and _judges:
        name: object = namespace.get("__name__")
        for judge in _judges:
            verdict = judge(code, name) if type(name) is str else None
            if verdict is not None:
                return verdict
    return rank


def _rank(file: str, namespace: dict[str, Any]) -> int:
    if file.startswith("<doctest"):
        rank = USER
    elif file == "<string>" or file.startswith("<attrs generated"):
        # Generated methods, such as a dataclass's __init__: their caller tells a person more.
        rank = GENERATED
    else:
        rank = LIBRARY if _is_library(namespace) or _runs_programs(file, namespace) else USER
    _ranks[file] = rank
    return rank


def _is_library(namespace: dict[str, Any]) -> bool:
    return _top_package(namespace) in _packages or namespace.get("__name__") in _modules


def _runs_programs(file: str, namespace: dict[str, Any]) -> bool:
    """Whether code runs a program, and is no part of it: ``python -m``, and our command, by its name or as a module."""
    if file == "<frozen runpy>" or os.path.basename(file) in _COMMANDS:
        return True
    package: object = namespace.get("__package__")
    return type(package) is str and package.partition(".")[0] == _OURS


def _top_package(namespace: dict[str, Any]) -> str:
    name: object = namespace.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""
