"""What the daemon tells about itself while it works: one kind of record, each with an ``action``."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from preheat.verdict import Reason

# The values of ``Event.action``. Stable words: services filter their logs by them.
READY = "ready"
PLANNED = "planned"
BUILD_QUEUED = "build_queued"
BUILD_STARTED = "build_started"
BUILD_PHASE = "build_phase"
BUILD_SUPERSEDED = "build_superseded"
BUILD_PUBLISHED = "build_published"
BUILD_FAILED = "build_failed"
BUILD_HELD = "build_held"
BUILD_STOPPED = "build_stopped"
PROOF_STARTED = "proof_started"
PROOF_CONFIRMED = "proof_confirmed"
PROOF_STOPPED = "proof_stopped"
PACKAGE_WITHDRAWN = "package_withdrawn"
TARGET_BLOCKED = "target_blocked"
WATCH_ARMED = "watch_armed"
WATCH_POLLING = "watch_polling"
WATCH_OVERFLOW = "watch_overflow"
CHANGED = "changed"
CONFIG_RELOADED = "config_reloaded"
CONFIG_REFUSED = "config_refused"
HOOK_FAILED = "hook_failed"
STOPPING = "stopping"
UNEXPECTED = "unexpected"

_PROBLEMS = {
    BUILD_FAILED,
    PACKAGE_WITHDRAWN,
    TARGET_BLOCKED,
    CONFIG_REFUSED,
    HOOK_FAILED,
    UNEXPECTED,
    WATCH_POLLING,
    WATCH_OVERFLOW,
}


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened. ``detail`` is for a person; ``seconds`` is how long it took,
    ``processes`` how much of that the processes of each stage (``build``, ``proof``) ran."""

    action: str
    target: str | None = None
    environment: str | None = None
    phase: str | None = None
    seconds: float | None = None
    processes: dict[str, float] = {}
    detail: str = ""
    reasons: tuple[Reason, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether a person should look at it."""
        return self.action in _PROBLEMS

    def __str__(self) -> str:
        words = self.action.replace("_", " ")
        parts = [f"{self.target}: {words}" if self.target else words]
        if self.phase:
            parts.append(self.phase)
        if self.seconds is not None:
            parts.append(f"{self.seconds:.1f} s")
        if self.detail:
            parts.append(f"- {self.detail}")
        if self.reasons:
            parts.append(f"- {'; '.join(str(reason) for reason in self.reasons[:3])}")
        return " ".join(parts)


Emit = Callable[[Event], None]

_logger = logging.getLogger("preheatd")


def log_event(event: Event) -> None:
    """Hand an event to logging; handlers find its fields as ``record.preheat``."""
    level = logging.WARNING if event.is_problem else logging.INFO
    _logger.log(level, "%s", event, extra={"action": event.action, "preheat": event})
