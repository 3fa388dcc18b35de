"""What has happened: one JSON object a line, in the state directory.

Kept are the events that somebody may ask about later: how builds ended, trouble, changes of the
configuration. Not kept: phases, plans and touched files. At most ``2 * MAX_BYTES`` are on the disk.

Not promised: that every event is there. A line that cannot be written is lost, and the daemon goes on.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import msgspec

from preheat.limits import decode_json, read_limited
from preheatd import events
from preheatd.clock import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preheatd.state import State

MAX_BYTES = 1024 * 1024
_PASSING = {
    events.BUILD_PHASE,
    events.BUILD_QUEUED,
    events.BUILD_STARTED,
    events.CHANGED,
    events.PLANNED,
    events.PROOF_STARTED,
    events.PROOF_STOPPED,
}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One event, and when it was: ``at`` in UTC (ISO 8601)."""

    at: str
    event: events.Event


class History:
    """Appends events to the file of a state directory, in their order and beside everything else.

    ``emit`` is where they go on to. A context manager: at the end everything is written.
    """

    def __init__(
        self,
        state: State,
        emit: events.Emit = lambda event: None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._path = _path(state)
        self._emit = emit
        self._max_bytes = max_bytes
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")

    def heard(self, event: events.Event) -> None:
        """Keep an event, if it is of a kind that is kept, and hand it on."""
        self._emit(event)
        if event.action not in _PASSING:
            entry = Entry(at=utc_now(), event=event)
            self._writer.submit(self._append, msgspec.json.encode(entry) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown(wait=True)

    def _append(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._rotate(len(line))
            # One write: lines of several daemons do not run into each other.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def _rotate(self, more: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + more > self._max_bytes:
                self._path.replace(_older(self._path))


def last_entries(state: State, count: int) -> tuple[Entry, ...]:
    """The last ``count`` entries, oldest first. Lines that cannot be read are left out."""
    return tuple(_all_entries(state)[-count:])


def last_build_seconds(state: State) -> dict[str, float]:
    """How long the last build of each target took that was published, as far back as the history goes."""
    return {
        entry.event.target: entry.event.seconds
        for entry in _all_entries(state)
        if entry.event.action == events.BUILD_PUBLISHED
        and entry.event.target is not None
        and entry.event.seconds is not None
        and not entry.event.detail  # what was returned to was not built
    }


def _all_entries(state: State) -> list[Entry]:
    path = _path(state)
    return [*_entries(_older(path)), *_entries(path)]


def history_files(state: State) -> tuple[Path, ...]:
    """Where the entries lie, oldest first. One or both may not be there."""
    path = _path(state)
    return _older(path), path


def is_entry(line: bytes) -> bool:
    """Whether a line can be read."""
    try:
        msgspec.json.decode(line, type=Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _entries(path: Path) -> Iterator[Entry]:
    try:
        # A line more than is kept may have come from each of several daemons.
        lines = read_limited(path, 4 * MAX_BYTES).splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            yield decode_json(line, Entry)


def _path(state: State) -> Path:
    return state.path / "history.jsonl"


def _older(path: Path) -> Path:
    return path.with_suffix(".1.jsonl")
