"""Where in the user's code something happened: kept as code and instruction, told as file, line and function."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Final, final

__all__ = ["Mark", "Site", "is_inside", "mark_of", "site_of"]

Mark = tuple[CodeType, int]
"""A code object and the offset of an instruction in it: what is kept at a birth, because formatting costs."""

_OURS: Final = __name__.partition(".")[0]
_INSIDE: Final = frozenset({_OURS, "numpy", "torch", "jax", "jaxlib"})
_USER, _GENERATED, _LIBRARY = range(3)
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
            rank = _rank(frame)
        if rank == _USER:
            return code, frame.f_lasti
        outermost = code, frame.f_lasti
        if rank == _GENERATED and generated is None:
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
    return _top_package(frame) == _OURS and not frame.f_code.co_filename.startswith("<doctest")


def shown(file: str) -> str:
    """A path as a person would write it: relative where it is under the working directory."""
    if not os.path.isabs(file):
        return file
    try:
        below = os.getcwd().rstrip(os.sep) + os.sep
    except OSError:
        return file
    return file[len(below) :] if file.startswith(below) else file


def _rank(frame: FrameType) -> int:
    file = frame.f_code.co_filename
    if file.startswith("<doctest"):
        rank = _USER
    elif file == "<string>" or file.startswith("<attrs generated"):
        # Generated methods, such as a dataclass's __init__: their caller tells a person more.
        rank = _GENERATED
    else:
        rank = _LIBRARY if _top_package(frame) in _INSIDE else _USER
    _ranks[file] = rank
    return rank


def _top_package(frame: FrameType) -> str:
    name: object = frame.f_globals.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""
