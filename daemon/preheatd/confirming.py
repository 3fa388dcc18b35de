"""The really fresh proof that follows behind a forked one, and what happens when it fails."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from typing import TYPE_CHECKING

from preheat.manifest import encode, environment_digest, sha256
from preheat.store import DiskStore, copy_package
from preheat.store.signing import UNSIGNED
from preheatd.stages import BuildFailed, Superseded
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from preheat.job import ProvenEvent
    from preheat.manifest import Digest, Manifest
    from preheatd.attempts import Attempt
    from preheatd.outcome import BuildRequest
    from preheatd.state import State

# What a service manager, a terminal, an operator or a machine without memory sends.
_ENDED_BY_SOMEBODY = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confirming:
    """Proves the published package of a target in a really fresh process.

    Nothing else of the package changes: the manifest with the new proof takes the place of the old one. A
    package that fails is taken back, and the target is built anew without forking. ``interrupted``: packages
    whose proof somebody ended before.
    """

    store: DiskStore
    state: State
    publish: Callable[[Manifest], None]
    still_current: Callable[[Manifest], Awaitable[None]]
    interrupted: set[Digest] = dataclasses.field(default_factory=set)

    async def unconfirmed(self, request: BuildRequest) -> Manifest | None:
        """The published package, if its proof was forked."""
        target, environment = request.target.name, request.environment
        package = await asyncio.to_thread(self.store.read_package, target, environment)
        if package is None or package[1].proof is None or not package[1].proof.forked:
            return None
        # It will be signed when it is published with its new proof.
        await asyncio.to_thread(self.store.check_signed, *package)
        return package[1]

    async def stage(self, manifest: Manifest, staging: Path) -> None:
        """Copy the package to where a proof looks for it; each object is verified on the way."""
        await asyncio.to_thread(_stage, self.store, manifest, staging)

    async def confirm(
        self, manifest: Manifest, attempt: Attempt, limit_seconds: float
    ) -> BuildFailed | None:
        """Why the package was withdrawn; None when it was confirmed. Raises ``Superseded``.

        Also for a proof that somebody ended, once: that says nothing about the package.
        """
        try:
            proven = await _within(limit_seconds, attempt.prove_freshly())
            if proven.without:
                raise BuildFailed("proof", "; ".join(proven.without.values()))
        except BuildFailed as failure:
            # Not while the sources differ: a proof of edited sources fails by design.
            await self.still_current(manifest)
            if failure.signal in _ENDED_BY_SOMEBODY and self._is_first_time(manifest):
                raise Superseded(()) from failure
            await uncancelled(asyncio.to_thread(self._withdraw, manifest, failure))
            return failure
        await uncancelled(asyncio.to_thread(self.publish, manifest.proven(proven.proof, {})))
        return None

    def _is_first_time(self, manifest: Manifest) -> bool:
        digest = sha256(encode(manifest))
        if digest in self.interrupted:
            return False  # it may end itself
        self.interrupted.add(digest)
        return True

    def _withdraw(self, manifest: Manifest, failure: BuildFailed) -> None:
        ref = self.store.read_ref(manifest.target, environment_digest(manifest.environment))
        if ref is None:
            return
        self.state.note_withdrawn(ref.target, ref.environment, ref.manifest)
        self.state.forget_fresh_proof(ref.target, ref.environment)
        self.store.quarantine_ref(ref.target, ref.environment, reason=failure.message)


async def _within(seconds: float, proof: Awaitable[ProvenEvent]) -> ProvenEvent:
    try:
        async with asyncio.timeout(seconds):
            return await proof
    except TimeoutError:
        message = f"The proof took longer than {seconds:g} s and was ended."
        raise BuildFailed("timed_out", message) from None


def _stage(store: DiskStore, manifest: Manifest, staging: Path) -> None:
    staged = DiskStore(staging, create=True, signing=UNSIGNED)
    copy_package(store, staged, manifest)
    staged.publish(manifest)
