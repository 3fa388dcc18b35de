"""What a worker does when no package covers it."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Literal, get_args

from preheat.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preheat.verdict import Reason

OnMiss = Literal["compile", "eager", "error", "wait"]
DEFAULT: OnMiss = "compile"
DEFAULT_WAIT_SECONDS = 600.0


class PreheatWarning(UserWarning):
    """A worker goes on without a package; the text says why."""


def resolve_on_miss(argument: str | None) -> OnMiss:
    """The policy: the argument, else ``PREHEAT_ON_MISS``, else ``compile``.

    Raises ``ConfigurationError`` for another word.
    """
    word = argument if argument is not None else os.environ.get("PREHEAT_ON_MISS") or DEFAULT
    for known in get_args(OnMiss):
        if word == known:
            policy: OnMiss = known
            return policy
    where = "on_miss" if argument is not None else "PREHEAT_ON_MISS"
    raise ConfigurationError(
        f"{where} is {word!r}.", remedy=f"Choose one of {', '.join(get_args(OnMiss))}."
    )


def resolve_wait_seconds(argument: float | None) -> float:
    """How long ``wait`` waits: the argument, else ``PREHEAT_WAIT_SECONDS``, else 600 seconds."""
    if argument is not None:
        return float(argument)
    text = os.environ.get("PREHEAT_WAIT_SECONDS")
    try:
        return float(text) if text else DEFAULT_WAIT_SECONDS
    except ValueError as error:
        raise ConfigurationError(
            f"PREHEAT_WAIT_SECONDS is {text!r}.", remedy="Give a number of seconds."
        ) from error


_said: set[tuple[str, str]] = set()


def say_once(target: str, what: str, reasons: Iterable[Reason]) -> None:
    """Warn about a target and its reasons, once a process for the same text."""
    why = "; ".join(str(reason) for reason in reasons) or "no reason is known"
    text = f"preheat: target {target!r} {what}: {why}"
    if (target, text) in _said:
        return
    _said.add((target, text))
    warnings.warn(text, PreheatWarning, stacklevel=4)
