"""Directories that live as long as the process that made them.

A directory ``<parent>/<id>`` belongs to whoever holds the file lock ``<parent>/<id>.lock``. A process
that dies, by whatever signal, lets go of the lock; the next one to look removes the directory, and
ends the process groups that it had started and left behind.

Not promised: anything between hosts that share the directory over a network file system without locks.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.limits import MAX_RECORD_BYTES, decode_json, read_limited
from preheatd.abandoned import end_groups
from preheatd.later import later

if TYPE_CHECKING:
    from collections.abc import Iterator

    import filelock
else:
    # Commands that only look at packages never lock anything.
    filelock = later("filelock")

_INFO_NAME = "owner.json"
# A lock without its directory, for so long, is nobody's any more.
_STRAY_SECONDS = 60.0


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who made a directory and what for; ``started_at`` in UTC (ISO 8601).

    ``configuration``: the file that a daemon serves; ``control``: the socket where it listens.
    """

    pid: int
    purpose: str
    started_at: str
    target: str = ""
    environment: str = ""
    configuration: str = ""
    control: str = ""


class OwnedDirectory:
    """A directory of this process. A context manager: it is removed at the end."""

    def __init__(self, parent: Path, owner: Owner) -> None:
        self._id = f"{owner.purpose}-{owner.pid}-{secrets.token_hex(6)}"
        self.path = parent / self._id
        self._owner = owner
        self._lock = filelock.FileLock(parent / f"{self._id}.lock", timeout=0, thread_local=False)

    def __enter__(self) -> Path:
        # The lock comes first: a directory without one is free to be removed.
        self._lock.acquire()
        try:
            self.path.mkdir(mode=0o700)
            (self.path / _INFO_NAME).write_bytes(msgspec.json.encode(self._owner))
        except OSError:
            self.__exit__()
            raise
        return self.path

    def note(self, owner: Owner) -> None:
        """From now on this is what is said about its owner; a reader sees the old or the new, whole."""
        temporary = self.path / f".{_INFO_NAME}"
        temporary.write_bytes(msgspec.json.encode(owner))
        temporary.replace(self.path / _INFO_NAME)

    def __exit__(self, *exception: object) -> None:
        _remove(self.path)
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


def live_owners(parent: Path) -> Iterator[Owner]:
    """The owners below ``parent`` that are alive, this process included."""
    return (owner for _, owner in live_directories(parent))


def live_directories(parent: Path) -> Iterator[tuple[Path, Owner]]:
    """The same with their directories."""
    for path in _directories(parent):
        lock = filelock.FileLock(f"{path}.lock", timeout=0)
        try:
            with lock:
                continue  # nobody holds it: a dead owner's
        except (filelock.Timeout, OSError):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                yield path, decode_json(read_limited(path / _INFO_NAME, MAX_RECORD_BYTES), Owner)


def sweep(parent: Path) -> int:
    """Remove the directories of dead owners and end what they left running. Says how many."""
    removed = 0
    for path in _directories(parent):
        lock = filelock.FileLock(f"{path}.lock", timeout=0)
        with contextlib.suppress(filelock.Timeout, OSError), lock:
            end_groups(path)
            _remove(path)
            Path(lock.lock_file).unlink(missing_ok=True)
            removed += 1
    _sweep_locks(parent)
    return removed


def _sweep_locks(parent: Path) -> None:
    """An owner that was killed before it made its directory, or was looked at in its end, leaves one."""
    for path in parent.glob("*.lock"):
        with contextlib.suppress(filelock.Timeout, OSError):
            if path.with_suffix("").is_dir() or time.time() - path.stat().st_mtime < _STRAY_SECONDS:
                continue
            with filelock.FileLock(path, timeout=0):
                path.unlink(missing_ok=True)


def _directories(parent: Path) -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if entry.is_dir())
    except (FileNotFoundError, PermissionError):
        return []  # nothing, or nothing that this account may see


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
