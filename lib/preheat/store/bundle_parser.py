"""Reads a bundle as its bytes arrive, and refuses everything that is not one. Does no I/O itself."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from preheat.errors import BundleError
from preheat.store import bundle_format as form
from preheat.store import bundle_headers as headers
from preheat.store.bundle_headers import BLOCK_BYTES, END

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from preheat.manifest import Manifest
    from preheat.store.bundle_format import Index, Member


@dataclasses.dataclass(frozen=True)
class IndexRead:
    """The index, before anything else is read: the moment to refuse the whole bundle."""

    index: Index


@dataclasses.dataclass(frozen=True)
class ManifestRead:
    """One manifest, checked, with the bytes that it was read from."""

    member: Member
    manifest: Manifest
    data: bytes


@dataclasses.dataclass(frozen=True)
class SignatureRead:
    """One signature record of the manifest before; opaque."""

    member: Member
    data: bytes


@dataclasses.dataclass(frozen=True)
class ManifestsRead:
    """All manifests are read and belong to the objects that follow: nothing is missing or left over."""


@dataclasses.dataclass(frozen=True)
class ObjectBegins:
    """The bytes of this object follow."""

    member: Member


@dataclasses.dataclass(frozen=True)
class ObjectBytes:
    """Some bytes of the object; valid until the next ``feed``. Not verified before its end."""

    data: memoryview


@dataclasses.dataclass(frozen=True)
class ObjectEnds:
    """The object is complete and has the digest that names it."""

    member: Member


@dataclasses.dataclass(frozen=True)
class End:
    """The archive is complete; everything before was what the index says."""


Event = (
    IndexRead
    | ManifestRead
    | SignatureRead
    | ManifestsRead
    | ObjectBegins
    | ObjectBytes
    | ObjectEnds
    | End
)


class BundleParser:
    """Feed it the bytes of a bundle; it answers with what they are.

    ``length``: of the whole file where that is known; a bundle that is too short or too long is then
    refused when its index has been read. Every complaint is a ``BundleError``. Holds one manifest or
    the index at a time, never an object.
    """

    def __init__(self, length: int | None = None) -> None:
        self._length = length
        self._fed = memoryview(b"")
        self._offset = 0
        self._where = "its first header"
        self._over = False
        self._steps = self._run()

    def feed(self, data: bytes | memoryview) -> Iterator[Event]:
        """What these bytes complete. Exhaust it before the next call. Raises ``BundleError``."""
        self._fed = memoryview(data)
        while True:
            event = next(self._steps)
            if event is None:
                return
            yield event

    def finish(self) -> None:
        """No more bytes come. Raises ``BundleError`` for a bundle that was cut off."""
        if not self._over:
            raise self._cut_off()

    def _cut_off(self) -> BundleError:
        return BundleError(
            f"It ends after {self._offset} bytes, in {self._where}: it was cut off.",
            remedy="Copy or export it again.",
        )

    def _run(self) -> Generator[Event | None, None, None]:
        index = yield from self._index()
        yield IndexRead(index)
        yield from self._members(index)
        self._where = "its end"
        if (yield from self._take(len(END))) != END:
            raise BundleError("After its last member there is something else than the end.")
        self._over = True
        yield End()
        while True:
            if len(self._fed):
                raise BundleError("There are more bytes after its end.")
            yield None

    def _index(self) -> Generator[Event | None, None, Index]:
        size = form.index_size((yield from self._take(BLOCK_BYTES)))
        self._where = "its index"
        data = yield from self._take(size)
        index = form.parse_index(data)
        form.check_zeros((yield from self._take(headers.padding(size))), form.INDEX_NAME)
        self._check_length(form.total_bytes(index, size))
        return index

    def _check_length(self, total: int) -> None:
        if self._length is None or self._length == total:
            return
        if self._length < total:
            raise BundleError(
                f"It has {self._length} bytes, and what its index names needs {total}: it was cut off.",
                remedy="Copy or export it again.",
            )
        raise BundleError(f"There are {self._length - total} more bytes after its end.")

    def _members(self, index: Index) -> Generator[Event | None, None, None]:
        complete = form.Completeness(index)
        earlier: dict[str, None] = {form.INDEX_NAME: None}
        manifests_over = False
        for member in form.members(index):
            if member.package is None and not manifests_over:
                manifests_over = True
                complete.finish()
                yield ManifestsRead()
            self._where = member.name
            block = yield from self._take(BLOCK_BYTES)
            form.check_header(block, member, earlier)
            earlier[member.name] = None
            if member.package is None:
                yield from self._object(member)
            else:
                yield from self._small(member, complete)
            rest = yield from self._take(headers.padding(member.part.size))
            form.check_zeros(rest, member.name)
        if not manifests_over:
            yield ManifestsRead()

    def _small(
        self, member: Member, complete: form.Completeness
    ) -> Generator[Event | None, None, None]:
        data = yield from self._take(member.part.size)
        if not member.is_manifest:
            form.check_part(data, member)
            yield SignatureRead(member, data)
            return
        manifest = form.check_manifest(data, member)
        complete.add(manifest)
        yield ManifestRead(member, manifest, data)

    def _object(self, member: Member) -> Generator[Event | None, None, None]:
        yield ObjectBegins(member)
        digest = hashlib.sha256()
        missing = member.part.size
        while missing:
            piece = yield from self._some(missing)
            digest.update(piece)
            missing -= len(piece)
            yield ObjectBytes(piece)
        if digest.hexdigest() != member.part.sha256:
            raise form.altered(member.name)
        yield ObjectEnds(member)

    def _take(self, count: int) -> Generator[Event | None, None, bytes]:
        """Exactly so many bytes; what is declared is believed only as far as it arrives."""
        pieces: list[bytes] = []
        missing = count
        while missing:
            piece = yield from self._some(missing)
            pieces.append(bytes(piece))
            missing -= len(piece)
        return b"".join(pieces)

    def _some(self, most: int) -> Generator[Event | None, None, memoryview]:
        """At least one byte, at most so many, of what was fed."""
        while not len(self._fed):
            yield None
        piece, self._fed = self._fed[:most], self._fed[most:]
        self._offset += len(piece)
        return piece
