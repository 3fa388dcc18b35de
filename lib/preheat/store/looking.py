"""Looks at single files of a store as they are, without following links and without trusting them."""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError, OtherFormatError
from preheat.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_REF_BYTES,
    Manifest,
    decode_manifest,
    decode_ref,
)
from preheat.store.facts import Entry, FileKind, ObjectFact, Package, RefFact
from preheat.store.failures import GONE
from preheat.store.manifest_names import MANIFEST_BEGIN
from preheat.store.reading import without_a_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheat.store.files import Files

_PIECE_BYTES = 1024 * 1024


class Looker:
    """Through ``files``. Keeps at most one manifest in memory, and no object."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def object_fact(self, path: Path) -> ObjectFact | None:
        """One object as it is now; None when there is none. Reads all of it."""
        entry = self.entry(path)
        if entry is None or entry.kind != "file":
            return None if entry is None else ObjectFact(entry=entry)
        try:
            descriptor = self._files.open_for_reading(path)
        except OSError as error:
            return None if error.errno in GONE else ObjectFact(entry=_troubled(entry, error))
        try:
            # What is judged is what is read, also when the name has moved on meanwhile.
            entry = Entry(path=path, kind="file", status=self._files.fstat(descriptor))
            without_a_trace(self._files, descriptor)
            digest, manifest = self._digest(descriptor, entry.status.st_size)
        except OSError as error:
            return ObjectFact(entry=_troubled(entry, error))
        finally:
            self._files.close(descriptor)
        package = None if manifest is None else _package(manifest, str(path))
        return ObjectFact(entry=entry, digest=digest, package=package)

    def ref_fact(self, path: Path) -> RefFact | None:
        """One ref as it is now; None when there is none."""
        entry = self.entry(path)
        if entry is None or entry.kind != "file":
            return None if entry is None else RefFact(entry=entry)
        try:
            data = self.read(path, MAX_REF_BYTES)
        except OSError as error:
            return None if error.errno in GONE else RefFact(entry=_troubled(entry, error))
        try:
            return RefFact(entry=entry, ref=decode_ref(data, where=path.name))
        except CorruptedError as error:
            other = isinstance(error, OtherFormatError)
            return RefFact(entry=entry, trouble=error.message, other_format=other)

    def small_file(self, path: Path, limit: int) -> bytes | None:
        """Its bytes, at most one more than ``limit``; none of what is no file; None when nothing is there."""
        kind = self.kind(path)
        if kind != "file":
            return None if kind is None else b""
        try:
            return self.read(path, limit)
        except OSError:
            return b""

    def entry(self, path: Path) -> Entry | None:
        """What stands in this place, looked at without following it; None when nothing does."""
        try:
            status = self._files.lstat(path)
        except OSError:
            return None
        return Entry(path=path, kind=_kind_of(status.st_mode), status=status)

    def kind(self, path: Path) -> FileKind | None:
        """What kind of file stands there."""
        entry = self.entry(path)
        return None if entry is None else entry.kind

    def read(self, path: Path, limit: int) -> bytes:
        """Its bytes, at most one more than ``limit``. Raises ``OSError``."""
        descriptor = self._files.open_for_reading(path)
        try:
            pieces, left = [], limit + 1
            while left and (piece := self._files.read(descriptor, left)):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            self._files.close(descriptor)

    def _digest(self, descriptor: int, size: int) -> tuple[str, bytes | None]:
        """The sha256 of all bytes; and the bytes themselves, where they begin like a manifest."""
        hashed = hashlib.sha256()
        kept: list[bytes] | None = []
        while piece := self._files.read(descriptor, _PIECE_BYTES):
            hashed.update(piece)
            if kept == [] and not piece.startswith(MANIFEST_BEGIN):
                kept = None
            if kept is not None:
                kept.append(piece)
                if size > MAX_MANIFEST_BYTES:
                    kept = None
        return hashed.hexdigest(), b"".join(kept) if kept else None


def _package(data: bytes, where: str) -> Package:
    try:
        manifest: Manifest = decode_manifest(data, where=where)
    except CorruptedError as error:
        return Package(trouble=error.message, other_format=isinstance(error, OtherFormatError))
    return Package(manifest=manifest)


def _troubled(entry: Entry, error: OSError) -> Entry:
    return Entry(
        path=entry.path,
        kind=entry.kind,
        status=entry.status,
        trouble=error.strerror or str(error),
    )


def _kind_of(mode: int) -> FileKind:
    tests: tuple[tuple[Callable[[int], bool], FileKind], ...] = (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "link"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
    )
    return next((kind for test, kind in tests if test(mode)), "device")
