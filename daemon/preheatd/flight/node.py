"""This node, for one target of a flight: whether a package fits, how it is taken, built and given away."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Literal

from preheat.errors import CorruptedError, PreheatError, RemoteError
from preheat.formats import other_formats
from preheat.store import DiskStore
from preheatd import events
from preheatd.arriving import Arrivals
from preheatd.remotes.pulling import Puller
from preheatd.remotes.pushing import Pusher
from preheatd.selection import selected

if TYPE_CHECKING:
    import contextlib

    from preheat.manifest import Digest, Manifest
    from preheatd.flight.builds import Builds
    from preheatd.outcome import Outcome
    from preheatd.project import Project
    from preheatd.remembering import Order
    from preheatd.remotes.remote import Remote

_ACTIONS = {
    "waits": events.BUILD_ELSEWHERE,
    "takes_over": events.BUILD_TAKEN_OVER,
    "builds": events.BUILD_ALONE,
    "trouble": events.REMOTE_TROUBLE,
}


@dataclasses.dataclass(frozen=True)
class Said:
    """What a build came to, for those who wait for it."""

    is_published: bool
    failure: tuple[str, bool] | None


class ProjectNode:
    """One target of a project on this machine. ``taken``: the package that came from the remote."""

    def __init__(
        self, project: Project, order: Order, builds: Builds, remote: Remote, emit: events.Emit
    ) -> None:
        self._project = project
        self._order = order
        self._builds = builds
        self._remote = remote
        self._emit = emit
        self._damaged = False
        self.taken: Manifest | None = None

    def may_build(self) -> bool:
        return self._builds.may_build()

    def booked(self) -> contextlib.AbstractContextManager[None]:
        return self._builds.booked()

    async def take(self, manifest: Digest) -> bool:
        """See ``Node``. A package that is damaged, or that the trust here forbids, does not fit."""
        puller = self._puller()
        request = self._order.request
        try:
            found = await puller.manifest(request.target.name, request.environment, manifest)
            if not await asyncio.to_thread(self._fits, found):
                return False
            await puller.take(found)
        except RemoteError as error:
            if not isinstance(error.__cause__, CorruptedError):
                raise
            self._damaged = True
            self.tell("trouble", error.message)
            return False
        except PreheatError as error:
            self.tell("trouble", f"{error.message} The package is not taken.")
            return False
        self.taken = found
        self._tell(events.PACKAGE_PULLED, f"{manifest[:16]} from {self._remote.name}")
        return True

    def _puller(self) -> Puller:
        config = self._project.config
        return Puller(
            self._remote,
            lambda: DiskStore(config.store, create=True, signing=config.signing),
            Arrivals(config),
        )

    def _fits(self, manifest: Manifest) -> bool:
        project, target = self._project, self._order.request.target
        return (
            manifest.factory == target.factory
            and not other_formats(manifest)
            and not project.inventory.check(project.config, manifest, target)
        )

    async def build(self) -> Outcome:
        return await self._builds.build(self._order)

    def said(self, done: Outcome) -> Said:
        failure = done.failure
        return Said(
            done.result == "built", None if failure is None else (failure.message, failure.refused)
        )

    async def give(self) -> Digest:
        """See ``Node``. Raises ``PreheatError``s of the store here as ``RemoteError``."""
        request = self._order.request
        store = self._project.store
        try:
            (ref,) = await asyncio.to_thread(
                selected, store, (request.target.name,), frozenset({request.environment})
            )
            await Pusher(self._remote, store, again=self._damaged).push((ref,))
        except RemoteError:
            raise
        except PreheatError as error:
            raise RemoteError(error.message, remedy=error.remedy) from error
        self._tell(events.PACKAGE_PUSHED, f"{ref.manifest[:16]} to {self._remote.name}")
        return ref.manifest

    def tell(self, what: Literal["waits", "trouble", "takes_over", "builds"], why: str) -> None:
        self._tell(_ACTIONS[what], why)

    def _tell(self, action: str, detail: str) -> None:
        request = self._order.request
        self._emit(
            events.Event(
                action=action,
                target=request.target.name,
                environment=request.environment,
                detail=detail,
            )
        )
