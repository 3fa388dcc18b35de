"""Objects that pass in pieces, into a disk store and out of it: memory does not grow with their size."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError
from preheat.store import records
from preheat.store.failures import GONE, read_failure, writing
from preheat.store.reading import without_a_trace
from preheat.store.turns import writers_turn
from preheat.store.writing import READABLE_MODE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from preheat.manifest import ObjectRef
    from preheat.store.files import Files
    from preheat.store.layout import Layout
    from preheat.store.writing import Writer

PIECE_BYTES = 4 * 1024 * 1024


def pieces(files: Files, path: Path, opened: tuple[int, int], ref: ObjectRef) -> Iterator[bytes]:
    """The bytes of an opened file (descriptor and size), which must be ``ref``; see ``DiskStore.pieces``.

    Closes the descriptor when the iteration ends or is dropped.
    """
    descriptor, size = opened
    digest = hashlib.sha256()
    missing = size
    try:
        records.check_declared_size(ref, size, str(path))
        without_a_trace(files, descriptor)
        while missing:
            piece = files.read(descriptor, min(missing, PIECE_BYTES))
            if not piece:
                raise CorruptedError(f"{path}: {missing} of {size} bytes are missing.")
            digest.update(piece)
            missing -= len(piece)
            yield piece
    except OSError as error:
        if error.errno in GONE:
            raise CorruptedError(f"{path} ({ref.name}) is not in the store any more.") from error
        raise read_failure(error, path) from error
    finally:
        files.close(descriptor)
    if digest.hexdigest() != ref.sha256:
        raise CorruptedError(f"{path}: the content does not have the digest {ref.sha256}.")


class Arrival:
    """One object on its way into a store. Not safe for threads, but may be used by one after the other.

    Nobody sees it before ``commit``. Whatever happens before, only a file in ``v1/tmp`` is left, which
    ``discard`` removes and a sweep finds. Usable as a context manager, which discards what was not committed.

    ``verified``: whoever calls ``commit`` has seen the digest of the bytes, so that they are not hashed
    twice; the size is checked all the same.
    """

    def __init__(
        self, files: Files, writer: Writer, layout: Layout, ref: ObjectRef, *, verified: bool
    ) -> None:
        self._files = files
        self._writer = writer
        self._ref = ref
        self._digest = None if verified else hashlib.sha256()
        self._size = 0
        self._layout = layout
        self._place = layout.object(ref.sha256)
        with writing(self._place):
            self._path, descriptor = writer.open_temporary()
        self._descriptor: int | None = descriptor
        self._left = True  # a temporary file that nobody else will remove

    @property
    def size(self) -> int:
        """How many bytes have come."""
        return self._size

    def write(self, piece: bytes | memoryview) -> None:
        """Raises ``CorruptedError`` when there are more bytes than the object has, and ``StoreError``."""
        assert self._descriptor is not None
        if self._size + len(piece) > self._ref.size:
            raise CorruptedError(
                f"{self._ref.name}: there are more than its {self._ref.size} bytes."
            )
        if self._digest is not None:
            self._digest.update(piece)
        self._size += len(piece)
        rest = memoryview(piece)
        with writing(self._place):
            while rest:
                rest = rest[self._files.write(self._descriptor, rest) :]

    def commit(self) -> None:
        """Make it an object of the store, durably.

        Raises ``CorruptedError`` unless all bytes have come and are those that its digest names.
        """
        assert self._descriptor is not None
        records.check_declared_size(self._ref, self._size, self._ref.name)
        if self._digest is not None and self._digest.hexdigest() != self._ref.sha256:
            raise CorruptedError(
                f"{self._ref.name}: the content does not have the digest {self._ref.sha256}."
            )
        with writing(self._place):
            self._files.fchmod(self._descriptor, READABLE_MODE)
            self._files.fsync(self._descriptor)
            self._close()
            self._writer.directory(self._place.parent)
            self._left = False
            with writers_turn(self._files, self._layout):
                self._writer.commit(self._path, self._place)

    def discard(self) -> None:
        """Give up what has come, if it was not committed. May be repeated."""
        self._close()
        if self._left:
            self._left = False
            self._writer.discard(self._path)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # everything is durable, or given up
                self._files.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()
