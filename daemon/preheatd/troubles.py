"""Trouble that a running daemon lives with: what it is, since when, and what to do.

Which event begins a trouble and which one ends it is decided here, without any state. The record that
``preheat status`` reads lies in the daemon's own directory and goes with it.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import msgspec

from preheatd import events, owned

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.state import State

CONFIGURATION_REFUSED = "configuration_refused"
WATCH_POLLING = "watch_polling"
WATCH_GONE = "watch_gone"
PLANNING_FAILED = "planning_failed"
STATE_UNWRITABLE = "state_unwritable"
CLOCK_JUMPED = "clock_jumped"
HOOK_FAILED = "hook_failed"
COLLECTION_FAILED = "collection_failed"
STORE_OVER_LIMIT = "store_over_limit"

# In the order in which they are shown.
KINDS = (
    CONFIGURATION_REFUSED,
    PLANNING_FAILED,
    STATE_UNWRITABLE,
    WATCH_POLLING,
    WATCH_GONE,
    CLOCK_JUMPED,
    HOOK_FAILED,
    COLLECTION_FAILED,
    STORE_OVER_LIMIT,
)
REMEDIES = {
    CONFIGURATION_REFUSED: "It is read again as soon as it changes.",
    PLANNING_FAILED: "The daemon tries again by itself; mend what the message names.",
    STATE_UNWRITABLE: "Free some space, or check the owner of the state directory.",
    WATCH_POLLING: "Raise the limit and restart the daemon.",
    WATCH_GONE: "It is watched again as soon as it is back.",
    CLOCK_JUMPED: "Look after the machine's clock; records from before have other times.",
    HOOK_FAILED: "Correct the command; it runs again after the next build.",
    COLLECTION_FAILED: "Nothing is deleted until it succeeds; mend what the message names.",
    STORE_OVER_LIMIT: "Raise the limit in [collection], or keep fewer targets warm.",
}

_BEGIN = {
    events.CONFIG_REFUSED: CONFIGURATION_REFUSED,
    events.UNEXPECTED: PLANNING_FAILED,
    events.STATE_UNWRITABLE: STATE_UNWRITABLE,
    events.WATCH_POLLING: WATCH_POLLING,
    events.WATCH_GONE: WATCH_GONE,
    events.CLOCK_JUMPED: CLOCK_JUMPED,
    events.HOOK_FAILED: HOOK_FAILED,
    events.COLLECTION_FAILED: COLLECTION_FAILED,
    events.STORE_OVER_LIMIT: STORE_OVER_LIMIT,
}
_END = {
    events.CONFIG_RELOADED: CONFIGURATION_REFUSED,
    events.PLANNED: PLANNING_FAILED,
    # A build in a phase has its directory and its job on the disk.
    events.BUILD_PHASE: STATE_UNWRITABLE,
    events.WATCH_BACK: WATCH_GONE,
    events.CLOCK_STEADY: CLOCK_JUMPED,
    events.COLLECTED: COLLECTION_FAILED,
    events.STORE_WITHIN_LIMITS: STORE_OVER_LIMIT,
    # After each of these the target's command begins anew.
    events.BUILD_PUBLISHED: HOOK_FAILED,
    events.BUILD_FAILED: HOOK_FAILED,
}
_ABOUT_ONE_TARGET = {HOOK_FAILED}

RECORD_BYTES = 16 * 1024
_NAME = "trouble.json"
_LONGEST_DETAIL = 500


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One trouble. ``kind`` is one of ``KINDS``; ``since`` in UTC (ISO 8601)."""

    kind: str
    since: str
    detail: str
    remedy: str = ""
    target: str | None = None

    def __str__(self) -> str:
        words = self.kind.replace("_", " ")
        about = f"{self.target}: {words}" if self.target else words
        return f"{about} since {self.since}: {self.detail} {self.remedy}".strip()


def after(troubles: tuple[Trouble, ...], event: events.Event, at: str) -> tuple[Trouble, ...]:
    """The troubles after an event that happened at ``at``. Pure.

    A trouble that goes on keeps its beginning, and takes the newest detail.
    """
    ended, begun = _END.get(event.action), _BEGIN.get(event.action)
    left = tuple(one for one in troubles if one.kind != ended or not _same_target(one, event))
    if begun is None:
        return left
    target = event.target if begun in _ABOUT_ONE_TARGET else None
    before = next((one for one in left if (one.kind, one.target) == (begun, target)), None)
    new = Trouble(
        kind=begun,
        since=before.since if before else at,
        detail=event.detail[:_LONGEST_DETAIL],
        remedy=REMEDIES[begun],
        target=target,
    )
    return tuple(sorted((*(one for one in left if one is not before), new), key=_place))


def _same_target(trouble: Trouble, event: events.Event) -> bool:
    return trouble.target is None or trouble.target == event.target


def _place(trouble: Trouble) -> tuple[int, str]:
    return KINDS.index(trouble.kind), trouble.target or ""


class Record:
    """The troubles of this process as a file in ``place``, its own directory.

    The file's room is taken at the start and written over in place, so that it can also tell of a disk
    that is full. Writing happens beside everything else. Not promised: that anything is there when the
    disk was full before the start.
    """

    def __init__(self, place: Path) -> None:
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trouble")
        self._descriptor = -1
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(place / _NAME, flags, 0o600)
            self._write(encode(()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.shutdown(wait=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def keep(self, troubles: tuple[Trouble, ...]) -> None:
        """Have these on the disk soon, in place of those from before."""
        self._writer.submit(self._write, encode(troubles))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, data, 0)


def encode(troubles: tuple[Trouble, ...]) -> bytes:
    """The file's content, ``RECORD_BYTES`` long; what does not fit is left out, the last ones first."""
    data = msgspec.json.encode(troubles)
    while len(data) > RECORD_BYTES:
        troubles = troubles[:-1]
        data = msgspec.json.encode(troubles)
    return data.ljust(RECORD_BYTES)


def recorded(state: State) -> dict[int, tuple[Trouble, ...]]:
    """The troubles of each daemon that is alive, by the number of its process."""
    return {owner.pid: _read(path / _NAME) for path, owner in owned.live_directories(state.daemons)}


def _read(path: Path) -> tuple[Trouble, ...]:
    for _ in range(2):  # the first look may come while it is written
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(path.read_bytes(), type=tuple[Trouble, ...])
    return ()
