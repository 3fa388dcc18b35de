"""Checks that replace torch's guards on identity: of functions, classes, modules and enum members.

torch compares such values by ``id``, which means nothing in another process. A check is an expression
and a fingerprint of what its value must be.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from preheat.image.fingerprints import Fingerprint, fingerprint, literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_manager: Any = torch._C._dynamo.guards.GuardManager
TRAILING = _manager.add_none_match_guard.__doc__.count("arg")


class Check(msgspec.Struct, frozen=True):
    """An expression over ``L`` (the frame's locals) and ``G`` (its globals), and what it must be.

    ``subject`` says what of the value is compared: ``value`` its fingerprint, ``type`` the
    fingerprint of its type, ``length`` its type and length, ``keys`` its keys in order.
    """

    expression: str
    subject: str
    expected: Fingerprint


class CallChecks:
    """All call-time checks of one variant, as one guard function.

    The first call compares fingerprints; later calls only compare identity with what was accepted
    before, as torch does in one process. Values are kept alive so that identity stays meaningful.
    """

    # How the recorder of guard trees knows that these are not torch's.
    preheat_call_checks = True

    def __init__(self, checks: Sequence[Check], scope: dict[str, Any]) -> None:
        """``scope`` has ``G``, the globals of the code, and the helpers that expressions use."""
        self._global_scope = scope
        self._checks = [
            (check, compile(check.expression, "<preheat guard>", "eval"), _Accepted())
            for check in checks
        ]
        self._is_as_before: Callable[[Any], bool] = _never
        self._attempts = 0

    def __call__(self, local_scope: Any) -> bool:
        try:
            same = self._is_as_before(local_scope)
        except Exception:
            same = False  # the checks one by one say which it was
        if same:
            return True
        if self.failed(local_scope) is not None:
            return False
        if self._attempts < _ATTEMPTS:
            self._attempts += 1
            self._is_as_before = self._comparison(local_scope)
        return True

    def text(self) -> str:
        """For torch's guard logs."""
        return "preheat: " + ", ".join(check.expression for check, _, _ in self._checks[:4])

    def failed(self, local_scope: Any) -> Check | None:
        """The first check that does not hold."""
        scope = {"L": local_scope}
        for check, code, accepted in self._checks:
            try:
                value = eval(code, self._global_scope, scope)  # noqa: S307  recorded in the build
            except Exception:
                return check
            if accepted.holds(value):
                continue
            if not holds(check, value):
                return check
            accepted.add(value)
        return None

    def _comparison(self, local_scope: Any) -> Callable[[Any], bool]:
        """One function that says whether all values are those of a call that passed."""
        conditions, names = [], dict(self._global_scope)
        for number, (check, code, accepted) in enumerate(self._checks):
            value = eval(code, self._global_scope, {"L": local_scope})  # noqa: S307
            name = f"_value_{number}"
            if check.subject == "value" and accepted.holds(value):
                conditions.append(f"({check.expression}) is {name}")
            elif check.subject == "value" and _is_plain(value):
                kind = type(value).__name__
                names[kind] = type(value)
                conditions.append(f"type(_it := ({check.expression})) is {kind} and _it == {name}")
            else:
                return _never
            names[name] = value
        text = "lambda L: " + " and ".join(conditions)
        made: Callable[[Any], bool] = eval(text, names)  # noqa: S307  recorded in the build
        return made


# A program that alternates between values has them compared one by one.
_ATTEMPTS = 4


def _never(_: Any) -> bool:
    return False


def _is_plain(value: object) -> bool:
    """Whether equality says that a value is the same; zeros and numbers that are none have several."""
    return type(value) in (int, str, bool) or (
        type(value) is float and value == value and value != 0
    )


def add_call_checks(root: Any, checks: CallChecks) -> None:
    """Let a guard tree also ask ``checks``, after all of its own guards."""
    root.add_epilogue_lambda_guard(checks, *guard_text([checks.text()]))


def guard_text(text: list[str]) -> tuple[Any, ...]:
    """The arguments that follow a guard's own: its text, and since torch 2.12 a stack."""
    return (text, None)[:TRAILING]


class _Accepted:
    """Values that passed a check, by identity; a few at most."""

    __slots__ = ("_values",)
    _LIMIT = 8

    def __init__(self) -> None:
        self._values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        return any(value is known for known in self._values)

    def add(self, value: Any) -> None:
        # Small numbers and strings are compared again: they are not worth keeping alive, and
        # a mutable value must be compared each time.
        if isinstance(value, (types.FunctionType, types.MethodType, types.CodeType)):
            return self._remember(value)
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return self._remember(value)
        if isinstance(value, torch._library.custom_ops.CustomOpDef):
            return self._remember(value)
        # As torch does: a kernel object is known by identity once it was compared.
        if type(value).__module__.partition(".")[0] == "triton":
            return self._remember(value)
        return None

    def _remember(self, value: Any) -> None:
        self._values = (*self._values[-self._LIMIT + 1 :], value)


def holds(check: Check, value: Any) -> bool:
    """Whether a value is what the build saw."""
    if check.subject == "type":
        return fingerprint(type(value)) == check.expected
    if check.subject == "length":
        return ("length", type(value).__qualname__, len(value)) == check.expected
    if check.subject == "keys":
        return literal(list(value)) == check.expected
    return fingerprint(value) == check.expected
