"""The plan: what is known about every target becomes a verdict and an action. Pure.

The dry run prints this plan, ``explain`` shows one line of it, ``warm`` and the daemon carry it out.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from typing import TYPE_CHECKING

import msgspec

from preheat.formats import other_formats
from preheat.verdict import Reason, Verdict
from preheatd.schedule import again_at, retry_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheat.manifest import Manifest
    from preheatd.state import Damages, Failure

NO_KICKS: Mapping[str, bool] = types.MappingProxyType({})
_REBUILD_ASKED = Reason(kind="rebuild_asked", detail="somebody asked for a build")


class Action(enum.StrEnum):
    """What will be done: build it, prove once more what is there, nothing, or nothing for now."""

    BUILD = "build"
    CONFIRM = "confirm"
    NONE = "none"
    WAIT = "wait"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """Everything that a verdict depends on, read from the outside world at one moment.

    ``environment`` is empty when the interpreter did not answer; ``failure`` then says why.
    ``damage`` says why the package in the store cannot be used, ``damages`` how often that was so lately,
    ``untrusted`` why the store cannot, ``unsigned`` why no signature makes the package one to trust
    (``may_replace``: what is built here is signed, and puts that right), ``source_reasons`` what differs from
    the package's snapshot, ``elsewhere`` how the nearest environment that has a package differs.
    ``layer``: the layer that the package is in, where the store's own is not fresh and this one is;
    ``layer_reasons``: what is wrong with layers, or with the store's own package that a layer stands in for.
    ``sources`` maps each source file on disk to its digest, ``sources_state`` is one digest of them all and
    of the target's configuration. ``built_elsewhere``: nothing of it can be run here.
    """

    target: str
    factory: str
    environment: str = ""
    device: str = "cpu"
    priority: int = 0
    manifest: Manifest | None = None
    damage: tuple[Reason, ...] = ()
    untrusted: str = ""
    unsigned: Reason | None = None
    may_replace: bool = False
    source_reasons: tuple[Reason, ...] = ()
    elsewhere: tuple[Reason, ...] = ()
    layer: str = ""
    layer_reasons: tuple[Reason, ...] = ()
    damages: Damages | None = None
    failure: Failure | None = None
    building: bool = False
    built_elsewhere: bool = False
    sources_state: str = ""
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the plan. ``not_before`` (seconds since the epoch): when to try again."""

    target: str
    environment: str
    verdict: Verdict
    action: Action
    reasons: tuple[Reason, ...] = ()
    priority: int = 0
    not_before: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions, in the configuration's order."""

    decisions: tuple[Decision, ...] = ()

    @property
    def all_fresh(self) -> bool:
        """Whether every target is FRESH."""
        return all(decision.verdict is Verdict.FRESH for decision in self.decisions)

    @property
    def untrusted(self) -> bool:
        """Whether a target's package could have been changed by somebody else."""
        return any(decision.verdict is Verdict.UNTRUSTED for decision in self.decisions)

    def to_build(self) -> tuple[Decision, ...]:
        """Those whose action is BUILD."""
        return tuple(one for one in self.decisions if one.action is Action.BUILD)

    def to_confirm(self) -> tuple[Decision, ...]:
        """Those whose action is CONFIRM: they are fresh, and their proof was forked."""
        return tuple(one for one in self.decisions if one.action is Action.CONFIRM)

    def summary(self) -> str:
        """How many targets have which verdict, in words."""
        counts = collections.Counter(one.verdict for one in self.decisions)
        return ", ".join(f"{count} {verdict.lower()}" for verdict, count in sorted(counts.items()))

    def next_retry(self) -> float | None:
        """When the first postponed target is due, in seconds since the epoch."""
        times = [one.not_before for one in self.decisions if one.not_before is not None]
        return min(times, default=None)


def make_plan(
    facts: Iterable[TargetFacts],
    now: float,
    *,
    retry: bool = False,
    kicks: Mapping[str, bool] = NO_KICKS,
) -> Plan:
    """Decide about every target. ``retry``: somebody asks for it, so failures are tried again now.

    ``kicks``: the same for single targets; true: also what is fresh is built.
    """
    return Plan(
        decisions=tuple(
            decide(
                one, now, retry=retry or one.target in kicks, rebuild=kicks.get(one.target, False)
            )
            for one in facts
        )
    )


def decide(
    facts: TargetFacts, now: float, *, retry: bool = False, rebuild: bool = False
) -> Decision:
    """Decide about one target. ``now`` is in seconds since the epoch."""
    if facts.untrusted:
        reason = Reason(kind="store_untrusted", detail=facts.untrusted)
        return _decision(facts, Verdict.UNTRUSTED, Action.NONE, (reason,))
    if not facts.environment:
        return _unanswered(facts, now)
    if facts.unsigned is not None and not facts.may_replace:
        return _decision(facts, Verdict.UNTRUSTED, Action.NONE, (facts.unsigned,))
    verdict, reasons = package_verdict(facts)
    if verdict is not Verdict.FRESH:
        reasons = (*reasons, *facts.layer_reasons)
    elif facts.layer and not rebuild:
        in_layer = Reason(kind="in_layer", file=facts.layer)
        return _decision(facts, verdict, Action.NONE, (in_layer, *facts.layer_reasons))
    if verdict is Verdict.FRESH and not rebuild:
        proof = None if facts.manifest is None else facts.manifest.proof
        provable = not facts.building and not facts.built_elsewhere
        forked = proof is not None and proof.forked and provable
        return _decision(facts, verdict, Action.CONFIRM if forked else Action.NONE)
    if facts.building:
        return _decision(facts, Verdict.BUILDING, Action.WAIT, reasons)
    if verdict is Verdict.FRESH:
        return _decision(facts, verdict, Action.BUILD, (_REBUILD_ASKED,))
    if facts.failure is not None and facts.sources_state in facts.failure.tried:
        return _failed(facts, facts.failure, reasons, now, retry=retry)
    if facts.damage and facts.damages is not None and not retry:
        # Something damages it again and again: building it for ever would help nobody.
        due = again_at(facts.damages)
        if facts.damages.at <= now < due:
            return _decision(facts, verdict, Action.WAIT, reasons, not_before=due)
    return _decision(facts, verdict, Action.BUILD, reasons)


def package_verdict(facts: TargetFacts) -> tuple[Verdict, tuple[Reason, ...]]:
    """What there is to say about the package alone: FRESH, STALE, MISSING or UNTRUSTED, and why."""
    if facts.unsigned is not None:
        return Verdict.UNTRUSTED, (facts.unsigned,)
    if facts.damage:
        return Verdict.MISSING, facts.damage
    manifest = facts.manifest
    if manifest is None:
        return Verdict.MISSING, facts.elsewhere or (
            Reason(kind="package_missing", detail="no package in this environment yet"),
        )
    if manifest.proof is None:
        return Verdict.MISSING, (Reason(kind="proof_missing", detail="was never proven"),)
    reasons = (*other_formats(manifest), *facts.source_reasons)
    if manifest.factory != facts.factory:
        changed = Reason(
            kind="factory_changed", detail=f"was {manifest.factory}, is {facts.factory}"
        )
        reasons = (changed, *reasons)
    return (Verdict.STALE if reasons else Verdict.FRESH), reasons


def _failed(
    facts: TargetFacts, failure: Failure, reasons: tuple[Reason, ...], now: float, *, retry: bool
) -> Decision:
    due = retry_at(failure)
    reasons = (_failure_reason(failure), *reasons)
    # A clock that was set back must not postpone a retry by more than the wait itself.
    if retry or (due is not None and not failure.at <= now < due):
        return _decision(facts, Verdict.FAILED, Action.BUILD, reasons)
    return _decision(facts, Verdict.FAILED, Action.WAIT, reasons, not_before=due)


def _unanswered(facts: TargetFacts, now: float) -> Decision:
    failure = facts.failure
    reasons = () if failure is None else (_failure_reason(failure),)
    # Not postponed by a clock that was set back, either.
    due = None if failure is None else retry_at(failure)
    return _decision(
        facts,
        Verdict.FAILED,
        Action.WAIT,
        reasons,
        not_before=due if due is None else max(due, now),
    )


def _failure_reason(failure: Failure) -> Reason:
    return Reason(kind=failure.kind, detail=failure.message)


def _decision(
    facts: TargetFacts,
    verdict: Verdict,
    action: Action,
    reasons: tuple[Reason, ...] = (),
    not_before: float | None = None,
) -> Decision:
    return Decision(
        target=facts.target,
        environment=facts.environment,
        verdict=verdict,
        action=action,
        reasons=reasons,
        priority=facts.priority,
        not_before=not_before,
    )
