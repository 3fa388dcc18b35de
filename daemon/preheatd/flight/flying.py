"""One flight: how one node gets one package, from the shared store, from another node or by building it.

The thin part: it asks, waits, takes and builds as ``decision.py`` says, through two seams, and holds a lease
while it builds.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

import msgspec

from preheat.errors import RemoteError
from preheatd.flight import decision
from preheatd.flight.decision import Known
from preheatd.flight.holding import Holding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from preheat.manifest import Digest
    from preheatd.flight.decision import Policy
    from preheatd.flight.lease import BuildLease

# How often what was built is brought to the store before it stays here alone.
MAX_GIVES = 6
_Done = TypeVar("_Done")
_Done_co = TypeVar("_Done_co", covariant=True)


class Shared(Protocol):
    """The shared store, of one target and environment. Each call raises ``RemoteError`` when it fails."""

    async def ref(self) -> Digest | None:
        """The manifest that the ref names; a small read."""
        ...

    async def lease(self, expected: BuildLease) -> BuildLease | None:
        """The lease of this base and term; a small read."""
        ...

    async def claim(self, lease: BuildLease) -> BuildLease:
        """Write a lease where there is none of this base and term; the one that then stands there."""
        ...

    async def renew(self, lease: BuildLease) -> None:
        """Write the own lease again."""
        ...

    async def tidy(self, kept: frozenset[Digest | None]) -> None:
        """Remove the leases that follow other packages than these."""
        ...


class BuiltHere(Protocol):
    """What a build here came to. ``failure``: None for none; whether it would fail everywhere."""

    @property
    def is_published(self) -> bool: ...
    @property
    def failure(self) -> tuple[str, bool] | None: ...


class Node(Protocol[_Done]):
    """This node, for one target."""

    def may_build(self) -> bool:
        """Whether a build could begin now."""
        ...

    def booked(self) -> contextlib.AbstractContextManager[None]:
        """Inside, one of the builds that this node may make at a time is spoken for."""
        ...

    async def take(self, manifest: Digest) -> bool:
        """Load a package from the shared store; False: it does not fit. ``RemoteError``: not to be had."""
        ...

    async def build(self) -> _Done:
        """Build it, prove it and publish it here."""
        ...

    def said(self, done: _Done) -> BuiltHere: ...

    async def give(self) -> Digest:
        """Bring what was built here to the shared store. Raises ``RemoteError``."""
        ...

    def tell(self, what: Literal["waits", "trouble", "takes_over", "builds"], why: str) -> None:
        """Say what is going on."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Landed(Generic[_Done]):
    """How a flight ended: a package was ``taken``, or ``built`` with ``done``, or there is none.

    ``left``: the holder of ``lease`` builds it. ``gave_up``: ``nodes`` tried, the last of them that of
    ``lease``. ``given``: what was built is in the shared store.
    """

    how: Literal["taken", "built", "left", "gave_up"]
    manifest: Digest | None = None
    done: _Done | None = None
    lease: BuildLease | None = None
    nodes: int = 0
    given: bool = False


@dataclasses.dataclass(kw_only=True)
class Flight(Generic[_Done]):
    """``own``: a lease with all that this node says of itself. ``chance``: evenly from 0 to 1."""

    own: BuildLease
    shared: Shared
    node: Node[_Done]
    policy: Policy
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float]
    _known: Known = dataclasses.field(default_factory=Known, init=False)
    _told: tuple[str, str] = dataclasses.field(default=("", ""), init=False)

    async def run(self) -> Landed[_Done]:
        """Get the package. Raises what a build here raises, and nothing of the shared store's."""
        with contextlib.ExitStack() as booked:
            while True:
                landed = await self._next(booked)
                if landed is not None:
                    return landed
                if not self._holds:
                    booked.close()

    async def take_only(self) -> Landed[_Done] | None:
        """Take what is published, if it fits; None: there is nothing, or it is not to be had."""
        try:
            ref = await self.shared.ref()
        except RemoteError as error:
            self._tell("trouble", error.message)
            return None
        return None if ref is None else await self._take(ref)

    async def _next(self, booked: contextlib.ExitStack) -> Landed[_Done] | None:
        may_build = self._holds or self.node.may_build()
        match decision.decide(self._known, self.clock(), self.policy, may_build=may_build):
            case decision.Wait(seconds):
                self._tell_waiting()
                await self.sleep(seconds)
            case decision.Take(manifest):
                return await self._take(manifest)
            case decision.Build(lease):
                return await self._build(lease)
            case decision.GoOn(why, share):
                self._tell("builds", why)
                return await self._build_without(share=share)
            case decision.Leave(lease):
                return Landed(how="left", lease=lease)
            case decision.GiveUp(lease, nodes):
                return Landed(how="gave_up", lease=lease, nodes=nodes)
            case decision.Claim(term):
                await self._asking(self._claim(term, booked))
            case decision.LookAtRef():
                await self._asking(self._look_at_ref())
            case decision.LookAtLease(term):
                await self._asking(self._look_at_lease(term))
        return None

    @property
    def _holds(self) -> bool:
        lease = self._known.lease
        return lease is not None and lease.token == self.policy.token

    async def _asking(self, question: Awaitable[Known]) -> None:
        try:
            self._known = await question
        except RemoteError as error:
            self._tell("trouble", error.message)
            self._known = decision.troubled(self._known, self.clock(), self.policy, self.chance())

    async def _look_at_ref(self) -> Known:
        held = self._known.lease if self._holds else None
        # Before the question: an answer may be as old as that.
        asked_at = self.clock()
        known = decision.saw_ref(self._known, await self.shared.ref(), asked_at)
        if held is not None and known.lease is None:
            # It follows a package that is not the current one any more.
            with contextlib.suppress(RemoteError):
                await self.shared.renew(msgspec.structs.replace(held, state="abandoned"))
        return known

    async def _look_at_lease(self, term: int) -> Known:
        lease = await self.shared.lease(self._lease(term))
        return decision.saw_lease(
            self._known, term, lease, self.clock(), self.policy, self.chance()
        )

    async def _claim(self, term: int, booked: contextlib.ExitStack) -> Known:
        booked.enter_context(self.node.booked())
        before = self._known.lease
        standing = await self.shared.claim(self._lease(term))
        known = decision.claimed(self._known, standing, self.clock(), self.policy, self.chance())
        if standing.token == self.policy.token and before is not None:
            self._tell("takes_over", f"from {before.who()}")
        return known

    async def _take(self, manifest: Digest) -> Landed[_Done] | None:
        try:
            fits = await self.node.take(manifest)
        except RemoteError as error:
            self._tell("trouble", error.message)
            self._known = decision.take_failed(
                self._known, manifest, self.clock(), self.policy, self.chance()
            )
            return None
        if fits:
            return Landed(how="taken", manifest=manifest)
        self._known = decision.does_not_fit(self._known, manifest)
        return None

    async def _build(self, lease: BuildLease) -> Landed[_Done]:
        async with Holding(lease, self.shared.renew, self.sleep) as holding:
            done = await self.node.build()
            said = self.node.said(done)
            given = await self._give() if said.is_published else None
            if given is not None:
                holding.ends("published", manifest=given)
            elif said.failure is not None:
                message, refused = said.failure
                holding.ends("failed", message=message, refused=refused)
        if given is not None:
            with contextlib.suppress(RemoteError):  # whoever builds next does it
                await self.shared.tidy(frozenset({lease.base, given}))
        return Landed(how="built", done=done, manifest=given, given=given is not None)

    async def _build_without(self, *, share: bool) -> Landed[_Done]:
        done = await self.node.build()
        given = await self._give() if share and self.node.said(done).is_published else None
        return Landed(how="built", done=done, manifest=given, given=given is not None)

    async def _give(self) -> Digest | None:
        for tried in range(MAX_GIVES):
            if tried:
                first, chance = decision.FIRST_TROUBLE_SECONDS, self.chance()
                await self.sleep(
                    decision.pause_seconds(tried - 1, self.policy.length, chance, first)
                )
            try:
                return await self.node.give()
            except RemoteError as error:
                self._tell("trouble", f"it was built here and is not shared yet: {error.message}")
        return None

    def _lease(self, term: int) -> BuildLease:
        return msgspec.structs.replace(self.own, base=self._known.ref, term=term)

    def _tell_waiting(self) -> None:
        lease = self._known.lease
        if lease is None or lease.state != "building" or self._known.troubled_at is not None:
            return
        if not self._holds and not decision.has_expired(self._known):
            self._tell("waits", f"{lease.who()} builds it")

    def _tell(self, what: Literal["waits", "trouble", "takes_over", "builds"], why: str) -> None:
        if (what, why) != self._told:  # once, however often it is so
            self._told = (what, why)
            self.node.tell(what, why)
