"""``warm``: builds what is not fresh, then ends."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Literal

from preheat.errors import BusyError, UntrustedStoreError, WaitTimeoutError
from preheat.verdict import Verdict
from preheatd import seeding
from preheatd.dispatch import Dispatcher
from preheatd.plan import Action, Decision, make_plan
from preheatd.politeness.gate import Gate

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest
    from preheatd import events
    from preheatd.config import Target
    from preheatd.inventory import Survey
    from preheatd.outcome import Outcome
    from preheatd.plan import Plan
    from preheatd.project import Project
    from preheatd.remembering import Order
    from preheatd.state import Failure

Result = Literal["built", "confirmed", "pulled", "held", "failed", "skipped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmed:
    """One target after ``warm``. ``decision`` has the reasons from before and the verdict now.

    ``manifest`` is that of the package that is in the store now, if that one is good.
    """

    decision: Decision
    result: Result
    seconds: float = 0.0
    manifest: Manifest | None = None
    failure: Failure | None = None
    holder: str = ""


class Warming:
    """Builds orders and collects outcomes; what was superseded is built again."""

    def __init__(self, project: Project, survey: Survey, emit: events.Emit) -> None:
        self._project = project
        self._survey = survey
        self._orders: dict[str, Order] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._dispatcher = Dispatcher(
            project.build,
            project.state,
            jobs=project.config.jobs,
            emit=emit,
            finished=self._finished,
            confirm=project.confirm,
            gate=Gate(project.config.politeness.when_asked(), emit, limits=project.limits),
        )

    async def run(self, plan: Plan) -> None:
        wanted = tuple(
            one
            for one in plan.decisions
            if one.action is Action.BUILD or one.verdict is Verdict.BUILDING
        )
        orders = self._project.orders(self._survey, wanted)
        unconfirmed = self._project.orders(self._survey, plan.to_confirm(), confirm=True)
        builds = (dataclasses.replace(order, confirm=False) for order in unconfirmed)
        self._orders = {order.name: order for order in (*orders, *builds)}
        self._dispatcher.replace_waiting(orders)
        self._dispatcher.replace_unconfirmed(unconfirmed)
        await self._dispatcher.run(until_idle=True)

    def _finished(self, outcome: Outcome) -> None:
        if outcome.result in ("superseded", "withdrawn"):
            self._dispatcher.add(self._orders[outcome.target])
        else:
            self.outcomes[outcome.target] = outcome


async def warm(
    project: Project, emit: events.Emit, *, retry: bool = True, seed: Path | None = None
) -> tuple[Warmed, ...]:
    """Build what is not fresh, with ``retry`` failures of earlier times included, and say how that went.

    Targets that another process builds are tried and then reported as held. What was proven in a forked
    process is proven once more, in a really fresh one. ``seed``: what builds on this machine begin with, see
    ``seeding.py``.
    """
    survey = await project.inventory.survey(project.config)
    plan = make_plan(survey.facts, time.time(), retry=retry)
    return await warm_planned(project, survey, plan, emit, seed=seed)


async def warm_planned(
    project: Project, survey: Survey, plan: Plan, emit: events.Emit, *, seed: Path | None = None
) -> tuple[Warmed, ...]:
    """The same, with a plan that was made."""
    if seed is not None:
        await seeding.seed(project, seed, to_build_here(project, plan), emit)
    warming = Warming(project, survey, emit)
    await warming.run(plan)
    return tuple(
        warmed_of(decision, survey, warming.outcomes.get(decision.target))
        for decision in plan.decisions
    )


def to_build_here(project: Project, plan: Plan) -> dict[str, Target]:
    """The environments of this machine that something is to be built for, each with a target of it."""
    targets = {target.name: target for target in project.config.here().targets}
    return {
        one.environment: targets[one.target] for one in plan.to_build() if one.target in targets
    }


def warmed_of(decision: Decision, survey: Survey, outcome: Outcome | None) -> Warmed:
    """What to say of one target after this outcome of its build, or without a build."""
    facts = survey.of(decision.target)
    if outcome is None:
        # Fresh, not to be trusted, or without an environment to build for.
        fresh = decision.verdict is Verdict.FRESH
        failed = decision.verdict is Verdict.FAILED
        return Warmed(
            decision=decision,
            result="failed" if failed else "skipped",
            manifest=facts.manifest if fresh else None,
            failure=facts.failure if failed else None,
        )
    verdicts = {"built": Verdict.FRESH, "confirmed": Verdict.FRESH, "held": Verdict.BUILDING}
    result: Result = "failed"
    if outcome.result in ("built", "confirmed", "held"):
        result = outcome.result
    return Warmed(
        decision=with_verdict(decision, verdicts.get(outcome.result, Verdict.FAILED)),
        result=result,
        seconds=outcome.seconds,
        manifest=outcome.manifest,
        failure=outcome.failure,
        holder=outcome.holder,
    )


def with_verdict(decision: Decision, verdict: Verdict) -> Decision:
    """The same decision, with the verdict of now."""
    action = Action.WAIT if verdict is Verdict.BUILDING else Action.BUILD
    return Decision(
        target=decision.target,
        environment=decision.environment,
        verdict=verdict,
        action=action,
        reasons=decision.reasons,
        priority=decision.priority,
    )


def exit_code(warmed: tuple[Warmed, ...]) -> int:
    """0 when all are fresh, else the code of the worst: untrusted, failed, timed out, held."""
    if any(one.decision.verdict is Verdict.UNTRUSTED for one in warmed):
        return UntrustedStoreError.exit_code
    codes = {
        one.failure.exit_code if one.failure else 3 for one in warmed if one.result == "failed"
    }
    if UntrustedStoreError.exit_code in codes:
        return UntrustedStoreError.exit_code
    if codes - {WaitTimeoutError.exit_code}:
        return 1 if codes == {1} else 3
    if codes:
        return WaitTimeoutError.exit_code
    return BusyError.exit_code if any(one.result == "held" for one in warmed) else 0
