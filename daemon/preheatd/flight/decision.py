"""What a node does next about one target that is missing here: pure, on what it saw and its own clock.

``Known`` is what a node has seen, and only functions of this module make one from another. ``decide`` says
the next step; whoever carries it out folds what came of it into the next ``Known``. All times are of one
node's own monotonic clock, in seconds: nothing that another node's clock says counts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preheat.manifest import Digest
    from preheatd.flight.lease import BuildLease
    from preheatd.flight.settings import WhenBusy


FIRST_PAUSE_SECONDS, FIRST_TROUBLE_SECONDS = 2.0, 0.5
_PAUSE_GROWTH = 1.6
# Of a lease's length: how long the longest pause of a waiting node is before it is scattered.
_LONGEST_PAUSE = 1 / 8
# How often taking one package may fail before it counts as one that does not fit.
MAX_TAKES = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """What this node wants.

    ``when_busy``: while another node builds, wait for it, build as well, or do without. ``length``: of its
    own leases. ``token``: marks them as its own. ``attempts``: so many nodes may fail or vanish before this
    one gives up. ``once``: a failure with the same ``sources`` from before counts as well.
    ``trouble_seconds``: how long the shared store may be out of reach.
    """

    token: str
    when_busy: WhenBusy = "wait"
    length: float = 120.0
    attempts: int = 3
    once: bool = False
    sources: str = ""
    trouble_seconds: float = 15.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What a node has seen of one target.

    ``ref``: the manifest that the shared ref names, None for none; ``ref_at``: when that was read, None for
    never. ``unfit``: manifests that cannot be used here. ``takes``: how often the latest could not be had.
    ``lease``: the newest one that follows ``ref``; ``changed_at``: since when it is as it is, ``looked_at``:
    when it was read last. ``newest_at``: when a later term was looked for and there was none; None: never.
    ``pause_until``: nothing is asked before; ``pauses``: how many there were. ``claimed_at``: when a lease
    became this node's. ``watched``: tokens of holders that were seen building; ``ended``: of those that
    failed or vanished. ``troubled_at``: since when the store is out of reach, None: it is not; ``troubles``:
    how often it was asked in vain since.
    """

    ref: Digest | None = None
    ref_at: float | None = None
    unfit: frozenset[Digest] = frozenset()
    takes: int = 0
    lease: BuildLease | None = None
    changed_at: float = 0.0
    looked_at: float = 0.0
    newest_at: float | None = None
    pause_until: float = 0.0
    pauses: int = 0
    claimed_at: float | None = None
    watched: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    troubled_at: float | None = None
    troubles: int = 0


@dataclasses.dataclass(frozen=True)
class LookAtRef:
    """Read the shared ref."""


@dataclasses.dataclass(frozen=True)
class LookAtLease:
    """Read the lease of this term."""

    term: int


@dataclasses.dataclass(frozen=True)
class Take:
    """Load this package, if it fits."""

    manifest: Digest


@dataclasses.dataclass(frozen=True)
class Claim:
    """Try to become the holder of this term."""

    term: int


@dataclasses.dataclass(frozen=True)
class Build:
    """Build under the lease that is this node's."""

    lease: BuildLease


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Build without a lease. ``share``: the shared store can be given what comes of it."""

    why: str
    share: bool


@dataclasses.dataclass(frozen=True)
class Leave:
    """Do without: another node builds it."""

    lease: BuildLease


@dataclasses.dataclass(frozen=True)
class GiveUp:
    """Do without: other nodes tried, and it failed."""

    lease: BuildLease
    nodes: int


@dataclasses.dataclass(frozen=True)
class Wait:
    """Ask nothing for so many seconds."""

    seconds: float


Step = LookAtRef | LookAtLease | Take | Claim | Build | GoOn | Leave | GiveUp | Wait


def decide(known: Known, now: float, policy: Policy, *, may_build: bool) -> Step:
    """The next step. ``may_build``: this node has a build to spare."""
    if known.troubled_at is not None:
        if known.troubles > 1 and now - known.troubled_at >= policy.trouble_seconds:
            return GoOn("the shared store is out of reach", share=False)
        if now < known.pause_until:
            return Wait(known.pause_until - now)
    if known.ref_at is None:
        return LookAtRef()
    if known.ref is not None and known.ref not in known.unfit:
        return Take(known.ref)
    if known.newest_at is None:
        return LookAtLease(_next_term(known))
    if known.lease is None:
        return _claim(known, now, may_build=may_build)
    if known.lease.token == policy.token:
        return _hold(known, known.lease)
    return _behind(known, known.lease, now, policy, may_build=may_build)


def _hold(known: Known, lease: BuildLease) -> Step:
    """This node is the holder. What was published just before it became that is not built again."""
    assert known.ref_at is not None
    if known.claimed_at is None or known.ref_at < known.claimed_at:
        return LookAtRef()
    return Build(lease)


def _behind(
    known: Known, lease: BuildLease, now: float, policy: Policy, *, may_build: bool
) -> Step:
    """Another node is, or was, the holder."""
    if lease.state == "published":
        if lease.manifest is not None and lease.manifest not in known.unfit:
            return Take(lease.manifest)
        assert known.ref_at is not None
        if known.ref_at < known.changed_at:
            return LookAtRef()  # what was published does not fit here: the next one follows it
        return _claim(known, now, may_build=may_build)
    if lease.state == "building" and not has_expired(known):
        return _while_busy(known, lease, now, policy)
    if lease.token in known.ended and (lease.refused or len(known.ended) >= policy.attempts):
        return GiveUp(lease, len(known.ended))
    return _claim(known, now, may_build=may_build)


def _while_busy(known: Known, lease: BuildLease, now: float, policy: Policy) -> Step:
    if policy.when_busy == "skip":
        return Leave(lease)
    if policy.when_busy == "build":
        return GoOn(f"{lease.who()} builds it as well", share=True)
    if now < known.pause_until:
        return Wait(known.pause_until - now)
    return LookAtLease(lease.term)


def _claim(known: Known, now: float, *, may_build: bool) -> Step:
    assert known.newest_at is not None
    if known.lease is not None and known.newest_at < known.looked_at:
        return LookAtLease(_next_term(known))  # somebody may have been faster
    if may_build:
        return Claim(_next_term(known))
    if now < known.pause_until:
        return Wait(known.pause_until - now)
    return LookAtLease(_next_term(known))


def _next_term(known: Known) -> int:
    return 0 if known.lease is None else known.lease.term + 1


def has_expired(known: Known) -> bool:
    """Whether the holder showed no sign of life for the whole length, up to the last look at its lease."""
    lease = known.lease
    return lease is not None and known.looked_at - known.changed_at >= lease.patience


def pause_seconds(
    pauses: int, length: float, chance: float, first: float = FIRST_PAUSE_SECONDS
) -> float:
    """How long a node that waits asks nothing, the longer the more often it has asked.

    ``chance``: evenly from 0 to 1, so that a thousand nodes do not ask at the same moment.
    """
    longest = max(length * _LONGEST_PAUSE, 0.0)
    # Beyond 50 the power only grows towards what no float can hold.
    pause = min(first * _PAUSE_GROWTH ** min(pauses, 50), longest)
    return pause * (0.5 + chance)


def saw_ref(known: Known, ref: Digest | None, now: float) -> Known:
    """The ref was read. When it names another package than before, leases that followed that are past."""
    known = dataclasses.replace(_answered(known), ref_at=now)
    if ref == known.ref:
        return known
    return dataclasses.replace(
        known, ref=ref, takes=0, lease=None, newest_at=None, claimed_at=None, pauses=0
    )


def saw_lease(
    known: Known, term: int, lease: BuildLease | None, now: float, policy: Policy, chance: float
) -> Known:
    """The lease of ``term`` was read, or None: there is none.

    One that was there and is not any more may be there and not be seen: nothing is concluded before it
    could have expired.
    """
    known = _paused(_answered(known), now, policy, chance)
    watched = known.lease
    if watched is not None and term == watched.term:
        return _saw_again(known, watched, lease, now, policy)
    if lease is None:
        return dataclasses.replace(known, newest_at=now)
    known = dataclasses.replace(
        known, lease=lease, changed_at=now, looked_at=now, newest_at=None, takes=0
    )
    return _judged_holder(known, lease, policy)


def _saw_again(
    known: Known, watched: BuildLease, lease: BuildLease | None, now: float, policy: Policy
) -> Known:
    known = dataclasses.replace(known, looked_at=now)
    if lease is not None and lease != watched:
        known = dataclasses.replace(known, lease=lease, changed_at=now, takes=0)
        watched = lease
    return _judged_holder(known, watched, policy)


def _judged_holder(known: Known, lease: BuildLease, policy: Policy) -> Known:
    """Take down who was seen building, and whose build ended without a package."""
    if lease.token == policy.token:
        at = known.looked_at if known.claimed_at is None else known.claimed_at
        return dataclasses.replace(known, claimed_at=at)
    if lease.state == "building":
        if has_expired(known):
            return dataclasses.replace(known, ended=known.ended | {lease.token})
        return dataclasses.replace(known, watched=known.watched | {lease.token})
    from_before = policy.once and lease.sources == policy.sources
    if lease.state == "failed" and (from_before or lease.token in known.watched):
        return dataclasses.replace(known, ended=known.ended | {lease.token})
    return known


def claimed(known: Known, lease: BuildLease, now: float, policy: Policy, chance: float) -> Known:
    """Somebody has the term that this node wanted: this node, or whoever ``lease`` is of."""
    known = dataclasses.replace(
        _answered(known), lease=lease, changed_at=now, looked_at=now, newest_at=now, takes=0
    )
    if lease.token == policy.token:
        return _judged_holder(known, lease, policy)
    # A later term that is there already is found when this one is over: taking it fails then.
    known = _paused(dataclasses.replace(known, pauses=0), now, policy, chance)
    return _judged_holder(known, lease, policy)


def does_not_fit(known: Known, manifest: Digest) -> Known:
    """A package was looked at and cannot be used here."""
    return dataclasses.replace(_answered(known), unfit=known.unfit | {manifest}, takes=0)


def take_failed(known: Known, manifest: Digest, now: float, policy: Policy, chance: float) -> Known:
    """A package could not be had. Tried some times: what is just published may not be seen everywhere."""
    if known.takes + 1 >= MAX_TAKES:
        return does_not_fit(known, manifest)
    known = dataclasses.replace(known, takes=known.takes + 1)
    return troubled(known, now, policy, chance)


def troubled(known: Known, now: float, policy: Policy, chance: float) -> Known:
    """The shared store did not answer, or not with what should be there."""
    since = now if known.troubled_at is None else known.troubled_at
    pause = pause_seconds(known.troubles, policy.length, chance, FIRST_TROUBLE_SECONDS)
    return dataclasses.replace(
        known, troubled_at=since, troubles=known.troubles + 1, pause_until=now + pause
    )


def _answered(known: Known) -> Known:
    return dataclasses.replace(known, troubled_at=None, troubles=0)


def _paused(known: Known, now: float, policy: Policy, chance: float) -> Known:
    length = policy.length if known.lease is None else known.lease.patience
    pause = pause_seconds(known.pauses, length, chance)
    return dataclasses.replace(known, pause_until=now + pause, pauses=known.pauses + 1)
