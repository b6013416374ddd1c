"""Places in the user's code: kept as code and instruction, shown as file, line and function."""

from __future__ import annotations

import dis
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, Generic, TypeVar, cast, final

__all__ = [
    "CALLS",
    "COMPREHENSIONS",
    "CachedByMark",
    "Mark",
    "Role",
    "Site",
    "add_role_of_code",
    "add_library",
    "called_by",
    "globals_of_file",
    "imports_modules",
    "is_in_comprehension",
    "is_inside",
    "is_of_the_program",
    "line_of",
    "line_of_frame",
    "mark_of",
    "rank_of",
    "role_of",
    "shown",
    "site_of",
]


@final
class Role(IntEnum):
    """What a code object is when the birth site of a resource is looked for.

    Attributes
    ----------
    USER
        Code of the program: its lines are birth sites.
    GENERATED
        Code generated for the program, such as a dataclass's ``__init__``: the line of its caller
        is the birth site.
    LIBRARY
        Code of a library: the line of its caller is the birth site.
    LAYERS
        Code of a library of models. The line of its caller is the birth site too. The operation is
        the call in this code, because one line, such as ``model(batch)``, stands for many.
    KEEPER
        Code of a library that keeps what it makes: reports leave that out.
    THROUGH
        Code that only passes a call on, together with its caller.
    PASSING
        Code that passes a call on by itself, such as a constructor: its caller is what makes the
        resource.
    """

    # `leaks/births/src/places.c` has the same numbers.
    USER = 0
    GENERATED = 1
    LIBRARY = 2
    KEEPER = 3
    THROUGH = 4
    PASSING = 5
    LAYERS = 6


Mark = tuple[CodeType, int]
"""A code object and the offset of an instruction in it.

This is kept at a birth, because formatting costs. Marks are no keys of dicts: code objects of two
files are equal if their instructions and lines are.
"""

_T = TypeVar("_T")


@final
class CachedByMark(Generic[_T]):
    """A function of a mark that is called once for each mark.

    Code objects are told apart by their ``id``: the cache keeps them alive.
    """

    __slots__ = ("_found", "_function")

    def __init__(self, function: Callable[[Mark], _T]) -> None:
        self._function = function
        self._found: dict[tuple[int, int], tuple[Mark, _T]] = {}

    def __call__(self, mark: Mark) -> _T:
        """Return what the function returns for a mark; the same object for the same mark."""
        key = id(mark[0]), mark[1]
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = mark, self._function(mark)
        return found[1]

    def clear(self) -> None:
        """Forget all marks."""
        self._found.clear()


_OURS: Final = __name__.partition(".")[0]
"""The name of this package."""
_COMMANDS: Final = ("leak-report", "leak-report.exe", "leak-report-script.py", "leak-report-script.pyw")
"""The names of the files that run this package's command."""
# The roles of the code of packages, and modules whose code has `Role.LIBRARY`. Python's own are
# here because they copy or unpickle for the code that calls them.
_packages: Final = dict.fromkeys((_OURS, "contextlib", "copy", "shelve"), Role.LIBRARY)
_modules: Final = {f"multiprocessing.{name}" for name in ("connection", "managers", "queues", "reduction")}

_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Parts of the paths of installed libraries' files."""

_IMPORTLIB: Final[str | None] = getattr(importlib, "__file__", None)
"""The file of `importlib.import_module`."""

_roles_of_code: Final[list[Callable[[CodeType, str], Role | None]]] = []
"""The functions of `add_role_of_code`."""


def add_library(*packages: str, module: str, role: Role = Role.LIBRARY) -> None:
    """Give the code of some packages a role; that of one module has no birth sites either."""
    _packages.update(dict.fromkeys(packages, role))
    if module != "__main__":
        _modules.add(module)
    _ranks.clear()


def add_role_of_code(of_library: Callable[[CodeType, str], Role | None]) -> None:
    """Add a function that returns the role of code of a library, or of code without a file.

    It gets a code object and the name of its module, which is empty if there is none. It returns
    None for code that it does not know.
    """
    if of_library not in _roles_of_code:
        _roles_of_code.append(of_library)


_ranks: Final[dict[str, Role]] = {}
"""A cache: by the name of a file, the role of its code."""


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
    """Return the innermost place in user code at a frame or its callers.

    User code is all code outside of this package and array libraries. Without any, the innermost
    place in generated code is returned, or else the outermost place.
    """
    # Called at each birth while a detector is open, hence the local names.
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


def line_of_frame(frame: FrameType) -> int:
    """Return the line that a frame is at.

    Some instructions, such as jumps, belong to no line. Then this is the line before.
    """
    line = cast("int | None", frame.f_lineno)
    if line is None:
        lines = [each for start, _, each in frame.f_code.co_lines() if start <= frame.f_lasti and each is not None]
        line = lines[-1] if lines else frame.f_code.co_firstlineno
    return line


def is_inside(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package."""
    return _top_package(frame.f_globals) == _OURS and not frame.f_code.co_filename.startswith("<doctest")


def is_of_the_program(module: str) -> bool:
    """Return whether a module, given by its name, belongs to the program and to no library."""
    package = module.partition(".")[0]
    if package in _packages or package in sys.stdlib_module_names or module in _modules:
        return False
    imported = sys.modules.get(module)
    # vars(), because a module may have a function __getattr__. sys.modules may also have an object
    # that is no module.
    file: object = vars(imported).get("__file__") if type(imported) is ModuleType else None
    return type(file) is not str or not any(folder in file for folder in _INSTALLED)


def imports_modules(file: str) -> bool:
    """Return whether a file of code, given by its name, is Python's own that imports modules.

    Its role is `Role.USER`: what a library makes when it is imported has a site there, and not at
    the line of the import.
    """
    return file.startswith("<frozen importlib") or file == _IMPORTLIB


def shown(file: str) -> str:
    """Return a path relative to the working directory if it lies there, else unchanged."""
    if not os.path.isabs(file):
        return file
    try:
        below = os.getcwd().rstrip(os.sep) + os.sep
    except OSError:
        return file
    return file[len(below) :] if file.startswith(below) else file


def _cell(file: str) -> int | None:
    """Return the number of the notebook cell, or IPython input, with a file name; else None."""
    ipython: Any = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    # IPython has no public function for this; only its printed tracebacks show the number.
    cells: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return cells.get(file)


def rank_of(code: CodeType, namespace: dict[str, Any]) -> Role:
    """Return the role of code, given the globals that it runs with."""
    rank = _ranks.get(code.co_filename)
    if rank is None:
        rank = _rank(code.co_filename, namespace)
    if rank is Role.LIBRARY or code.co_filename.startswith("<"):
        name: object = namespace.get("__name__")
        for of_library in _roles_of_code:
            verdict = of_library(code, name if type(name) is str else "")
            if verdict is not None:
                return verdict
    return rank


_namespaces: Final[dict[str, dict[str, Any]]] = {}
"""The globals of modules by their file: the role of code depends on the name of its module."""


def globals_of_file(file: str) -> dict[str, Any]:
    """Return the globals of the module with a file; empty where no such module is imported."""
    namespace = _namespaces.get(file)
    if namespace is None:
        modules: list[object] = list(sys.modules.values())
        for module in modules:
            # From the dict: a module may import itself when it is asked for an attribute.
            named = vars(module).get("__file__") if issubclass(type(module), ModuleType) else None
            if isinstance(named, str):
                _namespaces.setdefault(named, vars(module))
        namespace = _namespaces.setdefault(file, {})
    return namespace


def role_of(code: CodeType) -> Role:
    """Return what code is to a person who looks for a line."""
    return rank_of(code, globals_of_file(code.co_filename))


def _rank(file: str, namespace: dict[str, Any]) -> Role:
    """Return the role of the code of a file, given its globals, and cache it."""
    if file.startswith("<doctest"):
        rank = Role.USER
    elif file == "<string>" or file.startswith("<attrs generated"):
        # Generated methods, such as a dataclass's __init__: the line of their caller says more.
        rank = Role.GENERATED
    else:
        is_library = namespace.get("__name__") in _modules or _runs_programs(file, namespace)
        rank = Role.LIBRARY if is_library else _packages.get(_top_package(namespace), Role.USER)
    _ranks[file] = rank
    return rank


def _runs_programs(file: str, namespace: dict[str, Any]) -> bool:
    """Return whether code only starts a program: ``python -m``, or this package's command."""
    if file == "<frozen runpy>" or os.path.basename(file) in _COMMANDS:
        return True
    package: object = namespace.get("__package__")
    return type(package) is str and package.partition(".")[0] == _OURS


def _top_package(namespace: dict[str, Any]) -> str:
    name: object = namespace.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""


# The name of the function that an instruction calls, found in the bytecode.

CALLS: Final = ("CALL", "PRECALL")
"""The names of instructions that call something begin with these."""
_BEFORE_CALLS: Final = frozenset({"KW_NAMES", "PRECALL"})
"""Instructions between the arguments and the call that do not change the stack."""
_JUMPS: Final = frozenset((*dis.hasjrel, *dis.hasjabs))
"""The numbers of instructions that jump: the stack before them is unknown."""
# By operator, the name of PyTorch's function.
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
    """Return the instruction at an offset, and the name that it calls or looks up, or None."""
    instructions = _until(code, last)
    instruction = instructions[-1]
    if not instruction.opname.startswith(CALLS):
        return instruction, instruction.argval if isinstance(instruction.argval, str) else None
    return instruction, _loaded_name(_until_callee(instructions))


def _until(code: CodeType, last: int) -> list[dis.Instruction]:
    """Return the instructions up to an offset."""
    return [instruction for instruction in dis.get_instructions(code) if instruction.offset <= last]


def _until_callee(instructions: list[dis.Instruction]) -> list[dis.Instruction]:
    """Return the instructions up to the one that loads the callee of the last instruction, a call.

    The list is empty if that instruction is unknown.
    """
    instructions = instructions.copy()
    call = instructions.pop()
    argument = call.arg or 0
    # The stack has the callee below its arguments, so that the instruction that loads the callee
    # comes right before those that load the arguments.
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
    """Return the name that the last instruction loads, or None."""
    if not instructions or not instructions[-1].opname.startswith("LOAD_") or instructions[-1].opname == "LOAD_CONST":
        return None
    value = instructions[-1].argval
    return value if isinstance(value, str) else None


def name_of_call(code: CodeType, last: int) -> str | None:
    """Return the name of the function, method or operator by which an instruction made a tensor.

    ``relu`` for ``torch.relu(x)`` and ``x.relu()``, ``matmul`` for ``x @ w``, ``mT`` for ``x.mT``,
    and ``grad`` for ``jax.grad(f)(x)``. None if the instruction does not show it.
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
        # The callee may itself be the result of a call, as in ``jax.grad(f)(x)``.
        instructions = _until_callee(instructions)
    is_name = opname.startswith((*CALLS, "LOAD_ATTR", "LOAD_METHOD"))
    return _loaded_name(instructions) if is_name else None


COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""The names of the code of comprehensions and generator expressions."""
_ADDS: Final = ("LIST_APPEND", "SET_ADD", "MAP_ADD")
"""The instructions that add an element to the result of a comprehension."""


def is_in_comprehension(code: CodeType, instruction: int) -> bool:
    """Return whether an instruction makes an element of a comprehension or generator expression.

    Since Python 3.12 a comprehension is no function of its own, but a loop in the code around it.
    """
    if code.co_name in COMPREHENSIONS:
        return True
    opcodes = code.co_code[::2]
    if not any(dis.opmap[name] in opcodes for name in _ADDS):
        return False
    instructions = list(dis.get_instructions(code))
    # The offsets where each loop begins and ends.
    loops: list[tuple[int, int]] = [(each.offset, each.argval) for each in instructions if each.opname == "FOR_ITER"]

    def around(offset: int) -> list[tuple[int, int]]:
        return sorted((loop for loop in loops if loop[0] < offset < loop[1]), reverse=True)

    innermost = around(instruction)[:1]
    # The argument of an adding instruction is the depth of the result on the stack, below the
    # iterators of the comprehension's own loops. In a display with a star, ``[*rows, row]``, there
    # are no such iterators.
    return any(
        loop in innermost
        for each in instructions
        if each.opname in _ADDS
        for loop in around(each.offset)[: (each.arg or 1) - 1]
    )
