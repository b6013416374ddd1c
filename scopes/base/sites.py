"""Places in the user's code: kept as code and instruction, shown as file, line and function."""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, final

__all__ = [
    "CALLS",
    "Mark",
    "Role",
    "Site",
    "add_role_of_code",
    "add_library",
    "called_by",
    "is_in_comprehension",
    "is_inside",
    "is_of_the_program",
    "line_of",
    "mark_of",
    "rank_of",
    "shown",
    "site_of",
]


@final
class Role(IntEnum):
    """What code is to a person who looks for the line of a birth.

    Attributes
    ----------
    USER
        Their own: its lines are birth sites.
    GENERATED
        Generated for their own, such as a dataclass's ``__init__``: the line of its caller is one.
    LIBRARY
        A library's: the line of its caller is the birth site.
    KEEPER
        A library's that keeps what it makes for itself: what it makes is in no report.
    THROUGH
        Code that, together with its caller, only passes a call on.
    PASSING
        Code that passes a call on by itself, such as a constructor: its caller is what makes the
        resource.
    """

    # The numbers are those of `leaks/births/src/places.c`.
    USER = 0
    GENERATED = 1
    LIBRARY = 2
    KEEPER = 3
    THROUGH = 4
    PASSING = 5


Mark = tuple[CodeType, int]
"""A code object and the offset of an instruction in it.

This is kept at a birth, because formatting costs.
"""

_OURS: Final = __name__.partition(".")[0]
_COMMANDS: Final = ("leak-report", "leak-report.exe", "leak-report-script.py", "leak-report-script.pyw")
# Of these all modules are libraries', of the others those alone: what unpickles for the code that
# asks.
_packages: Final = {_OURS, "contextlib", "copy", "shelve"}
_modules: Final = {f"multiprocessing.{name}" for name in ("connection", "managers", "queues", "reduction")}

_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_roles_of_code: Final[list[Callable[[CodeType, str], Role | None]]] = []


def add_library(*packages: str, module: str) -> None:
    """Take some packages, and one module, for a library's code: no line of it is a birth site."""
    _packages.update(packages)
    if module != "__main__":
        _modules.add(module)
    _ranks.clear()


def add_role_of_code(role_of: Callable[[CodeType, str], Role | None]) -> None:
    """Ask a function for the role of code that is a library's or in no file.

    It is given the code and the name of its module. None is nothing to say. The name is empty where
    the code has none.
    """
    if role_of not in _roles_of_code:
        _roles_of_code.append(role_of)


_ranks: Final[dict[str, Role]] = {}


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
        cell = _cell(self.file)
        where = f"{shown(self.file)}:{self.line}" if cell is None else f"In [{cell}], line {self.line}"
        return where if self.function == "<module>" else f"{where} in {self.function}()"


def mark_of(frame: FrameType | None) -> Mark | None:
    """Return the innermost place in user code, at or above a frame.

    User code is not in this package, nor in an array library. Where there is none, the innermost
    generated code is taken, or else the outermost code.
    """
    # Called at each birth under a detector.
    ranks, user, generating = _ranks, Role.USER, Role.GENERATED
    generated: Mark | None = None
    outermost: Mark | None = None
    while frame is not None:
        code = frame.f_code
        rank = ranks.get(code.co_filename)
        if rank is None:
            rank = _rank(code.co_filename, frame.f_globals)
        if rank is user:
            return code, frame.f_lasti
        outermost = code, frame.f_lasti
        if rank is generating and generated is None:
            generated = outermost
        frame = frame.f_back
    return generated or outermost


def site_of(mark: Mark | None) -> Site | None:
    """Return the site of a mark."""
    if mark is None:
        return None
    code, instruction = mark
    return Site(code.co_filename, line_of(code, instruction), code.co_qualname)


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction, 0 where it belongs to none."""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or 0
    return code.co_firstlineno


def is_inside(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package."""
    return _top_package(frame.f_globals) == _OURS and not frame.f_code.co_filename.startswith("<doctest")


def is_of_the_program(module: str) -> bool:
    """Return whether a module, given by its name, is the program's, not an installed library's."""
    package = module.partition(".")[0]
    if package in _packages or package in sys.stdlib_module_names or module in _modules:
        return False
    imported = sys.modules.get(module)
    # Past a function __getattr__ of the module's. A program may have put another object there.
    file: object = vars(imported).get("__file__") if type(imported) is ModuleType else None
    return type(file) is not str or not any(folder in file for folder in _INSTALLED)


def shown(file: str) -> str:
    """Return a path relative to the working directory if it is under that, else unchanged."""
    if not os.path.isabs(file):
        return file
    try:
        below = os.getcwd().rstrip(os.sep) + os.sep
    except OSError:
        return file
    return file[len(below) :] if file.startswith(below) else file


def _cell(file: str) -> int | None:
    """Return the number of the notebook's cell, or IPython's input, of a file; None for others."""
    ipython: Any = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    # The public way to it is the traceback that IPython prints.
    cells: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return cells.get(file)


def rank_of(code: CodeType, namespace: dict[str, Any]) -> Role:
    """Return the role of code, given with the globals that it runs with."""
    rank = _ranks.get(code.co_filename)
    if rank is None:
        rank = _rank(code.co_filename, namespace)
    if rank is Role.LIBRARY or code.co_filename.startswith("<"):
        name: object = namespace.get("__name__")
        for role_of in _roles_of_code:
            verdict = role_of(code, name if type(name) is str else "")
            if verdict is not None:
                return verdict
    return rank


def _rank(file: str, namespace: dict[str, Any]) -> Role:
    if file.startswith("<doctest"):
        rank = Role.USER
    elif file == "<string>" or file.startswith("<attrs generated"):
        # Generated methods, such as a dataclass's __init__: the line of their caller says more.
        rank = Role.GENERATED
    else:
        is_library = _is_library(namespace) or _runs_programs(file, namespace)
        rank = Role.LIBRARY if is_library else Role.USER
    _ranks[file] = rank
    return rank


def _is_library(namespace: dict[str, Any]) -> bool:
    return _top_package(namespace) in _packages or namespace.get("__name__") in _modules


def _runs_programs(file: str, namespace: dict[str, Any]) -> bool:
    """Return whether code only runs a program: that of ``python -m``, or this package's command."""
    if file == "<frozen runpy>" or os.path.basename(file) in _COMMANDS:
        return True
    package: object = namespace.get("__package__")
    return type(package) is str and package.partition(".")[0] == _OURS


def _top_package(namespace: dict[str, Any]) -> str:
    name: object = namespace.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""


# What an instruction of some code calls, by the name that the code has for it.

CALLS: Final = ("CALL", "PRECALL")
"""What the names of instructions begin with that call something."""
_BEFORE_CALLS: Final = frozenset({"KW_NAMES", "PRECALL"})
_JUMPS: Final = frozenset((*dis.hasjrel, *dis.hasjabs))
# Operators, by the functions of PyTorch behind them.
_OPERATORS: Final = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floor_divide", "%": "remainder", "@": "matmul", "**": "pow",
    "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor", "<<": "bitwise_left_shift", ">>": "bitwise_right_shift",
    "<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge", "[]": "__getitem__",
}  # fmt: skip
_INSTRUCTIONS: Final = {
    "BINARY_SLICE": "__getitem__",
    "BINARY_SUBSCR": "__getitem__",
    "STORE_SLICE": "__setitem__",
    "STORE_SUBSCR": "__setitem__",
    "UNARY_INVERT": "bitwise_not",
    "UNARY_NEGATIVE": "neg",
    "UNARY_POSITIVE": "positive",
}


def called_by(code: CodeType, last: int) -> tuple[dis.Instruction, str | None]:
    """Return an instruction, and the name of what it calls or looks up, where it has one."""
    instructions = _until(code, last)
    asked = instructions[-1]
    if not asked.opname.startswith(CALLS):
        return asked, asked.argval if isinstance(asked.argval, str) else None
    return asked, _loaded_name(_until_callee(instructions))


def _until(code: CodeType, last: int) -> list[dis.Instruction]:
    return [instruction for instruction in dis.get_instructions(code) if instruction.offset <= last]


def _until_callee(instructions: list[dis.Instruction]) -> list[dis.Instruction]:
    """Return the instructions up to the one that loads the callee of the call that ends them.

    The list is empty where that is unknown.
    """
    instructions = instructions.copy()
    call = instructions.pop()
    argument = call.arg or 0
    # The arguments lie on the stack above what is called: what loads that comes right before what
    # loads them.
    above = 1 + (argument & 1) if call.opname == "CALL_FUNCTION_EX" else argument + (call.opname == "CALL_KW")
    while instructions and instructions[-1].opname in _BEFORE_CALLS:
        instructions.pop()
    while instructions and above > 0 and instructions[-1].opcode not in _JUMPS:
        instruction = instructions.pop()
        above -= dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
    while instructions and instructions[-1].opname == "PUSH_NULL":
        instructions.pop()
    return instructions if above == 0 else []


def _loaded_name(instructions: list[dis.Instruction]) -> str | None:
    """Return the name that the last of some instructions loads something by."""
    if not instructions or not instructions[-1].opname.startswith("LOAD_") or instructions[-1].opname == "LOAD_CONST":
        return None
    value = instructions[-1].argval
    return value if isinstance(value, str) else None


def name_of_call(code: CodeType, last: int) -> str | None:
    """Return the name of an instruction that made a tensor: that of a function or of an operator's.

    ``relu`` for ``torch.relu(x)`` and ``x.relu()``, ``matmul`` for ``x @ w``, ``mT`` for ``x.mT``,
    and ``grad`` for ``jax.grad(f)(x)``. None where the instruction does not show it.
    """
    instructions = _until(code, last)
    instruction = instructions[-1]
    opname = instruction.opname
    if opname in _INSTRUCTIONS:
        return _INSTRUCTIONS[opname]
    if opname in ("BINARY_OP", "COMPARE_OP"):
        operator = instruction.argrepr.removeprefix("bool(").removesuffix(")")
        in_place = opname == "BINARY_OP" and operator.endswith("=")
        return _OPERATORS.get(operator.removesuffix("=") if in_place else operator)
    while instructions and instructions[-1].opname.startswith(CALLS):
        # What a call returned may be what is called.
        instructions = _until_callee(instructions)
    is_name = opname.startswith((*CALLS, "LOAD_ATTR", "LOAD_METHOD"))
    return _loaded_name(instructions) if is_name else None


_ADDS: Final = ("LIST_APPEND", "SET_ADD", "MAP_ADD")


def is_in_comprehension(code: CodeType, instruction: int) -> bool:
    """Return whether an instruction makes an element of a list, set or dict comprehension.

    Since Python 3.12 that is no function of its own, but a loop in the code around it.
    """
    instructions = list(dis.get_instructions(code))
    loops: list[tuple[int, int]] = [(one.offset, one.argval) for one in instructions if one.opname == "FOR_ITER"]

    def around(offset: int) -> list[tuple[int, int]]:
        return sorted((loop for loop in loops if loop[0] < offset < loop[1]), reverse=True)

    made_in = around(instruction)[:1]
    # The argument of an addition counts down to what is added to, below the iterators of the
    # comprehension's own loops. A display with a star, ``[*rows, row]``, has none of them.
    return any(
        loop in made_in
        for one in instructions
        if one.opname in _ADDS
        for loop in around(one.offset)[: (one.arg or 1) - 1]
    )
