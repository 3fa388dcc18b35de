"""The time of day, for records that people read. Durations use monotonic clocks instead."""

from __future__ import annotations

import datetime
import time


def utc_now() -> str:
    """Now in UTC, to the second (ISO 8601)."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# Less than that is a clock that is kept right.
JUMP_SECONDS = 2.0


def offset_seconds() -> float:
    """How far the time of day is ahead of the machine's own clock, which runs on while it sleeps."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def jump_seconds(before: float, now: float) -> float:
    """By how much somebody has set the clock between two offsets; 0 when nobody has. Pure."""
    return now - before if abs(now - before) >= JUMP_SECONDS else 0.0
