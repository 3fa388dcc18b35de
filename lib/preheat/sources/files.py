"""Digests of files on disk, remembered while the files stay as they are."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from preheat.garbage import without_collector
from preheat.sources.digest import NOT_A_PROGRAM, compiled, exact_digest, module_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path
    from types import CodeType

    from preheat.manifest import Digest
    from preheat.sources.compare import Change
    from preheat.sources.tables import ModuleTable
    from preheat.verdict import Reason

# Not a digest, so it equals none: the file is there and cannot be read.
UNREADABLE = "unreadable"

LARGE_BYTES = 64 * 1024 * 1024
_SAMPLE_BYTES = 1024 * 1024
_SAMPLES = 32
_SAMPLED_PREFIX = b"preheat sampled file 1\0"

# Filesystem times are coarse (up to 2 s): a second edit of the same size within that time may leave
# all of a file's times as they were.
SETTLE_NS = 2_000_000_000

_MAX_TABLES = 4096
_MAX_CHANGES = 1 << 18

_GONE = (FileNotFoundError, NotADirectoryError)


class _Stamp(NamedTuple):
    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int
    device: int

    @property
    def newest_ns(self) -> int:
        return max(self.mtime_ns, self.ctime_ns)


class _Entry:
    __slots__ = ("stamp", "values")

    def __init__(self, stamp: _Stamp) -> None:
        self.stamp = stamp
        self.values: dict[str, Digest] = {}


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
        self._tables: dict[Digest, ModuleTable | None] = {}
        self._codes: dict[Digest | None, Digest] = {}
        self._last: tuple[Digest, CodeType | None] | None = None
        self._moment: dict[tuple[Path, str], Digest | None] | None = None
        self.places: dict[Hashable, tuple[Path | None, Path | None, Digest | None]] | None = None
        self.shared: dict[Hashable, tuple[tuple[Reason, ...], frozenset[Path]]] | None = None
        self.changes: dict[Hashable, tuple[Change, ...]] = {}

    @contextlib.contextmanager
    def one_moment(self) -> Iterator[None]:
        """Inside the block every file is looked at once, however many packages ask for it.

        For one plan: what happens to the files meanwhile is seen by the next one. Other threads that
        use the same object meanwhile get the answers of the same moment.
        """
        before = self._moment, self.places, self.shared
        if self._moment is None:
            self._moment, self.places, self.shared = {}, {}, {}
        if len(self.changes) > _MAX_CHANGES:
            self.changes.clear()
            self._codes.clear()
        try:
            yield
        finally:
            self._moment, self.places, self.shared = before

    def sha256(self, path: Path) -> Digest | None:
        """sha256 of the file's bytes."""
        return self._digest(path, "sha256", _whole)

    def module(self, path: Path) -> Digest | None:
        """``module_digest`` of the file's bytes."""
        return self._digest(path, "module", lambda file, _: module_digest(file.read()))

    def code(self, path: Path) -> Digest:
        """``exact_digest`` of the file's text, remembered by content; "" where there is none."""
        sha256 = self.sha256(path)
        known = self._codes.get(sha256)
        if known is None:
            found = self._compile(path)
            if found is None:
                return ""
            sha256, code = found
            known = self._codes[sha256] = "" if code is None else exact_digest(code)
        return known

    def table(self, path: Path) -> ModuleTable | None:
        """The pieces of the file's text, or None for what cannot be read or does not parse.

        Remembered by content, so that a file is parsed once for all packages and for every place.
        """
        sha256 = self.sha256(path)
        if sha256 in self._tables:
            table = self._tables.pop(sha256)
            self._tables[sha256] = table  # the least recently used go first
            return table
        try:
            source = path.read_bytes()
        except OSError:
            return None
        # Workers whose files are unchanged never need it.
        from preheat.sources import tables

        sha256 = hashlib.sha256(source).hexdigest()
        last = self._last
        code = last[1] if last is not None and last[0] == sha256 else None
        self._tables[sha256] = table = tables.read_table(source, code=code)
        self._last = None
        while len(self._tables) > _MAX_TABLES:
            del self._tables[next(iter(self._tables))]
        return table

    def _compile(self, path: Path) -> tuple[Digest, CodeType | None] | None:
        """Digest and code of a file's text; kept for one moment, because its table may come next."""
        try:
            source = path.read_bytes()
        except OSError:
            return None
        code = None
        with contextlib.suppress(*NOT_A_PROGRAM), without_collector():
            code = compiled(source)
        self._last = found = (hashlib.sha256(source).hexdigest(), code)
        return found

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
        moment = self._moment
        if moment is None:
            return self._look(path, kind, compute)
        key = (path, kind)
        if key not in moment:
            moment[key] = self._look(path, kind, compute)
        return moment[key]

    def _look(
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
