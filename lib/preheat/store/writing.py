"""Making files appear whole: temporary file, fsync, rename, fsync of the directory.

A reader sees the old file or the new one, never a part. After a return the new one survives a loss
of power, as far as the file system keeps its promise about fsync. After an exception a file may be
left in ``v1/tmp``, and the rename may or may not have happened, but never halfway.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from preheat.store.temporary import temporary_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from preheat.store.files import Files
    from preheat.store.trust import Trust

READABLE_MODE = 0o444
DIRECTORY_MODE = 0o755


class Writer:
    """Writes below one store. All methods raise ``OSError``, and ``UntrustedStoreError`` where said."""

    def __init__(self, files: Files, trust: Trust, temporary: Path) -> None:
        self._files = files
        self._trust = trust
        self._temporary = temporary

    def put(self, destination: Path, data: bytes) -> None:
        """Make ``destination`` have exactly ``data``, durably; its directory must exist."""
        self.commit(self.stage((data,)), destination)

    def stage(self, pieces: Iterable[bytes | memoryview]) -> Path:
        """A temporary file with these bytes, readable by all and already on disk."""
        path = self._temporary / temporary_name()
        try:
            descriptor = self._files.create(path)
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

    def commit(self, staged: Path, destination: Path) -> None:
        """Rename a staged file to its place, durably."""
        try:
            self._files.replace(staged, destination)
        except BaseException:
            self.discard(staged)
            raise
        self._files.fsync_directory(destination.parent)

    def discard(self, staged: Path) -> None:
        """Remove a staged file if that is possible; a sweep does it otherwise."""
        with contextlib.suppress(OSError):
            self._files.unlink(staged)

    def directory(self, path: Path, mode: int = DIRECTORY_MODE) -> None:
        """Make one directory, durably, if there is none; an existing one keeps its mode.

        Raises ``UntrustedStoreError`` when it, or anything on the way to it, is not trusted.
        """
        try:
            self._files.mkdir(path, mode)
        except FileExistsError:
            pass
        else:
            self._files.chmod(path, mode)  # the umask must not lock readers out
        # Also for one that is there: whoever made it may have died before this.
        self._files.fsync_directory(path.parent)
        self._trust.judge_directory(self._files, path)

    def _write_all(self, descriptor: int, piece: bytes | memoryview) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[self._files.write(descriptor, rest) :]
