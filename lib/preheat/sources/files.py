"""Digests of files on disk, remembered while the files stay as they are."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from preheat.sources.digest import module_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheat.manifest import Digest

# Not a digest, so it equals none: the file is there and cannot be read.
UNREADABLE = "unreadable"

LARGE_BYTES = 64 * 1024 * 1024
_SAMPLE_BYTES = 1024 * 1024
_SAMPLES = 32
_SAMPLED_PREFIX = b"preheat sampled file 1\0"

# Filesystem times are coarse (up to 2 s): a second edit of the same size within that time may leave
# all of a file's times as they were.
SETTLE_NS = 2_000_000_000

_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class _Stamp:
    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int
    device: int

    @property
    def newest_ns(self) -> int:
        return max(self.mtime_ns, self.ctime_ns)


@dataclass(slots=True)
class _Entry:
    stamp: _Stamp
    values: dict[str, Digest] = field(default_factory=dict)


class FileDigests:
    """Digests of files by path. A file is read again only when its times, size or inode changed.

    An answer is remembered only if the file had been left alone for two seconds when it was read. All
    methods answer None for what is no regular file (missing included) and ``UNREADABLE`` for one that
    cannot be read. Safe to use from several threads. Not promised: noticing writes through a shared
    memory mapping before the kernel stamps the file.
    """

    def __init__(self, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._entries: dict[Path, _Entry] = {}

    def sha256(self, path: Path) -> Digest | None:
        """sha256 of the file's bytes."""
        return self._digest(path, "sha256", _whole)

    def module(self, path: Path) -> Digest | None:
        """``module_digest`` of the file's bytes."""
        return self._digest(path, "module", lambda file, _: module_digest(file.read()))

    def data(self, path: Path) -> Digest | None:
        """``data_digest`` of the file."""
        return self._digest(path, "data", _data)

    def size(self, path: Path) -> int:
        """Size in bytes, 0 for a file that is not there."""
        found = _stamp_of(path)
        return 0 if found is None else found.size

    def _digest(
        self, path: Path, kind: str, compute: Callable[[io.BufferedReader, int], Digest]
    ) -> Digest | None:
        stamp = _stamp_of(path)
        if stamp is None:
            self._entries.pop(path, None)
            return None
        entry = self._entries.get(path)
        if entry is not None and entry.stamp == stamp and kind in entry.values:
            return entry.values[kind]
        return self._read(path, kind, compute)

    def _read(
        self, path: Path, kind: str, compute: Callable[[io.BufferedReader, int], Digest]
    ) -> Digest | None:
        now_ns = self._clock_ns()
        try:
            with path.open("rb") as file:
                before = _stamp(os.fstat(file.fileno()))
                value = compute(file, before.size)
                after = _stamp(os.fstat(file.fileno()))
        except _GONE:
            return None
        except OSError:
            return UNREADABLE
        if before == after and before.newest_ns + SETTLE_NS <= now_ns:
            self._remember(path, before, kind, value)
        else:
            self._entries.pop(path, None)
        return value

    def _remember(self, path: Path, stamp: _Stamp, kind: str, value: Digest) -> None:
        entry = self._entries.get(path)
        if entry is None or entry.stamp != stamp:
            entry = self._entries[path] = _Entry(stamp)
        entry.values[kind] = value


def data_digest(path: Path) -> Digest | None:
    """The digest of a data file: sha256 of its bytes, up to ``LARGE_BYTES``.

    A larger file is digested by its size and 32 MiB of samples from start to end: such files are
    weights, which are inputs and never part of a package, and a worker cannot read gigabytes before
    its first call. Not promised: noticing an edit between the samples that keeps the size.
    """
    return FileDigests().data(path)


def _whole(file: io.BufferedReader, _size: int) -> Digest:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _data(file: io.BufferedReader, size: int) -> Digest:
    if size <= LARGE_BYTES:
        return _whole(file, size)
    hasher = hashlib.sha256(_SAMPLED_PREFIX + str(size).encode())
    for index in range(_SAMPLES):
        file.seek(index * (size - _SAMPLE_BYTES) // (_SAMPLES - 1), io.SEEK_SET)
        hasher.update(file.read(_SAMPLE_BYTES))
    return hasher.hexdigest()


def _stamp_of(path: Path) -> _Stamp | None:
    with contextlib.suppress(OSError, ValueError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return _stamp(found)
    return None


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
