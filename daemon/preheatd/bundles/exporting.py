"""Packages on their way out of a store into one file; it appears under its name when it is whole."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

import aiofiles

from preheat.errors import BundleError
from preheat.manifest import ObjectRef, encode
from preheat.store import bundle_format as form
from preheat.store import bundle_headers as headers
from preheat.store.files import Files
from preheat.store.temporary import temporary_name
from preheatd.selection import proven

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path
    from typing import Protocol

    from preheat.manifest import Digest, Ref
    from preheat.store import DiskStore

    class _Sink(Protocol):
        async def write(self, data: bytes, /) -> object: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """What is in the file now."""

    packages: tuple[Ref, ...]
    objects: int
    size: int


@dataclasses.dataclass(frozen=True)
class Exporter:
    """Writes bundles of packages of one store, with their signatures."""

    store: DiskStore

    async def to_file(self, refs: Sequence[Ref], path: Path) -> Exported:
        """Write a bundle; a file that has the name already is replaced when the new one is whole.

        Raises ``BundleError`` for a package that is not proven and for a file that cannot be written,
        and ``CorruptedError`` for a damaged package; then nothing has the name that had not before.
        """
        path = await asyncio.to_thread(path.absolute)
        unfinished = path.with_name(f".{path.name}.{temporary_name()}.part")
        try:
            exported = await self._written(refs, unfinished)
            await asyncio.to_thread(_appear, unfinished, path)
        except OSError as error:
            raise _not_written(path, error) from error
        finally:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(unfinished.unlink)
        return exported

    async def _written(self, refs: Sequence[Ref], path: Path) -> Exported:
        async with aiofiles.open(path, "xb", buffering=0) as file:
            exported = await self._write(refs, file)
            await asyncio.to_thread(os.fsync, file.fileno())
        return exported

    async def to_descriptor(self, refs: Sequence[Ref], descriptor: int) -> Exported:
        """Write a bundle to what is open already, such as a pipe."""
        try:
            async with aiofiles.open(descriptor, "wb", closefd=False) as file:
                return await self._write(refs, file)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise BundleError(f"It cannot be written: {error.strerror}.", remedy="") from error

    async def _write(self, refs: Sequence[Ref], file: _Sink) -> Exported:
        index = await asyncio.to_thread(self._index, refs)
        data = encode(index)
        await file.write(headers.header(form.INDEX_NAME, len(data)) + data + _fill(len(data)))
        for member in form.members(index):
            await file.write(headers.header(member.name, member.part.size))
            async for piece in _read_ahead(self._pieces(member)):
                await file.write(piece)
            await file.write(_fill(member.part.size))
        await file.write(headers.END)
        return Exported(
            packages=tuple(refs),
            objects=len(index.objects),
            size=form.total_bytes(index, len(data)),
        )

    def _index(self, refs: Sequence[Ref]) -> form.Index:
        """One manifest in memory at a time."""
        return form.make_index(
            (proven(self.store, ref), self._signatures(ref.manifest)) for ref in refs
        )

    def _signatures(self, manifest: Digest) -> tuple[bytes, ...]:
        data = self.store.signatures(manifest)
        return () if data is None else (data,)

    def _pieces(self, member: form.Member) -> Iterator[bytes]:
        if member.package is None or member.is_manifest:
            ref = ObjectRef(name=member.name, sha256=member.part.sha256, size=member.part.size)
            yield from self.store.pieces(ref)
            return
        for record in self._signatures(member.package.manifest):
            if form.part_of(record) == member.part:
                yield record
                return
        raise BundleError(f"A signature of {member.package.target!r} changed during the export.")


async def _read_ahead(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, the next one read while one is written."""
    ahead = asyncio.ensure_future(asyncio.to_thread(next, pieces, b""))
    try:
        while piece := await asyncio.shield(ahead):
            ahead = asyncio.ensure_future(asyncio.to_thread(next, pieces, b""))
            yield piece
    finally:
        with contextlib.suppress(BaseException):  # a thread cannot be stopped
            await ahead


def _fill(size: int) -> bytes:
    return bytes(headers.padding(size))


def _appear(unfinished: Path, path: Path) -> None:
    unfinished.replace(path)
    Files().fsync_directory(path.parent)


def _not_written(path: Path, error: OSError) -> BundleError:
    return BundleError(
        f"{path} cannot be written: {error.strerror or error}.",
        remedy="Choose another place, or free some space there.",
    )
