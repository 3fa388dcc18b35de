"""What a code object does, apart from where it stands: instructions without layout.

Reads only what every supported Python (3.11 to 3.14) documents or keeps stable: two-byte units in
``co_code`` (which is free of specialisation), ``EXTENDED_ARG``, relative jumps, and the variable-length
exception table.
"""

from __future__ import annotations

import dis
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_CACHE = 0
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_NOP = dis.opmap["NOP"]
_STORE_NAME = dis.opmap["STORE_NAME"]
_CONSTANT = frozenset(dis.hasconst)
_JUMP = frozenset(dis.hasjrel)
_BACKWARD = frozenset(op for op in _JUMP if "JUMP_BACKWARD" in dis.opname[op])

# Written by the compiler into class bodies: a docstring, a line number, and a summary of the methods
# whose order may depend on the hash seed (3.13). None of them decides what the class does.
_DERIVED_NAMES = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})

# Docstring present, and "no monitoring events": neither changes what the code computes.
_IGNORED_FLAGS = 0x4000000 | 0x2000000


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation. Jumps carry the index of their target; constants carry the value itself."""

    opcode: int
    argument: int
    has_constant: bool = False
    constant: Any = None


@dataclass(frozen=True, slots=True)
class CodeParts:
    """A code object without layout. ``exceptions``: (start, end, target, depth) by instruction index."""

    head: tuple[object, ...]
    instructions: list[Instruction]
    exceptions: list[tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class _Raw:
    unit: int
    opcode: int
    argument: int
    caches: int


def code_parts(code: CodeType) -> CodeParts:
    """Take a code object apart. Constants that no instruction loads (docstrings) do not appear."""
    raw, index_of = _units(code.co_code)
    instructions = [_instruction(code, one, index_of) for one in raw]
    _drop_derived_values(code, instructions)
    exceptions = [
        (index_of[start], index_of[end], index_of[target], depth)
        for start, end, target, depth in _exception_table(code.co_exceptiontable)
    ]
    return CodeParts(_head(code), instructions, exceptions)


def _head(code: CodeType) -> tuple[object, ...]:
    return (
        code.co_name,
        code.co_qualname,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & ~_IGNORED_FLAGS,
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
    )


def _units(units: bytes) -> tuple[list[_Raw], list[int]]:
    """The instructions, and for every two-byte unit the index of the instruction at or after it."""
    raw: list[_Raw] = []
    index_of: list[int] = []
    extended = 0
    count = len(units) // 2
    for unit in range(count):
        opcode, argument = units[2 * unit], units[2 * unit + 1] | extended
        index_of.append(len(raw))
        if opcode == _EXTENDED_ARG:
            extended = argument << 8
            continue
        extended = 0
        if opcode in (_CACHE, _NOP):
            continue
        raw.append(_Raw(unit, opcode, argument, _caches_after(units, unit, count)))
    index_of.append(len(raw))
    return raw, index_of


def _caches_after(units: bytes, unit: int, count: int) -> int:
    caches = 0
    while unit + 1 + caches < count and units[2 * (unit + 1 + caches)] == _CACHE:
        caches += 1
    return caches


def _instruction(code: CodeType, raw: _Raw, index_of: list[int]) -> Instruction:
    if raw.opcode in _CONSTANT:
        return Instruction(raw.opcode, 0, True, code.co_consts[raw.argument])
    if raw.opcode in _JUMP:
        distance = -raw.argument if raw.opcode in _BACKWARD else raw.argument
        return Instruction(raw.opcode, index_of[raw.unit + 1 + raw.caches + distance])
    return Instruction(raw.opcode, raw.argument)


def _drop_derived_values(code: CodeType, instructions: list[Instruction]) -> None:
    """Forget what is stored under a derived name, whichever instruction loads it."""
    for index, instruction in enumerate(instructions):
        if instruction.opcode != _STORE_NAME or index == 0:
            continue
        if code.co_names[instruction.argument] in _DERIVED_NAMES and _loads_value(
            instructions[index - 1]
        ):
            instructions[index - 1] = Instruction(_NOP, 0)


def _loads_value(instruction: Instruction) -> bool:
    return instruction.has_constant or dis.opname[instruction.opcode] == "LOAD_SMALL_INT"


def _exception_table(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Entries as (start, end, target, depth) in units; the format is in CPython's exception notes."""
    numbers = _numbers(table)
    for start in numbers:
        length, target, depth = next(numbers), next(numbers), next(numbers)
        yield start, start + length, target, depth


def _numbers(table: bytes) -> Iterator[int]:
    """Variable-length numbers: six bits a byte, most significant first, bit 6 says that more follow."""
    value = 0
    for byte in table:
        value = (value << 6) | (byte & 0x3F)
        if not byte & 0x40:
            yield value
            value = 0
