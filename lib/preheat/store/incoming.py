"""A file on its way into the store: read once, hashed as it passes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from preheat.store.failures import read_failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preheat.store.files import Files

_PIECE_BYTES = 8 * 1024 * 1024


class Incoming:
    """The pieces of one file; ``digest`` and ``size`` are of what was handed out so far.

    Hashing what is copied, not what lies there before or after, keeps an edit of the file during the
    copy from storing bytes under the name of others.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._sha256 = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        """Raises ``StoreError`` that names the file when it cannot be read."""
        try:
            descriptor = self._files.open_for_reading(self._path, follow=True)
        except OSError as error:
            raise read_failure(error, self._path) from error
        try:
            while piece := self._read(descriptor):
                self._sha256.update(piece)
                self.size += len(piece)
                yield piece
        finally:
            self._files.close(descriptor)

    def _read(self, descriptor: int) -> bytes:
        try:
            return self._files.read(descriptor, _PIECE_BYTES)
        except OSError as error:
            raise read_failure(error, self._path) from error
