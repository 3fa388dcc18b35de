"""Packages on their way from a remote into a store: objects first, refs last, nothing believed."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, TypeVar

from preheat.errors import CorruptedError, RemoteError
from preheat.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_REF_BYTES,
    decode_ref,
    encode,
    environment_digest,
    sha256,
)
from preheat.store import records
from preheat.store.signatures import MAX_SIGNATURES_BYTES
from preheatd.arriving import COMING, Arrivals, Arrived, check_room
from preheatd.remotes.calls import at_once, in_turns, limited
from preheatd.remotes.remote import object_path, ref_path, signatures_path
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from preheat.manifest import Digest, Manifest, ObjectRef
    from preheat.store import DiskStore
    from preheat.store.arrival import Arrival
    from preheatd.remotes.calls import Turns
    from preheatd.remotes.remote import Remote

_Name = tuple[str, str]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pulled:
    """What a pull did. ``missing``: targets of which the remote has no package for this environment."""

    packages: tuple[Arrived, ...]
    missing: tuple[str, ...]
    written: int
    written_bytes: int
    reused: int


class Puller:
    """Takes packages from a remote.

    ``seconds``: how long one call of the remote may take: a question, or ``PIECE_BYTES`` of an object.
    """

    def __init__(
        self,
        remote: Remote,
        open_store: Callable[[], DiskStore],
        arrivals: Arrivals,
        *,
        jobs: int = 8,
        seconds: float = 60.0,
    ) -> None:
        self._remote = remote
        self._open_store = open_store
        self._arrivals = arrivals
        self._jobs = jobs
        self._seconds = seconds
        self._written = self._written_bytes = self._reused = 0

    async def pull(self, targets: Iterable[str]) -> Pulled:
        """Take the packages of these targets, or of all, in the environments that are wanted.

        Raises ``RemoteError`` and ``StoreError``; then no ref moved, or not every one. What has arrived is
        not fetched again the next time.
        """
        if not await self._call(self._remote.is_founded):
            raise RemoteError(
                f"There is no store at {self._remote.name}.",
                remedy="Check the URL, or run `preheat push` there first.",
            )
        wanted = await self._wanted(tuple(targets))
        manifests: dict[_Name, Manifest] = {}
        look = (functools.partial(self._look, name, manifests) for name in sorted(wanted))
        await at_once(self._jobs, look)
        missing = {name for name, _ in wanted} - {name for name, _ in manifests}
        if not manifests:
            return Pulled(
                packages=(), missing=tuple(sorted(missing)), written=0, written_bytes=0, reused=0
            )
        packages = await self._take([manifests[name] for name in sorted(manifests)])
        return Pulled(
            packages=packages,
            missing=tuple(sorted(missing)),
            written=self._written,
            written_bytes=self._written_bytes,
            reused=self._reused,
        )

    async def _call(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await limited(self._remote.name, self._seconds, call, *arguments)

    async def _wanted(self, targets: tuple[str, ...]) -> set[_Name]:
        """Which refs to look at: without a listing where target and environment are known."""
        only = self._arrivals.only
        if targets and only is not None:
            return {(target, environment) for target in targets for environment in only}
        found: set[_Name] = set()
        for path in await self._call(lambda: list(self._remote.refs())):
            data = await self._call(self._remote.read, path, MAX_REF_BYTES)
            if data is None:
                continue
            name = _name_of(data, path)
            if ref_path(*name) == path and self._arrivals.wants(*name):
                found.add(name)
        return found

    async def _look(self, name: _Name, manifests: dict[_Name, Manifest]) -> None:
        """Ref and manifest of a package; the ref is read once more when the manifest has vanished."""
        for _ in range(2):
            path = ref_path(*name)
            data = await self._call(self._remote.read, path, MAX_REF_BYTES)
            if data is None:
                return
            with _believing_nothing(self._remote, path):
                digest = records.parse_ref(data, *name, path).manifest
            path = object_path(digest)
            data = await self._call(self._remote.read, path, MAX_MANIFEST_BYTES)
            if data is None:
                continue
            with _believing_nothing(self._remote, path):
                manifests[name] = _checked(records.parse_manifest(data, digest, path), data, name)
            return
        raise RemoteError(
            f"{self._remote.name} has no manifest {digest} that its ref of {name[0]!r} names."
        )

    async def _take(self, manifests: list[Manifest]) -> tuple[Arrived, ...]:
        store = await asyncio.to_thread(self._open_store)
        judged = [
            (await asyncio.to_thread(self._arrivals.judge, store, one), one) for one in manifests
        ]
        coming = [manifest for one, manifest in judged if one.result in COMING]
        await self._bring(store, coming)
        return tuple([await asyncio.to_thread(self._publish, store, *one) for one in judged])

    async def manifest(self, target: str, environment: Digest, digest: Digest) -> Manifest:
        """The manifest of one package that is known by name and digest.

        Raises ``RemoteError``; its cause is a ``CorruptedError`` where it is there and cannot be believed.
        """
        path = object_path(digest)
        data = await self._call(self._remote.read, path, MAX_MANIFEST_BYTES)
        if data is None:
            raise RemoteError(f"{self._remote.name} has no manifest {digest} of {target!r}.")
        with _believing_nothing(self._remote, path):
            manifest = records.parse_manifest(data, digest, path)
            return _checked(manifest, data, (target, environment))

    async def take(self, manifest: Manifest) -> None:
        """Take this package, whatever is here, and make it the current one. Raises as ``pull``."""
        store = await asyncio.to_thread(self._open_store)
        await self._bring(store, [manifest])
        await uncancelled(asyncio.to_thread(store.publish, manifest, built_here=False))

    async def _bring(self, store: DiskStore, coming: list[Manifest]) -> None:
        """Everything that these packages name, and who signed them."""
        objects = {ref.sha256: ref for manifest in coming for ref in manifest.objects()}
        wanted = {ref.sha256: ref.size for ref in objects.values()}
        await asyncio.to_thread(check_room, store, wanted)
        largest_first = sorted(objects.values(), key=lambda ref: (-ref.size, ref.sha256))
        await self._fetch_all(store, largest_first)
        for manifest in coming:  # all of them before the first package is published
            path = signatures_path(sha256(encode(manifest)))
            data = await self._call(self._remote.read, path, MAX_SIGNATURES_BYTES)
            await asyncio.to_thread(store.accept_signatures, manifest, data)

    async def _fetch_all(self, store: DiskStore, refs: list[ObjectRef]) -> None:
        """In a few threads, each of which takes one object after the other."""
        waiting = collections.deque(refs)

        async def some() -> None:
            work = functools.partial(self._fetch_some, store, waiting)
            fetched = await in_turns(self._remote.name, self._seconds, work)
            self._written += len(fetched)
            self._written_bytes += sum(ref.size for ref in fetched)

        await at_once(self._jobs, [some] * min(self._jobs, len(refs)))
        self._reused = len(refs) - self._written

    def _fetch_some(
        self, store: DiskStore, waiting: collections.deque[ObjectRef], turns: Turns
    ) -> list[ObjectRef]:
        """Those that were fetched; the store has the others."""
        fetched = []
        while waiting:
            turns.check_wanted()
            try:
                ref = waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            if self._fetched(store, ref, turns):
                fetched.append(ref)
        return fetched

    def _fetched(self, store: DiskStore, ref: ObjectRef, turns: Turns) -> bool:
        """Whether an object was fetched; false where the store has it."""
        if store.reuse(ref):
            return False
        path = object_path(ref.sha256)
        size = turns.ask(self._remote.size, path)
        if size != ref.size:
            said = "is missing" if size is None else f"has {size} bytes"
            raise RemoteError(
                f"{self._remote.name}/{path} ({ref.name}) {said}; its manifest says {ref.size}.",
                remedy="Push the package again with --again.",
            )
        with store.arrival(ref) as arrival:
            turns.if_given_up(arrival.discard)
            self._pieces(path, ref, arrival, turns)
            with _believing_nothing(self._remote, path):
                arrival.commit()
        return True

    def _pieces(self, path: str, ref: ObjectRef, arrival: Arrival, turns: Turns) -> None:
        with contextlib.closing(self._remote.pieces(path, ref.size)) as pieces:
            while arrival.size < ref.size:
                missing = ref.size - arrival.size
                piece = turns.ask(next, pieces, b"")
                if not piece or len(piece) > missing:
                    raise RemoteError(
                        f"{self._remote.name}/{path} ({ref.name}) gave {len(piece)} bytes instead of "
                        f"{missing}."
                    )
                arrival.write(piece)

    def _publish(self, store: DiskStore, judged: Arrived, manifest: Manifest) -> Arrived:
        if judged.result not in COMING:
            return judged
        again = self._arrivals.judge(store, manifest)  # somebody may have published meanwhile
        if again.result in COMING:
            store.publish(manifest, built_here=False)
        return again


@contextlib.contextmanager
def _believing_nothing(remote: Remote, path: str) -> Iterator[None]:
    """Damage inside is the remote's, and says so."""
    try:
        yield
    except CorruptedError as error:
        raise RemoteError(
            f"{remote.name}/{path} is damaged or not what its name says: {error.message}",
            remedy="Nothing of it was made visible. Push the package again with --again.",
        ) from error


def _name_of(data: bytes, path: str) -> _Name:
    try:
        ref = decode_ref(data, where=path)
    except CorruptedError:
        return "", ""  # damaged: nobody's
    return ref.target, ref.environment


def _checked(manifest: Manifest, data: bytes, name: _Name) -> Manifest:
    if (manifest.target, environment_digest(manifest.environment)) != name:
        raise CorruptedError("It is the manifest of another target or environment.")
    if not manifest.is_proven():
        raise CorruptedError("Its package is not proven.")
    if encode(manifest) != data:
        raise CorruptedError("It is not written as preheat writes it.")
    return manifest
