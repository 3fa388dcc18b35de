"""Reading whole files of a store, with the checks that come before any byte is used."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError
from preheat.store.failures import GONE, read_failure

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from preheat.store.files import Files
    from preheat.store.trust import Trust

_CHUNK_BYTES = 1 << 30
_opened = itertools.count(1)


def without_a_trace(files: Files, descriptor: int) -> None:
    """A look, a check or a copy is no load, and leaves no time of access: see ``docs/store.md``."""
    with contextlib.suppress(OSError):  # another owner's file
        files.keep_access_time(descriptor)


class Reader:
    """Opens files below one store. Takes no lock and writes nothing, so a read-only mount will do."""

    def __init__(self, files: Files, trust: Trust) -> None:
        self._files = files
        self._trust = trust

    def open(self, path: Path) -> tuple[int, int] | None:
        """Descriptor and size of a trusted regular file; None when there is none.

        Raises ``UntrustedStoreError`` for the file or a component before it; ``StoreError``.
        """
        try:
            with self._trust.directory(self._files, path.parent) as directory:
                descriptor = self._files.open_for_reading(path.name, dir_fd=directory)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise read_failure(error, path) from error
        try:
            status = self._files.fstat(descriptor)
            self._trust.judge_file(path, status)
        except BaseException as error:
            self._files.close(descriptor)
            if not isinstance(error, OSError):
                raise
            if error.errno in GONE:
                return None
            raise read_failure(error, path) from error
        return descriptor, status.st_size

    def read(self, path: Path, limit: int) -> bytes | None:
        """A file's bytes; None when there is none. ``CorruptedError`` over ``limit`` bytes, unread."""
        opened = self.open(path)
        if opened is None:
            return None
        descriptor, size = opened
        try:
            if size > limit:
                raise CorruptedError(f"{path}: {size} bytes is over the limit of {limit}.")
            return self.read_descriptor(path, descriptor, size)
        finally:
            self._files.close(descriptor)

    def read_descriptor(self, path: Path, descriptor: int, size: int) -> bytes | None:
        """Exactly the ``size`` bytes of an opened file; None when it went stale meanwhile."""
        pieces: list[bytes] = []
        missing = size
        try:
            while missing:
                piece = self._files.read(descriptor, min(missing, _CHUNK_BYTES))
                if not piece:
                    raise CorruptedError(f"{path}: {missing} of {size} bytes are missing.")
                pieces.append(piece)
                missing -= len(piece)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise read_failure(error, path) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def names(self, directory: Path) -> list[str]:
        """The names in a trusted directory; none when it does not exist."""
        try:
            with self.directory(directory) as judged:
                # What was judged can be passed, not listed: it is opened once more, through itself.
                listed = self._files.open_directory(".", judged)
                try:
                    return self._files.names(listed)
                finally:
                    self._files.close(listed)
        except OSError as error:
            if error.errno in GONE:
                return []
            raise read_failure(error, directory) from error

    def directory(self, path: Path) -> contextlib.AbstractContextManager[int]:
        """A descriptor of a trusted directory, to look names up in. Raises as ``Trust.directory`` does."""
        return self._trust.directory(self._files, path)


def descriptor_path(descriptor: int) -> str:
    """A path to what a descriptor has open, spelled differently every time.

    The dynamic linker takes a library with a path that it has seen for the one that it loaded before,
    and descriptor numbers are used again: two objects opened one after the other as
    ``/proc/self/fd/5`` would give the first library twice.
    """
    number = next(_opened)
    spelling = "".join("./" if digit == "0" else ".//" for digit in f"{number:b}")
    return f"/proc/self/fd/{spelling}{descriptor}"


class VerifiedObject:
    """An ``OpenObject`` on a descriptor that it owns, with the bytes that were verified.

    ``data``: the bytes, or a private mapping of them. Both stores hand these out. Usable as a context
    manager. Dropping the last reference closes it, so keep it for as long as ``path()`` is needed.
    """

    def __init__(self, files: Files, descriptor: int, data: bytes | mmap.mmap) -> None:
        self._files = files
        self._open: tuple[int, bytes | mmap.mmap] | None = (descriptor, data)
        self._path = descriptor_path(descriptor)

    def read(self) -> bytes:
        """The verified bytes themselves: the file is not read a second time."""
        data = self._contents()[1]
        return data if isinstance(data, bytes) else data[:]

    def writable(self) -> bytearray | mmap.mmap:
        """The verified bytes to keep and to change, for this process alone; good after ``close()`` too.

        Where the object is mapped, nothing is copied but the pages that are written to.
        """
        data = self._contents()[1]
        return bytearray(data) if isinstance(data, bytes) else data

    def path(self) -> str:
        """A path to the verified file, until ``close()``; another spelling for every object."""
        self._contents()
        return self._path

    def close(self) -> None:
        """Give descriptor and bytes back. What was loaded from the path stays loaded. May be repeated."""
        contents, self._open = self._open, None
        if contents is not None:
            self._files.close(contents[0])

    def _contents(self) -> tuple[int, bytes | mmap.mmap]:
        if self._open is None:
            raise ValueError("The object is closed.")
        return self._open

    def __enter__(self) -> VerifiedObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
