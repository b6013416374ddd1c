"""What an instruction of some code calls, by the name that the code has for it."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Final

__all__ = [
    "CALLS",
    "called_by",
    "name_of_call",
]

CALLS: Final = ("CALL", "PRECALL")
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
    """An instruction, and the name of what it calls or looks up, where that can be told."""
    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.offset <= last]
    asked = instruction = instructions.pop()
    opname, argument = instruction.opname, instruction.arg or 0
    if not opname.startswith(CALLS):
        return asked, instruction.argval if isinstance(instruction.argval, str) else None
    # The arguments lie on the stack above what is called: what loads that comes right before what
    # loads them.
    above = 1 + (argument & 1) if opname == "CALL_FUNCTION_EX" else argument + (opname == "CALL_KW")
    while instructions and instructions[-1].opname in _BEFORE_CALLS:
        instructions.pop()
    while instructions and above > 0 and instructions[-1].opcode not in _JUMPS:
        instruction = instructions.pop()
        above -= dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
    while instructions and instructions[-1].opname == "PUSH_NULL":
        instructions.pop()
    loads = above == 0 and bool(instructions) and instructions[-1].opname.startswith("LOAD_")
    value = instructions[-1].argval if loads else None
    return asked, value if isinstance(value, str) and instructions[-1].opname != "LOAD_CONST" else None


def name_of_call(code: CodeType, last: int) -> str | None:
    """What an instruction that made a tensor is called in reports: the name of a function, or of an operator's.

    ``relu`` for ``torch.relu(x)`` and ``x.relu()``, ``matmul`` for ``x @ w``, ``mT`` for ``x.mT``.
    """
    instruction, name = called_by(code, last)
    opname = instruction.opname
    if opname in _INSTRUCTIONS:
        return _INSTRUCTIONS[opname]
    if opname in ("BINARY_OP", "COMPARE_OP"):
        operator = instruction.argrepr.removeprefix("bool(").removesuffix(")")
        in_place = opname == "BINARY_OP" and operator.endswith("=")
        return _OPERATORS.get(operator.removesuffix("=") if in_place else operator)
    return name if opname.startswith((*CALLS, "LOAD_ATTR", "LOAD_METHOD")) else None
