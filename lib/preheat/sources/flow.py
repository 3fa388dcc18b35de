"""The order in which instructions can run, written down so that their layout does not show.

The compiler threads jumps, copies short exits and turns conditions around depending on line breaks.
Here jumps are followed, a condition always names what happens when it holds and when not, and short
exits are written out wherever they are reached. Two layouts of one program give one text.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preheat.sources.bytecode import Instruction

_EXITS = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"})
_GOTO = frozenset(
    {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_NO_INTERRUPT", "JUMP"}
)
# These cannot raise (3.11 has no other operation for locals that may be unbound). The pairs above may
# reach across the end of a ``try``, so whether a handler covers them depends on line breaks.
_NEVER_RAISE = frozenset(
    {"LOAD_FAST", "STORE_FAST", "LOAD_CONST"} if "LOAD_FAST_CHECK" in dis.opmap else ()
)
# CPython copies exits of up to four instructions; twice that is safely above it.
_SHORT_EXIT = 8
_NOWHERE = -1


def _conditions() -> dict[str, tuple[str, bool]]:
    """Operation -> what it asks, and whether it jumps when the answer is yes."""
    table = {}
    for way in ("", "FORWARD_", "BACKWARD_"):
        for suffix, question, jumps in (
            ("TRUE", "true?", True),
            ("FALSE", "true?", False),
            ("NONE", "none?", True),
            ("NOT_NONE", "none?", False),
        ):
            table[f"POP_JUMP_{way}IF_{suffix}"] = (question, jumps)
    return table


_CONDITIONS = _conditions()
_KEEPING = {"JUMP_IF_TRUE_OR_POP": True, "JUMP_IF_FALSE_OR_POP": False}


def written(code: Sequence[Instruction], tokens: Sequence[bytes]) -> Sequence[bytes]:
    """The tokens in the order of a walk from the first instruction; ``tokens[i]`` says ``code[i]``.

    Promised: equal texts mean equal behaviour, given equal tokens. Not promised: that every two
    layouts which behave the same give the same text.
    """
    if not any(one.target is not None or one.handler is not None for one in code):
        return tokens  # most functions run straight through
    return _Walk(code, tokens).run()


class _Walk:
    def __init__(self, code: Sequence[Instruction], tokens: Sequence[bytes]) -> None:
        self._code = code
        self._tokens = tokens
        self._real = [
            self._follow(index) if one.operation in _GOTO else index
            for index, one in enumerate(code)
        ]
        self._real.append(_NOWHERE)
        self._short = self._short_exits()
        for one in code:
            if one.handler is not None:  # one for many instructions: never written out again
                self._short[self._real[one.handler[0]]] = 0

    def run(self) -> list[bytes]:
        code, tokens, real, short = self._code, self._tokens, self._real, self._short
        written: list[bytes] = []
        numbers: dict[int, int] = {}
        stack: list[int] = [0]
        covered: tuple[int, int] | None = None
        behind: int | None = None
        while stack:
            index = real[stack.pop()]
            if index == _NOWHERE:
                written.append(b"forever")
                continue
            if not short[index]:
                if index in numbers:
                    written.append(b"@%d" % numbers[index])
                    continue
                numbers[index] = len(numbers)
            operation, _, _, target, _, _, handler = code[index]
            if handler != covered and operation not in _NEVER_RAISE:
                covered = handler
                written.append(b"!" if handler is None else b"!%d" % handler[1])
                if handler is not None:
                    behind = handler[0]
            if target is not None:
                self._branch(index, target, written, stack)
            else:
                written.append(tokens[index])
                if operation not in _EXITS:
                    stack.append(index + 1)
            if behind is not None:
                stack.append(behind)
                behind = None
        return written

    def _branch(self, index: int, target: int, written: list[bytes], stack: list[int]) -> None:
        """Write a condition down, and what follows where it holds before what follows where not."""
        operation = self._code[index].operation
        condition = _CONDITIONS.get(operation)
        if operation in _KEEPING:
            condition, target = self._keeping(index, target)
        written.append(self._tokens[index] if condition is None else condition[0].encode())
        if condition is None or condition[1]:
            stack += (index + 1, target)
        else:
            stack += (target, index + 1)

    def _keeping(self, index: int, target: int) -> tuple[tuple[str, bool], int]:
        """Where ``a and b`` goes at last, with the value kept or dropped there (3.11)."""
        answer = _KEEPING[self._code[index].operation]
        while self._real[target] not in (_NOWHERE, index):
            index = self._real[target]
            one = self._code[index]
            if one.target is None:
                break
            if one.operation in _CONDITIONS and _CONDITIONS[one.operation][0] == "true?":
                jumps = _CONDITIONS[one.operation][1] is answer
                return ("true?", answer), one.target if jumps else index + 1
            if one.operation not in _KEEPING:
                break
            if _KEEPING[one.operation] is not answer:
                return ("true?", answer), index + 1
            target = one.target
        return (f"true, keep {answer}?", answer), target

    def _follow(self, index: int) -> int:
        """The instruction that really runs next: jumps without a condition are not steps."""
        seen = set()
        while index < len(self._code) and self._code[index].operation in _GOTO:
            target = self._code[index].target
            if index in seen or target is None:
                return _NOWHERE
            seen.add(index)
            index = target
        return index if index < len(self._code) else _NOWHERE

    def _short_exits(self) -> list[int]:
        """For each instruction, the steps to the exit if those are few and branch nowhere, else 0."""
        code, real = self._code, self._real
        steps = [1 if one.operation in _EXITS else 0 for one in code] + [0]
        marked = [index for index, count in enumerate(steps) if count]
        before: dict[int, list[int]] = {}  # exit -> jumps that lead to it
        for index, one in enumerate(code):
            if one.operation in _GOTO and real[index] != _NOWHERE:
                before.setdefault(real[index], []).append(index)
        while marked:
            index = marked.pop()
            if steps[index] >= _SHORT_EXIT:
                continue
            for place in (index, *before.get(index, ())):
                earlier = place - 1
                if earlier >= 0 and not steps[earlier] and code[earlier].target is None:
                    steps[earlier] = steps[index] + 1
                    marked.append(earlier)
        return steps
