"""Writers and the collector take turns, so that nothing is deleted that was just about to be used again.

A writer touches an object that it reuses, and the collector looks at that time before it deletes. What
must not happen is a touch between the look and the deletion: so writers hold a shared lock over the
moments in which they reuse, rename or publish, and the collector holds it alone over each few files that
it looks at once more and deletes. Neither holds it for longer than some milliseconds.

Where locks do not work (some network file systems), everybody goes on without: what is left then is the
grace, and a window of microseconds in which somebody would have to touch what is over a day old.
"""

from __future__ import annotations

import contextlib
import os
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
    with _turn(files, layout, exclusive=True, patience=patience_seconds, sleep=sleep) as mine:
        yield mine


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
