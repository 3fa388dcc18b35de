"""Packages on their way from a store to a remote: objects, then manifests, then one small ref each.

An object store has no rename. Readers see a package when its ref is there, and the upload of a ref is one
call that such a store makes visible as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Literal, TypeVar

from preheat.errors import CorruptedError, RemoteError, UnsignedPackageError
from preheat.manifest import MAX_REF_BYTES, ObjectRef, encode
from preheat.store import records
from preheat.store.signatures import MAX_SIGNATURES_BYTES, decode_signatures, joined
from preheatd.remotes.calls import at_once, limited
from preheatd.remotes.remote import object_path, ref_path, signatures_path
from preheatd.selection import proven

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preheat.manifest import Digest, Manifest, Ref
    from preheat.store import DiskStore
    from preheatd.remotes.remote import Remote

_T = TypeVar("_T")
# What an upload must reach at the least, or its remote counts as hanging.
_SLOWEST_BYTES_A_SECOND = 64 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """One package, and what became of it on the remote."""

    target: str
    environment: Digest
    manifest: Digest
    result: Literal["new", "replaced", "same"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push did."""

    packages: tuple[Sent, ...]
    written: int
    written_bytes: int
    reused: int


class Pusher:
    """Brings packages to a remote.

    ``again``: upload also what the remote has with the right size. ``seconds``: how long one call of the
    remote may take; an upload may take longer, at 64 KiB a second.
    """

    def __init__(
        self,
        remote: Remote,
        store: DiskStore,
        *,
        jobs: int = 8,
        seconds: float = 60.0,
        again: bool = False,
    ) -> None:
        self._remote = remote
        self._store = store
        self._jobs = jobs
        self._seconds = seconds
        self._again = again
        self._written = self._written_bytes = self._reused = 0

    async def push(self, refs: Sequence[Ref]) -> Pushed:
        """Make these packages the current ones on the remote.

        Raises ``RemoteError`` and ``CorruptedError``; then a package is there whole, or as it was before.
        """
        manifests = [await asyncio.to_thread(proven, self._store, ref) for ref in refs]
        await self._call(self._remote.found)
        objects = {one.sha256: one for manifest in manifests for one in manifest.objects()}
        largest_first = sorted(objects.values(), key=lambda one: (-one.size, one.sha256))
        await at_once(self._jobs, (functools.partial(self._object, one) for one in largest_first))
        sent = [await self._publish(*one) for one in zip(refs, manifests, strict=True)]
        return Pushed(
            packages=tuple(sent),
            written=self._written,
            written_bytes=self._written_bytes,
            reused=self._reused,
        )

    async def _call(self, call: Callable[..., _T], *arguments: object, extra: float = 0.0) -> _T:
        return await limited(self._remote.name, self._seconds + extra, call, *arguments)

    async def _object(self, ref: ObjectRef) -> None:
        path = object_path(ref.sha256)
        if not self._again and await self._call(self._remote.size, path) == ref.size:
            self._reused += 1
            return
        await asyncio.to_thread(self._verify, ref)
        source = self._store.layout.object(ref.sha256)
        extra = ref.size / _SLOWEST_BYTES_A_SECOND
        await self._call(self._remote.put_file, path, source, extra=extra)
        arrived = await self._call(self._remote.size, path)
        if arrived != ref.size:
            raise RemoteError(
                f"{self._remote.name}/{path} has {arrived} bytes after the upload of {ref.size}."
            )
        self._written += 1
        self._written_bytes += ref.size

    def _verify(self, ref: ObjectRef) -> None:
        for _ in self._store.pieces(ref):
            pass

    async def _signatures(self, manifest: Digest) -> None:
        """Those of here and those that the remote has: several may have signed."""
        data = await asyncio.to_thread(self._store.signatures, manifest)
        if data is None:
            return
        path = signatures_path(manifest)
        there = await self._call(self._remote.read, path, MAX_SIGNATURES_BYTES)
        both = decode_signatures(data, manifest, path)
        if there is not None:
            with contextlib.suppress(UnsignedPackageError):  # damaged: what comes takes its place
                both = joined(decode_signatures(there, manifest, path), both)
        if encode(both) != there:
            await self._call(self._remote.put_bytes, path, encode(both))

    async def _publish(self, ref: Ref, manifest: Manifest) -> Sent:
        """The manifest, then the ref: the one file that changes."""
        data = encode(manifest)
        await self._object(ObjectRef(name="manifest", sha256=ref.manifest, size=len(data)))
        await self._signatures(ref.manifest)
        path = ref_path(ref.target, ref.environment)
        before = await self._call(self._remote.read, path, MAX_REF_BYTES)
        try:
            previous = (
                None
                if before is None
                else records.parse_ref(before, ref.target, ref.environment, path)
            )
        except CorruptedError:
            previous = None  # it is about to be replaced
        result: Literal["new", "replaced", "same"] = "new" if previous is None else "replaced"
        if previous is not None and previous.manifest == ref.manifest:
            result = "same"
        else:
            new = records.next_ref(manifest, ref.manifest, previous, records.utc_now())
            await self._call(self._remote.put_bytes, path, encode(new))
        return Sent(
            target=ref.target, environment=ref.environment, manifest=ref.manifest, result=result
        )
