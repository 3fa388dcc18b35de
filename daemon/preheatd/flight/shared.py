"""The shared store as a flight sees it: refs and build leases in a remote."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import posixpath
from typing import TYPE_CHECKING, Protocol, TypeVar

from preheat.errors import CorruptedError
from preheat.manifest import MAX_REF_BYTES
from preheat.store import records
from preheatd.flight.lease import (
    MAX_LEASE_BYTES,
    decode_lease,
    encode_lease,
    lease_name,
    unknown_lease,
)
from preheatd.remotes.remote import build_lease_path, ref_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from preheat.manifest import Digest
    from preheatd.flight.lease import BuildLease

_T = TypeVar("_T")
# Of a lease's length: how long to wait before looking whose it is, where several may have written it.
_SETTLING = 1 / 60
# A node that has built looks at no more leases than that.
MOST_TIDIED = 1000


class Place(Protocol):
    """What of a ``Remote`` is needed here."""

    @property
    def creates_exclusively(self) -> bool: ...
    def read(self, path: str, limit: int) -> bytes | None: ...
    def create(self, path: str, data: bytes) -> bool: ...
    def put_bytes(self, path: str, data: bytes) -> None: ...
    def names(self, path: str) -> list[str]: ...
    def remove(self, path: str) -> None: ...


class Asking(Protocol):
    """Calls the remote, which blocks, within a time limit. Raises ``RemoteError``."""

    async def __call__(self, call: Callable[..., _T], *arguments: object) -> _T: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedStore:
    """Ref and leases of one target and environment. ``chance``: evenly from 0 to 1."""

    remote: Place
    target: str
    environment: Digest
    ask: Asking
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float]

    async def ref(self) -> Digest | None:
        path = self._ref_path
        data = await self.ask(self.remote.read, path, MAX_REF_BYTES)
        # A damaged one names nothing; the next one replaces it.
        with contextlib.suppress(CorruptedError):
            if data is not None:
                return records.parse_ref(data, self.target, self.environment, path).manifest
        return None

    async def lease(self, expected: BuildLease) -> BuildLease | None:
        data = await self.ask(self.remote.read, self._path(expected), MAX_LEASE_BYTES)
        return None if data is None else decode_lease(data, expected)

    async def claim(self, lease: BuildLease) -> BuildLease:
        path = self._path(lease)
        made = await self.ask(self.remote.create, path, encode_lease(lease))
        if made and self.remote.creates_exclusively:
            return lease
        if made:
            # The last one to write it is its holder; the others have this long to write.
            await self.sleep(lease.patience * _SETTLING * (1 + self.chance()))
        standing = await self.lease(lease)
        if standing is None:
            # Not to be seen from here yet, or gone again: somebody has it as long as it may last.
            return lease if made else unknown_lease(lease)
        return standing

    async def renew(self, lease: BuildLease) -> None:
        await self.ask(self.remote.put_bytes, self._path(lease), encode_lease(lease))

    async def tidy(self, kept: frozenset[Digest | None]) -> None:
        directory = self._leases
        beginnings = tuple(lease_name(base, 0).removesuffix("0") for base in kept)
        for name in (await self.ask(self.remote.names, directory))[:MOST_TIDIED]:
            if not name.startswith(beginnings):
                await self.ask(self.remote.remove, f"{directory}/{name}")

    # Once: somebody who waits asks for the same names again and again.
    @functools.cached_property
    def _ref_path(self) -> str:
        return ref_path(self.target, self.environment)

    @functools.cached_property
    def _leases(self) -> str:
        return posixpath.dirname(build_lease_path(self.target, self.environment, "any"))

    def _path(self, lease: BuildLease) -> str:
        return f"{self._leases}/{lease_name(lease.base, lease.term)}.json"
