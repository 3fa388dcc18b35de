"""The time of day, for records that people read. Durations use monotonic clocks instead."""

from __future__ import annotations

import datetime


def utc_now() -> str:
    """Now in UTC, to the second (ISO 8601)."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
