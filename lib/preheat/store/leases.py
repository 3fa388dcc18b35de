"""A reader's lease: while a process has a package loaded, no collector deletes it.

A lease is a shared lock of flock(2) on the manifest that the reader has opened. It needs permission to
read and nothing else, works on a file system that is mounted for reading only, writes nothing, and ends
with the process, however that ends. Processes that are forked from the reader share it: it ends with the
last of them.

Not promised: a lease where the file system has no such locks, or between hosts. There the age of the
last use decides alone (``docs/store.md``).
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from preheat.errors import PreheatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheat.manifest import Digest, Manifest, Ref
    from preheat.store.files import Files
    from preheat.store.protocol import Store
    from preheat.store.reading import Reader

# Whoever owns a manifest marks it as used, at most so often.
MARK_SECONDS = 3600.0
# A collector that only asks whether there is a lease has the lock for microseconds.
_TRIES = 3
_BETWEEN_TRIES_SECONDS = 0.001


class _Hold:
    """The lock on one manifest in this process, for as long as any lease has it."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self.descriptor = descriptor

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._files.close(self.descriptor)


class Lease:
    """One lease; dropping it ends it. ``held`` is false where locks do not work.

    A package that is leased several times stays until the last of the leases has ended.
    """

    def __init__(self, hold: _Hold | None) -> None:
        self._hold = hold

    @property
    def held(self) -> bool:
        return self._hold is not None

    def has(self, descriptor: int) -> bool:
        """Whether this descriptor is its own."""
        return self._hold is not None and self._hold.descriptor == descriptor

    def release(self) -> None:
        """End it. May be repeated."""
        self._hold = None


# One descriptor for each package, however often it is loaded. By device and inode, which stay those of
# this file as long as a lease has it open.
_holds: weakref.WeakValueDictionary[tuple[int, int], _Hold] = weakref.WeakValueDictionary()


def take(files: Files, reader: Reader, path: Path) -> Lease | None:
    """Lease the manifest at ``path``; None when it is gone or being deleted. Waits 2 ms at most.

    Never raises: whatever is in the way, such as no descriptor left, gives a lease that is not held.
    """
    try:
        opened = reader.open(path)
    except (PreheatError, OSError):
        return Lease(None)
    if opened is None:
        return None
    descriptor = opened[0]
    lease: Lease | None = None
    try:
        lease = _take(files, descriptor)
    except OSError:
        lease = Lease(None)
    finally:
        if lease is None or not lease.has(descriptor):
            with contextlib.suppress(OSError):
                files.close(descriptor)
    return lease


def _take(files: Files, descriptor: int) -> Lease | None:
    status = files.fstat(descriptor)
    key = status.st_dev, status.st_ino
    hold = _holds.get(key)
    if hold is None:
        locked = _lock(files, descriptor)
        if locked is False or not files.fstat(descriptor).st_nlink:
            return None
        if locked:
            hold = _holds[key] = _Hold(files, descriptor)
    elif not status.st_nlink:
        return None
    mark(files, descriptor, status)
    return Lease(hold)


def _lock(files: Files, descriptor: int) -> bool | None:
    """Whether the lock is ours; None where there are none."""
    try:
        for number in range(_TRIES):
            if number:
                time.sleep(_BETWEEN_TRIES_SECONDS)
            if files.try_lock(descriptor, exclusive=False):
                return True
    except OSError:
        return None
    return False


def mark(
    files: Files,
    descriptor: int,
    status: os.stat_result,
    now: Callable[[], float] = time.time,
) -> bool:
    """Note in the manifest's modification time that it was used, if it is ours and that is news.

    Never raises; says whether it was noted. Readers of other accounts cannot, and need not: see
    ``docs/store.md`` for what tells of their loads.
    """
    age = now() - status.st_mtime
    if status.st_uid != os.geteuid() or 0 <= age < MARK_SECONDS:
        return False
    try:
        files.touch(descriptor)
    except OSError:
        return False
    return True


class LeasedPackage(NamedTuple):
    """What ``Store.read_package`` gives, and the lease; None where the store has none."""

    ref: Ref
    manifest: Manifest
    lease: Lease | None


def read_leased(store: Store, target: str, environment: Digest) -> LeasedPackage | None:
    """The package of a target with a lease on it. Raises as ``Store.read_package`` does.

    A collector that deletes the package at this very moment makes it be read once more.
    """
    take_lease: Callable[[Digest], Lease | None] | None = getattr(store, "lease", None)
    for attempt in range(2):
        found = store.read_package(target, environment)
        if found is None:
            return None
        lease = take_lease(found[0].manifest) if take_lease else None
        if lease is not None or take_lease is None or attempt:
            return LeasedPackage(*found, lease)
    raise AssertionError  # the last attempt returns
