"""When a burst of changes is over: a pure decision over times and counts.

A single save is acted on after a short quiet time; a storm (a checkout, a formatter over the whole
tree) after a longer one. While version control holds its lock the decision waits, but never for ever: a
lock may be stale. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import dataclasses

QUIET_SINGLE_SECONDS = 0.05
QUIET_STORM_SECONDS = 0.25
QUIET_LARGE_STORM_SECONDS = 0.5
CAP_SECONDS = 5.0
LOCK_LIMIT_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.1

# One save of one file touches up to four names: the file, a temporary, a backup, a directory.
SINGLE_PATHS = 4
LARGE_STORM_PATHS = 500

# What version control creates at the top of a checkout while it rewrites files.
LOCK_FILES = (".git/index.lock", ".hg/wlock", ".jj/working_copy/working_copy.lock")


@dataclasses.dataclass(frozen=True)
class Burst:
    """A burst so far: when its first and its latest event came, and how many paths it touched."""

    first: float
    latest: float
    paths: int


def quiet_seconds(paths: int) -> float:
    """How long nothing may happen before a burst of so many paths counts as over."""
    if paths <= SINGLE_PATHS:
        return QUIET_SINGLE_SECONDS
    return QUIET_STORM_SECONDS if paths < LARGE_STORM_PATHS else QUIET_LARGE_STORM_SECONDS


def seconds_to_wait(burst: Burst, now: float, *, locked: bool) -> float:
    """How long to wait before looking again; 0 means: act now.

    ``locked`` says that version control holds a lock. It delays until ``LOCK_LIMIT_SECONDS`` after
    the first event; events alone delay until ``CAP_SECONDS`` after it.
    """
    age = now - burst.first
    if locked:
        left = LOCK_LIMIT_SECONDS - age
        return min(LOCK_POLL_SECONDS, left) if left > 0 else 0.0
    quiet_left = burst.latest + quiet_seconds(burst.paths) - now
    return max(0.0, min(quiet_left, CAP_SECONDS - age))
