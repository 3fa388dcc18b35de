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
PACKAGE_DAMAGED = "package_damaged"
BUILD_WAITING = "build_waiting"
BUILD_ELSEWHERE = "build_elsewhere"
BUILD_TAKEN_OVER = "build_taken_over"
BUILD_ALONE = "build_alone"
PACKAGE_PULLED = "package_pulled"
PACKAGE_PUSHED = "package_pushed"
REMOTE_TROUBLE = "remote_trouble"
PAUSED = "paused"
RESUMED = "resumed"
POLITENESS_LIMITED = "politeness_limited"
TARGET_BLOCKED = "target_blocked"
WATCH_ARMED = "watch_armed"
WATCH_POLLING = "watch_polling"
WATCH_OVERFLOW = "watch_overflow"
WATCH_GONE = "watch_gone"
WATCH_BACK = "watch_back"
CHANGED = "changed"
CONFIG_RELOADED = "config_reloaded"
CONFIG_REFUSED = "config_refused"
HOOK_FAILED = "hook_failed"
KICKED = "kicked"
PAUSED = "paused"
RESUMED = "resumed"
CONTROL_LISTENING = "control_listening"
CONTROL_FAILED = "control_failed"
STATE_UNWRITABLE = "state_unwritable"
CLOCK_JUMPED = "clock_jumped"
CLOCK_STEADY = "clock_steady"
COLLECTED = "collected"
COLLECTION_FAILED = "collection_failed"
STORE_OVER_LIMIT = "store_over_limit"
STORE_WITHIN_LIMITS = "store_within_limits"
SEED_TAKEN = "seed_taken"
SEED_REFUSED = "seed_refused"
STOPPING = "stopping"
UNEXPECTED = "unexpected"

_PROBLEMS = {
    BUILD_FAILED,
    PACKAGE_WITHDRAWN,
    PACKAGE_DAMAGED,
    SEED_REFUSED,
    TARGET_BLOCKED,
    CONFIG_REFUSED,
    CONTROL_FAILED,
    HOOK_FAILED,
    STATE_UNWRITABLE,
    CLOCK_JUMPED,
    REMOTE_TROUBLE,
    COLLECTION_FAILED,
    STORE_OVER_LIMIT,
    UNEXPECTED,
    WATCH_GONE,
    WATCH_POLLING,
    WATCH_OVERFLOW,
}


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened. ``detail`` is for a person; ``seconds`` is how long it took.

    ``kind``: the stable word of a build's failure. ``processes``: how long the processes of each stage
    (``build``, ``proof``) ran.
    """

    action: str
    target: str | None = None
    environment: str | None = None
    phase: str | None = None
    kind: str | None = None
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
        if self.seconds is not None and self.target:
            parts.append(f"{self.seconds:.1f} s")
        if self.detail:
            parts.append(f"- {self.detail}")
        if self.reasons:
            parts.append(f"- {'; '.join(str(reason) for reason in self.reasons[:3])}")
        return " ".join(parts)


Emit = Callable[[Event], None]

_logger = logging.getLogger("preheatd")


def to_all(*listeners: Emit) -> Emit:
    """Hand each event to all of them, in this order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def log_event(event: Event) -> None:
    """Hand an event to logging; handlers find its fields as ``record.preheat``."""
    level = logging.WARNING if event.is_problem else logging.INFO
    _logger.log(level, "%s", event, extra={"action": event.action, "preheat": event})
