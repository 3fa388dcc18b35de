"""What a code object's instructions say, apart from where they stand and how they are packed.

Reads only what every supported Python (3.11 to 3.14) documents or keeps stable: two-byte units in
``co_code`` (which is free of specialisation), ``EXTENDED_ARG``, relative jumps, and the variable-length
exception table. Instructions that one release packs into one, and another into two, come out as two.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_CACHE = 0
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_CONSTANT = frozenset(dis.hasconst)
_NAME = frozenset(dis.hasname)
_LOCAL = frozenset({*dis.haslocal, *dis.hasfree})
_JUMP = frozenset(dis.hasjrel)
_BACKWARD = frozenset(op for op in _JUMP if "JUMP_BACKWARD" in dis.opname[op])
_SKIPPED = frozenset(
    dis.opmap[name] for name in ("CACHE", "NOP", "RESUME", "NOT_TAKEN") if name in dis.opmap
)

# Low bits of the argument that are flags, by release: bit 0 of LOAD_GLOBAL asks for a NULL to call.
_FLAG_BITS = {dis.opmap["LOAD_GLOBAL"]: 1}
if "LOAD_METHOD" not in dis.opmap or dis.opmap["LOAD_METHOD"] > 255:  # 3.12: part of LOAD_ATTR
    _FLAG_BITS[dis.opmap["LOAD_ATTR"]] = 1
if "LOAD_SUPER_ATTR" in dis.opmap:
    _FLAG_BITS[dis.opmap["LOAD_SUPER_ATTR"]] = 2

# Pairs of operations on two locals with four bits each (3.13, 3.14).
_PAIRS = {
    dis.opmap[name]: parts
    for name, parts in {
        "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
        "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
        "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    }.items()
    if name in dis.opmap
}
_LOCAL |= _PAIRS.keys()
_SMALL_INT = dis.opmap.get("LOAD_SMALL_INT", -1)
_RETURN_CONST = dis.opmap.get("RETURN_CONST", -1)
# Whether a local is borrowed is the compiler's finding, not the program's text.
_SAME = {"LOAD_FAST_BORROW": "LOAD_FAST"}
_NAMES = tuple(_SAME.get(name, name) for name in dis.opname)

# Written by the compiler into class bodies: a docstring, a line number, and a summary of the methods
# whose order may depend on the hash seed (3.13). None of them decides what the class does.
_DERIVED_NAMES = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})


class Instruction(NamedTuple):
    """One operation.

    ``target``: for jumps, the index of the instruction that is jumped to. ``name``: for operations on a
    global, an attribute or a local. ``constant`` is meant only where ``has_constant``; ``argument`` is
    what else the operation is told. ``handler``: the index of the exception handler and its depth.
    """

    operation: str
    argument: int = 0
    name: str | None = None
    target: int | None = None
    has_constant: bool = False
    constant: Any = None
    handler: tuple[int, int] | None = None


_Part = tuple[str, int, "str | None", bool, Any]


def instructions(code: CodeType) -> list[Instruction]:
    """The instructions without caches, no-ops and what the compiler derives from positions.

    A target may equal the length of the list only in code that nothing ever reaches.
    """
    parts, index_of, jumps = _parts(code)
    _drop_derived(parts)
    handlers: dict[int, tuple[int, int]] = {}
    for start, end, target, depth in _exception_table(code.co_exceptiontable):
        handler = (index_of[target], depth)
        handlers.update(dict.fromkeys(range(index_of[start], index_of[end]), handler))
    if not jumps and not handlers:
        return [_instruction((*part[:3], None, *part[3:], None)) for part in parts if part[0]]
    places, count = [], 0
    for part in parts:
        places.append(count)
        count += part[0] != _DROPPED
    places.append(count)
    result: list[Instruction] = []
    for index, (operation, argument, name, has_constant, constant) in enumerate(parts):
        if operation == _DROPPED:
            continue
        unit, covered = jumps.get(index), handlers.get(index)
        goal = None if unit is None else places[index_of[unit]]
        behind = None if covered is None else (places[covered[0]], covered[1])
        one = (operation, argument, name, goal, has_constant, constant, behind)
        result.append(_instruction(one))
    return result


def _instruction(fields: tuple[Any, ...]) -> Instruction:
    # Much faster than the constructor, and there are thousands in a file.
    return tuple.__new__(Instruction, fields)


_DROPPED = ""
_OTHER, _SKIP, _EXTEND, _A_CONSTANT, _A_NAME, _A_LOCAL, _A_JUMP, _SPECIAL = range(8)


def _kinds() -> list[int]:
    kinds = [_OTHER] * 256
    for kind, opcodes in (
        (_A_CONSTANT, _CONSTANT),
        (_A_NAME, _NAME),
        (_A_LOCAL, _LOCAL),
        (_A_JUMP, _JUMP),
        (_SKIP, _SKIPPED),
        (_EXTEND, {_EXTENDED_ARG}),
        (_SPECIAL, {_SMALL_INT, _RETURN_CONST, *_PAIRS}),
    ):
        for opcode in opcodes:
            if 0 <= opcode < 256:  # larger ones are the compiler's own and never in code
                kinds[opcode] = kind
    return kinds


_KINDS = _kinds()


def _parts(code: CodeType) -> tuple[list[_Part], list[int], dict[int, int]]:
    """The operations; for each two-byte unit the index of the operation at or after it; and for jumps
    the unit that they lead to."""
    units = code.co_code
    count = len(units) // 2
    names, constants, variables = code.co_names, code.co_consts, code.co_varnames
    parts: list[_Part] = []
    index_of: list[int] = []
    jumps: dict[int, int] = {}
    extended = 0
    for unit, (opcode, low) in enumerate(zip(units[::2], units[1::2], strict=True)):
        kind = _KINDS[opcode]
        index_of.append(len(parts))
        if kind == _SKIP:
            extended = 0
            continue
        argument = low | extended
        if kind == _EXTEND:
            extended = argument << 8
            continue
        extended = 0
        if kind == _A_LOCAL and argument < len(variables):
            parts.append((_NAMES[opcode], 0, variables[argument], False, None))
        elif kind == _A_CONSTANT:
            parts.append((_NAMES[opcode], 0, None, True, constants[argument]))
        elif kind == _A_NAME:
            bits = _FLAG_BITS.get(opcode, 0)
            flags = argument & ((1 << bits) - 1)
            parts.append((_NAMES[opcode], flags, names[argument >> bits], False, None))
        elif kind == _OTHER:
            parts.append((_NAMES[opcode], argument, None, False, None))
        elif kind == _A_JUMP:
            after = unit + 1
            while after < count and units[2 * after] == _CACHE:
                after += 1
            jumps[len(parts)] = after + (-argument if opcode in _BACKWARD else argument)
            parts.append((_NAMES[opcode], 0, None, False, None))
        else:
            _add_part(code, opcode, argument, parts)
    index_of.append(len(parts))
    return parts, index_of, jumps


def _add_part(code: CodeType, opcode: int, argument: int, parts: list[_Part]) -> None:
    if opcode == _SMALL_INT:
        parts.append(("LOAD_CONST", 0, None, True, argument))
    elif opcode == _RETURN_CONST:
        parts.append(("LOAD_CONST", 0, None, True, code.co_consts[argument]))
        parts.append(("RETURN_VALUE", 0, None, False, None))
    elif opcode in _PAIRS:
        first, second = _PAIRS[opcode]
        parts.append((first, 0, _local(code, argument >> 4), False, None))
        parts.append((second, 0, _local(code, argument & 15), False, None))
    else:
        parts.append((_NAMES[opcode], 0, _local(code, argument), False, None))


def _local(code: CodeType, index: int) -> str:
    """Of variables, cells that are no arguments, and free variables, in this order."""
    if index < len(code.co_varnames):
        return code.co_varnames[index]
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return (*cells, *code.co_freevars)[index - len(code.co_varnames)]


def _drop_derived(parts: list[_Part]) -> None:
    """Forget what is stored under a derived name, and that it is stored."""
    for index in range(1, len(parts)):
        if parts[index][0] == "STORE_NAME" and parts[index][2] in _DERIVED_NAMES:
            if parts[index - 1][3]:
                parts[index - 1] = parts[index] = (_DROPPED, 0, None, False, None)


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
