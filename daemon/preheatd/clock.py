"""The time of day, for records that people read. Durations use monotonic clocks instead."""

from __future__ import annotations

import datetime
import time


def utc_now() -> str:
    """Now in UTC, to the second (ISO 8601)."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# Less than that is a clock that is kept right.
JUMP_SECONDS = 2.0
_READINGS = 10


def offset_seconds() -> float:
    """How far the time of day is ahead of the machine's own clock, which runs on while it sleeps.

    Both clocks cannot be read at once. A process that has to wait in between, on a machine under load or one
    that went to sleep just then, reads them again: else it would take its own wait for a jump.
    """
    for _ in range(_READINGS):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        offset = time.time() - before
        if time.clock_gettime(time.CLOCK_BOOTTIME) - before < JUMP_SECONDS / 4:
            break
    return offset


def jump_seconds(before: float, now: float) -> float:
    """By how much somebody has set the clock between two offsets; 0 when nobody has. Pure."""
    return now - before if abs(now - before) >= JUMP_SECONDS else 0.0
