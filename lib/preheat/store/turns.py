"""Writers and the collector take turns, so that nothing is deleted that was just about to be used again.

A writer touches an object that it reuses, and the collector looks at that time before it deletes. What
must not happen is a touch between the look and the deletion: so writers hold a shared lock over the
moments in which they reuse, rename or publish, and the collector holds it alone over each few files that
it looks at once more and deletes. Neither holds it for longer than some milliseconds.

Shared turns that overlap would keep a collector waiting for ever, so a collector that waits holds a second
lock, the gate, and a writer that comes then lets it go first. That is a courtesy and has an end: what keeps
both apart is the first lock alone.

Where locks do not work (some network file systems), everybody goes on without: what is left then is the
grace, and a window of microseconds in which somebody would have to touch what is over a day old.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from preheat.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheat.store.files import Files
    from preheat.store.layout import Layout

# Far longer than anybody holds it. Beyond that somebody is stopped with the lock in its hands.
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.002
# Longer than the writers that are at it need; a collector that was stopped at the gate delays no more.
COURTESY_SECONDS = 2.0
_TRIES = 50


@contextlib.contextmanager
def writers_turn(
    files: Files,
    layout: Layout,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Inside, the collector deletes nothing. Shared with other writers, and by nested turns of one.

    Raises ``StoreError`` when a collector does not let go for ``patience_seconds``.
    """
    inner, _inside.depth = _inside.depth, _inside.depth + 1
    try:
        if not inner:  # else it is this thread that the collector waits for
            _let_go_first(files, layout, sleep)
        with _shared(files, layout, patience_seconds, sleep):
            yield
    finally:
        _inside.depth = inner


class _Inside(threading.local):
    """How many turns of writers this thread is in."""

    depth = 0


_inside = _Inside()


@contextlib.contextmanager
def _shared(
    files: Files, layout: Layout, patience_seconds: float, sleep: Callable[[float], None]
) -> Iterator[None]:
    with _turn(files, layout, exclusive=False, patience=patience_seconds, sleep=sleep) as mine:
        if not mine:
            raise StoreError(
                f"{layout.turns_lock} has been held by a collection for {patience_seconds:g} s.",
                remedy="Continue or end the stopped process, then try again.",
            )
        yield


@contextlib.contextmanager
def collectors_turn(
    files: Files,
    layout: Layout,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Inside, if it gives true, no writer reuses, renames or publishes."""
    gate = open_lock(files, _gate(layout))
    try:
        if gate is not None:
            _announce(files, gate, sleep)
        with _turn(files, layout, exclusive=True, patience=patience_seconds, sleep=sleep) as mine:
            yield mine
    finally:
        if gate is not None:
            files.close(gate)


def _gate(layout: Layout) -> Path:
    return layout.turns_lock.with_name("turns-gate.lock")


def _announce(files: Files, gate: int, sleep: Callable[[float], None]) -> None:
    for _ in range(_TRIES):  # a writer that just passes the gate has it for microseconds
        if _try(files, gate, exclusive=True):
            return
        sleep(_POLL_SECONDS)


def _let_go_first(files: Files, layout: Layout, sleep: Callable[[float], None]) -> None:
    gate = open_lock(files, _gate(layout))
    if gate is None:
        return
    try:
        deadline = time.monotonic() + COURTESY_SECONDS
        while not _try(files, gate, exclusive=False) and time.monotonic() < deadline:
            sleep(_POLL_SECONDS)
    finally:
        files.close(gate)


@contextlib.contextmanager
def _turn(
    files: Files,
    layout: Layout,
    *,
    exclusive: bool,
    patience: float,
    sleep: Callable[[float], None],
) -> Iterator[bool]:
    descriptor = open_lock(files, layout.turns_lock)
    if descriptor is None:
        yield True
        return
    try:
        deadline = time.monotonic() + patience
        while not (mine := _try(files, descriptor, exclusive=exclusive)):
            if time.monotonic() >= deadline:
                break
            sleep(_POLL_SECONDS)
        yield mine
    finally:
        files.close(descriptor)


def open_lock(files: Files, path: Path) -> int | None:
    """A descriptor to lock; None where there can be none.

    The file is the writers' alone: whoever could open it could lock it, and hold them up.
    """
    try:
        descriptor = files.open_lock(path)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        owner = files.lstat(path.parent)
        if os.geteuid() == 0 and owner.st_uid != files.fstat(descriptor).st_uid:
            files.fchown(descriptor, owner.st_uid, owner.st_gid)  # root was here before the owner
    return descriptor


def _try(files: Files, descriptor: int, *, exclusive: bool) -> bool:
    try:
        return files.try_lock(descriptor, exclusive=exclusive)
    except OSError:
        return True  # no locks here
