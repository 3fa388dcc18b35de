"""Making files appear whole: temporary file, fsync, rename, fsync of the directory.

A reader sees the old file or the new one, never a part. After a return the new one survives a loss
of power, as far as the file system keeps its promise about fsync. After an exception a file may be
left in ``v1/tmp``, and the rename may or may not have happened, but never halfway.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from preheat.errors import UntrustedStoreError
from preheat.store.temporary import temporary_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from preheat.store.files import Files
    from preheat.store.trust import Trust

READABLE_MODE = 0o444
DIRECTORY_MODE = 0o755


class Writer:
    """Writes below one store, into directories that were judged and are open, never along a path alone.

    All methods raise ``OSError`` and ``UntrustedStoreError``.
    """

    def __init__(self, files: Files, trust: Trust, temporary: Path) -> None:
        self._files = files
        self._trust = trust
        self._temporary = temporary
        self._durable: dict[Path, tuple[int, int]] = {}

    def put(self, destination: Path, data: bytes) -> None:
        """Make ``destination`` have exactly ``data``, durably; its directory must exist."""
        self.commit(self.stage((data,)), destination)

    def stage(self, pieces: Iterable[bytes | memoryview]) -> Path:
        """A temporary file with these bytes, readable by all and already on disk."""
        path, descriptor = self.open_temporary()
        try:
            try:
                for piece in pieces:
                    self._write_all(descriptor, piece)
                # Readers may be other users; who may get here at all, the root directory's mode says.
                self._files.fchmod(descriptor, READABLE_MODE)
                self._files.fsync(descriptor)
            finally:
                self._files.close(descriptor)
        except BaseException:
            self.discard(path)
            raise
        return path

    def open_temporary(self) -> tuple[Path, int]:
        """A new temporary file and a descriptor to write it, which the caller closes."""
        path = self._temporary / temporary_name()
        with self._trust.directory(self._files, self._temporary) as directory:
            return path, self._files.create(path.name, directory)

    def commit(self, staged: Path, destination: Path) -> None:
        """Rename a staged file to its place, durably."""
        renamed = False
        try:
            with self._both(staged, destination) as (old, new):
                self._rename(staged, old, destination, new)
                renamed = True
                self._files.fsync_directory(".", new)
        except BaseException:
            if not renamed:
                self.discard(staged)
            raise

    def rename(self, source: Path, destination: Path) -> None:
        """Move a file of the store over whatever is at ``destination``; durable after ``sync``."""
        with self._both(source, destination) as (old, new):
            self._rename(source, old, destination, new)

    @contextlib.contextmanager
    def _both(self, source: Path, destination: Path) -> Iterator[tuple[int, int]]:
        judged = self._trust.directory
        with (
            judged(self._files, source.parent) as old,
            judged(self._files, destination.parent) as new,
        ):
            yield old, new

    def _rename(self, source: Path, old: int, destination: Path, new: int) -> None:
        self._files.replace(source.name, destination.name, src_dir_fd=old, dst_dir_fd=new)

    def discard(self, staged: Path) -> None:
        """Remove a staged file if that is possible; a sweep does it otherwise."""
        with contextlib.suppress(OSError, UntrustedStoreError):
            self.unlink(staged)

    def unlink(self, path: Path) -> None:
        """Remove a file of the store."""
        with self._trust.directory(self._files, path.parent) as directory:
            self._files.unlink(path.name, directory)

    def sync(self, directory: Path) -> None:
        """Make durable what was renamed in a directory."""
        with self._trust.directory(self._files, directory) as judged:
            self._files.fsync_directory(".", judged)

    def directory(self, path: Path, mode: int = DIRECTORY_MODE) -> None:
        """Make one directory, durably, if there is none; an existing one keeps its mode.

        Raises ``UntrustedStoreError`` when it, or anything on the way to it, is not trusted.
        """
        try:
            found = self._identity(path)
        except FileNotFoundError:
            self._make(path, mode)
            self._durable.pop(path, None)  # a new one may have the number of the one before
            found = self._identity(path)
        if self._durable.get(path) == found:
            return  # a sync of what has not changed is a flush of the disk all the same
        # Also for one that is there: whoever made it may have died before this.
        self.sync(path.parent)
        self._durable[path] = found

    def _identity(self, path: Path) -> tuple[int, int]:
        with self._trust.directory(self._files, path) as judged:
            status = self._files.fstat(judged)
        return status.st_dev, status.st_ino

    def _make(self, path: Path, mode: int) -> None:
        files = self._files
        with self._trust.directory(files, path.parent) as parent:
            try:
                files.mkdir(path.name, mode, parent)
            except FileExistsError:
                return
            made = files.open_directory(path.name, parent)
            try:
                files.fchmod(made, mode)  # the umask must not lock readers out
            finally:
                files.close(made)

    def _write_all(self, descriptor: int, piece: bytes | memoryview) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[self._files.write(descriptor, rest) :]
