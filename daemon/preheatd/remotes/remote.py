"""The one seam to remote stores: whatever fsspec knows, with the layout of a store on disk.

Readers never see half a file under its own name: an object store makes an upload visible when it is complete,
and elsewhere a file is written under another name and renamed.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from preheat.errors import ConfigurationError, RemoteError
from preheat.store.arrival import PIECE_BYTES
from preheat.store.layout import FORMAT_TEXT, MAX_FORMAT_BYTES, Layout
from preheat.store.temporary import temporary_name

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from preheat.manifest import Digest

# Where an upload becomes visible at once, when it is complete.
_WHOLE_UPLOADS = frozenset({"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})
_LOCAL = frozenset({"file", "local"})
# Where a file can be made that only one of several makers makes.
_EXCLUSIVE = frozenset({"memory", "s3", "s3a", "gs", "gcs"})
_UNFINISHED = ".unfinished"
# What is read, hashed and written before the next: it should fit into a processor's cache.
LOCAL_PIECE_BYTES = 1024 * 1024


class Remote:
    """One remote store. All methods block, and may be called from several threads.

    Every failure is a ``RemoteError`` that names the place. Nothing that a remote answers is believed:
    whoever reads compares sizes and digests.
    """

    def __init__(self, url: str) -> None:
        """Raises ``ConfigurationError`` for a URL that nothing here can open."""
        try:
            import fsspec
        except ImportError as error:
            raise ConfigurationError(
                "Remote stores need the library fsspec.", remedy="pip install 'preheat[fleet]'"
            ) from error
        self.name = without_secret(url)
        try:
            self._system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                f"{self.name} cannot be opened: {error}.",
                remedy="See the list of protocols of fsspec.",
            ) from error
        except Exception as error:
            raise self._failure("", error) from error
        # Directories are looked at afresh each time: others write there.
        self._system.use_listings_cache = False
        self._root = str(root).rstrip("/")
        protocol = self._system.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine's file system."""
        return bool(self._protocols & _LOCAL)

    def is_founded(self) -> bool:
        """Whether a store is there. Raises ``RemoteError`` for one of another format."""
        text = self.read("FORMAT", MAX_FORMAT_BYTES)
        if text is None:
            return False
        if text != FORMAT_TEXT:
            raise RemoteError(
                f"{self.name} is a store of another format: its FORMAT says {text[:80]!r}.",
                remedy="Use the version of preheat that made it, or choose another place.",
            )
        return True

    def found(self) -> None:
        """Make it a store, if it is none."""
        if not self.is_founded():
            self.put_bytes("FORMAT", FORMAT_TEXT)

    def read(self, path: str, limit: int) -> bytes | None:
        """A small file; None when there is none. Raises ``RemoteError`` over ``limit`` bytes."""
        with self._failures(path):
            try:
                with self._system.open(self._at(path), "rb", cache_type="none") as file:
                    pieces, missing = [], limit + 1
                    while missing and (piece := file.read(missing)):
                        pieces.append(piece)
                        missing -= len(piece)
            except (FileNotFoundError, NotADirectoryError):
                return None
        data = b"".join(pieces)
        if len(data) > limit:
            raise RemoteError(f"{self.name}/{path} has more than {limit} bytes.")
        return data

    def size(self, path: str) -> int | None:
        """As the remote says it; None when there is no such file."""
        with self._failures(path):
            try:
                info = self._system.info(self._at(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return int(info["size"] or 0) if info.get("type") == "file" else None

    def part(self, path: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` to before ``end``, or what the remote gives instead."""
        with self._failures(path):
            return bytes(self._system.cat_file(self._at(path), start=start, end=end))

    def pieces(self, path: str, size: int) -> Generator[bytes | memoryview, None, None]:
        """The first ``size`` bytes in pieces, each valid until the next; or what the remote gives instead.

        Ends early where there are no more bytes. Asks the remote with each step.
        """
        if self.is_local:
            with self._failures(path):
                yield from _pieces_of(Path(self._at(path)), size)
            return
        start = 0
        while start < size and (piece := self.part(path, start, min(start + PIECE_BYTES, size))):
            yield piece
            start += len(piece)

    def refs(self) -> Iterator[str]:
        """The paths of all refs, for ``read``."""
        for directory in self._names("v1/refs"):
            for name in self._names(f"v1/refs/{directory}"):
                if name.endswith(".json"):
                    yield f"v1/refs/{directory}/{name}"

    def put_bytes(self, path: str, data: bytes) -> None:
        """Make a small file have these bytes; readers see the one before or this one."""
        with self._failures(path), self._unfinished(path) as place:
            self._system.pipe_file(place, data)

    def put_file(self, path: str, source: Path) -> None:
        """The same with the bytes of a local file."""
        with self._failures(path), self._unfinished(path) as place:
            self._system.put_file(str(source), place)

    @property
    def creates_exclusively(self) -> bool:
        """Whether of several that ``create`` one file at the same moment only one is told that it did."""
        return self.is_local or bool(self._protocols & _EXCLUSIVE)

    def create(self, path: str, data: bytes) -> bool:
        """Make a small file that is not there yet, with these bytes; False: there is one.

        A network file system may make it and say False all the same: its content says whose it is.
        """
        with self._failures(path):
            try:
                if self.is_local:
                    self._link(path, data)
                elif self.creates_exclusively:
                    self._system.pipe_file(self._at(path), data, mode="create")
                elif self.size(path) is not None:
                    return False
                else:
                    self.put_bytes(path, data)
            except FileExistsError:
                return False
            except Exception:
                if self.size(path) is not None:  # servers have many words for it
                    return False
                raise
        return True

    def _link(self, path: str, data: bytes) -> None:
        """Give a complete file its name, unless there is one of that name."""
        place = Path(self._at(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_name(f"{place.name}.{temporary_name()}{_UNFINISHED}")
        try:
            unfinished.write_bytes(data)
            place.hardlink_to(unfinished)
        finally:
            unfinished.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _unfinished(self, path: str) -> Iterator[str]:
        """Where to write what is to appear at ``path``."""
        place = self._at(path)
        if self._protocols & _WHOLE_UPLOADS:
            yield place
            return
        self._system.makedirs(posixpath.dirname(place), exist_ok=True)
        unfinished = f"{place}.{temporary_name()}{_UNFINISHED}"
        try:
            yield unfinished
            if self.is_local:
                _appear(Path(unfinished), Path(place))
            else:
                self._system.mv(unfinished, place)
        except BaseException:
            with contextlib.suppress(Exception):
                self._system.rm_file(unfinished)
            raise

    def _names(self, path: str) -> list[str]:
        with self._failures(path):
            try:
                found = self._system.ls(self._at(path), detail=False, refresh=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            except TypeError:  # a file system that has nothing to refresh
                found = self._system.ls(self._at(path), detail=False)
        return sorted(PurePosixPath(str(one).rstrip("/")).name for one in found)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextlib.contextmanager
    def _failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except RemoteError:
            raise
        except Exception as error:  # of libraries that nobody here knows
            raise self._failure(path, error) from error

    def _failure(self, path: str, error: Exception) -> RemoteError:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        place = f"{self.name}/{path}".rstrip("/")
        return RemoteError(f"{place}: {without_secret(str(what))}.")


def _pieces_of(path: Path, size: int) -> Generator[memoryview, None, None]:
    """Into the same memory again and again: getting new memory takes as long as hashing what is in it."""
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(size, LOCAL_PIECE_BYTES)))
        while size and (count := file.readinto(buffer[: min(size, len(buffer))])):
            size -= count
            yield buffer[:count]


def object_path(digest: Digest) -> str:
    """Where an object is, from the root; the same as on disk."""
    return str(Layout(Path("/")).object(digest).relative_to("/"))


def signatures_path(digest: Digest) -> str:
    """Where the signatures of a manifest are, from the root; the same as on disk."""
    return str(Layout(Path("/")).signatures(digest).relative_to("/"))


def ref_path(target: str, environment: Digest) -> str:
    """Where a ref is, from the root; the same as on disk."""
    return str(Layout(Path("/")).ref(target, environment).relative_to("/"))


def build_lease_path(target: str, environment: Digest, name: str) -> str:
    """Where a build lease is, from the root."""
    return str(Layout(Path("/")).build_lease(target, environment, name).relative_to("/"))


def without_secret(url: str) -> str:
    """A URL without the password in it, for messages."""
    return re.sub(r"(\w+://)[^/@\s]*@", r"\1", url).rstrip("/")


def _appear(unfinished: Path, path: Path) -> None:
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
