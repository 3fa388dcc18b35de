"""A bundle on its way into a store: read ahead in one thread, checked and written in others.

Nothing becomes visible before the whole bundle was checked: objects first, refs last. Objects that have
arrived stay when an import is interrupted, and the next one does not write them again.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import aiofiles

from preheat.errors import BundleError, IncompatibleError, PreheatError
from preheat.manifest import ObjectRef, decode_manifest
from preheat.store.bundle_parser import (
    BundleParser,
    End,
    IndexRead,
    ManifestRead,
    ManifestsRead,
    ObjectBegins,
    ObjectBytes,
    ObjectEnds,
    SignatureRead,
)
from preheatd.arriving import COMING, Arrivals, Arrived, check_room
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import IO, Protocol

    from preheat.manifest import Digest, Environment, Manifest
    from preheat.store import DiskStore
    from preheat.store.arrival import Arrival
    from preheat.store.bundle_format import Part
    from preheat.store.bundle_parser import Event
    from preheat.verdict import Reason

    class _Source(Protocol):
        async def read(self, count: int, /) -> bytes: ...


# Making files durable takes longer than writing them; a few at a time keep a disk busy.
_COMMITTING = 4
# Each read is handed from one thread to another, which takes its time; a few of them are in memory.
_READ_BYTES = 8 * 1024 * 1024
_SPOOL_BYTES = 8 * 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did. ``signatures``: how many packages brought signatures."""

    packages: tuple[Arrived, ...]
    written: int
    written_bytes: int
    reused: int
    signatures: int


class Importer:
    """Takes the bytes of one bundle into a store. All methods block; ``take`` is called in order.

    ``open_store`` is asked when the manifests have been checked, so that a bundle which is refused
    before that makes no store. ``here``: how an environment differs from this one, for the refusal.
    """

    def __init__(
        self,
        open_store: Callable[[], DiskStore],
        arrivals: Arrivals,
        *,
        length: int | None = None,
        here: Callable[[Environment], tuple[Reason, ...]] = lambda _: (),
    ) -> None:
        self._open_store = open_store
        self._arrivals = arrivals
        self._parser = BundleParser(length)
        self._here = here
        self._signatures: dict[Digest, tuple[int, int]] = {}
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)
        self._spooled: list[tuple[int, int]] = []
        self._others: list[Environment] = []
        self._store: DiskStore | None = None
        self._judged: dict[Digest, Arrived] = {}
        self._places: dict[Digest, tuple[int, int]] = {}
        self._wanted: dict[Digest, int] = {}
        self._arrival: Arrival | None = None
        self._pool = ThreadPoolExecutor(_COMMITTING, thread_name_prefix="commit")
        self._commits: collections.deque[Future[None]] = collections.deque()
        self._written = self._written_bytes = self._reused = 0

    def take(self, data: bytes) -> None:
        """The next bytes. Raises ``BundleError``, ``StoreError``, ``IncompatibleError``."""
        for event in self._parser.feed(data):
            self._heard(event)

    def finish(self) -> Imported:
        """The bundle has ended: publish. Raises as ``take`` does; then no ref, or not every one, moved."""
        self._parser.finish()
        while self._commits:
            self._commits.popleft().result()
        self._check_signatures()
        return Imported(
            packages=tuple(self._published(judged) for judged in self._judged.values()),
            written=self._written,
            written_bytes=self._written_bytes,
            reused=self._reused,
            signatures=len(self._signatures),
        )

    def close(self) -> None:
        """Give up what has not arrived. May be repeated."""
        try:
            if self._arrival is not None:
                self._arrival.discard()
        finally:
            self._pool.shutdown(wait=True)
            self._spool.close()

    def _heard(self, event: Event) -> None:
        match event:
            case ObjectBytes(data):
                if self._arrival is not None:
                    self._arrival.write(data)
            case ObjectBegins(member):
                self._begin(member.part)
            case ObjectEnds():
                self._end()
            case ManifestRead(_, manifest, data):
                self._keep(manifest, data)
            case SignatureRead(member, data):
                assert member.package is not None
                self._signatures[member.package.manifest] = self._spool_end(data)
            case ManifestsRead():
                self._judge()
            case IndexRead() | End():
                pass

    def _keep(self, manifest: Manifest, data: bytes) -> None:
        """Remember a manifest without keeping it in memory: there may be thousands."""
        self._spooled.append(self._spool_end(data))
        only = self._arrivals.only
        if only is not None and not self._others:
            self._others.append(manifest.environment)

    def _spool_end(self, data: bytes) -> tuple[int, int]:
        place = self._spool.seek(0, os.SEEK_END), len(data)
        self._spool.write(data)
        return place

    def _check_signatures(self) -> None:
        """All of them before the first package is published."""
        assert self._store is not None
        for digest, judged in self._judged.items():
            if judged.result in COMING:
                place = self._signatures.get(digest)
                data = None if place is None else self._bytes_at(place)
                self._store.accept_signatures(self._manifest_at(self._places[digest]), data)

    def _bytes_at(self, place: tuple[int, int]) -> bytes:
        self._spool.seek(place[0])
        return self._spool.read(place[1])

    def _manifest_at(self, place: tuple[int, int]) -> Manifest:
        return decode_manifest(self._bytes_at(place))

    def _judge(self) -> None:
        """All manifests are known and belong together; now it is said which objects are written."""
        store = self._store = self._open_store()
        for place in self._spooled:
            manifest = self._manifest_at(place)
            judged = self._arrivals.judge(store, manifest)
            self._judged[judged.manifest] = judged
            self._places[judged.manifest] = place
            if judged.result in COMING:
                self._wanted.update((ref.sha256, ref.size) for ref in manifest.objects())
        if all(one.result == "left_out" for one in self._judged.values()):
            raise self._nothing_for_here()
        check_room(store, self._wanted)

    def _nothing_for_here(self) -> PreheatError:
        reasons = self._here(self._others[0]) if self._others else ()
        if not self._others:
            names = ", ".join(sorted({one.target for one in self._judged.values()}))
            return BundleError(
                f"It holds nothing of what was asked for; it holds {names}.",
                remedy="Nothing was imported.",
            )
        return IncompatibleError(
            "No package in the bundle is for an environment of this machine: "
            + ("; ".join(str(one) for one in reasons) or "it has other environments")
            + ".",
            reasons=reasons,
        )

    def _begin(self, part: Part) -> None:
        assert self._store is not None
        if part.sha256 not in self._wanted:
            return
        ref = ObjectRef(name=f"objects/{part.sha256}", sha256=part.sha256, size=part.size)
        if self._store.reuse(ref):
            self._reused += 1
        else:
            # The parser says ``ObjectEnds`` when it has seen the digest.
            self._arrival = self._store.arrival(ref, verified=True)

    def _end(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is None:
            return
        self._written += 1
        self._written_bytes += arrival.size
        while len(self._commits) >= _COMMITTING:
            self._commits.popleft().result()
        self._commits.append(self._pool.submit(_committed, arrival))

    def _published(self, judged: Arrived) -> Arrived:
        if judged.result not in COMING:
            return judged
        assert self._store is not None
        manifest = self._manifest_at(self._places[judged.manifest])
        # Somebody may have published meanwhile.
        again = self._arrivals.judge(self._store, manifest)
        if again.result in COMING:
            self._store.publish(manifest, built_here=False)
        return again


def _committed(arrival: Arrival) -> None:
    with arrival:
        arrival.commit()


async def import_bundle(file: Path | int, importer: Importer) -> Imported:
    """Read a bundle from a path or descriptor into a store; the next piece is read while one is handled.

    Raises ``BundleError`` that names the file, ``StoreError``, ``IncompatibleError``.
    """
    name = "standard input" if isinstance(file, int) else str(file)
    try:
        async with aiofiles.open(
            file, "rb", buffering=0, closefd=not isinstance(file, int)
        ) as source:
            async for piece in _read_ahead(source):
                # A thread cannot be stopped: what it writes must be over before it is taken away.
                await uncancelled(asyncio.to_thread(importer.take, piece))
        return await uncancelled(asyncio.to_thread(importer.finish))
    except OSError as error:
        raise BundleError(f"{name} cannot be read: {error.strerror}.", remedy="") from error
    except BundleError as error:
        raise BundleError(f"{name}: {error.message}", remedy=error.remedy) from error
    finally:
        await uncancelled(asyncio.to_thread(importer.close))


async def _read_ahead(source: _Source) -> AsyncIterator[bytes]:
    """The pieces of a file, the next one read while one is handled."""
    ahead = asyncio.ensure_future(source.read(_READ_BYTES))
    try:
        while piece := await asyncio.shield(ahead):
            ahead = asyncio.ensure_future(source.read(_READ_BYTES))
            yield piece
    finally:
        with contextlib.suppress(BaseException):
            await ahead
