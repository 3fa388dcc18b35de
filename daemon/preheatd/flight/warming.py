"""``warm`` on one of many nodes: packages come from the store they share, and one of them builds each."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from typing import TYPE_CHECKING, TypeVar

from preheat.errors import RemoteError
from preheat.store.locks import Holder
from preheat.store.temporary import process_space
from preheat.verdict import Verdict
from preheatd import events, seeding
from preheatd.clock import utc_now
from preheatd.flight.builds import Builds
from preheatd.flight.decision import Policy
from preheatd.flight.flying import Flight
from preheatd.flight.lease import BuildLease
from preheatd.flight.node import ProjectNode
from preheatd.flight.shared import SharedStore
from preheatd.plan import Action, Plan, make_plan
from preheatd.remotes.calls import limited, opened
from preheatd.state import Failure
from preheatd.warming import (
    Warmed,
    Warming,
    to_build_here,
    warm_planned,
    warmed_of,
    with_verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheatd.flight.flying import Landed
    from preheatd.flight.settings import Fleet
    from preheatd.inventory import Survey
    from preheatd.outcome import Outcome
    from preheatd.plan import Decision
    from preheatd.project import Project
    from preheatd.remembering import Order
    from preheatd.remotes.remote import Remote

_T = TypeVar("_T")
# A small read that takes longer is no answer.
ANSWER_SECONDS = 20.0
# Not built here now, and yet taken from elsewhere.
_OFFERED = (Verdict.BUILDING, Verdict.FAILED)


async def warm_in_fleet(
    project: Project,
    emit: events.Emit,
    fleet: Fleet,
    *,
    retry: bool = True,
    seed: Path | None = None,
) -> tuple[Warmed, ...]:
    """Like ``warm``, but what is not fresh is looked for in ``fleet.remote`` first, and built by one node.

    Nothing that happens to the remote keeps a target from being built here. Raises ``ConfigurationError``
    for a URL that cannot be opened.
    """
    assert fleet.remote is not None
    survey = await project.inventory.survey(project.config)
    plan = make_plan(survey.facts, time.time(), retry=retry)
    wanted = tuple(
        one
        for one in plan.decisions
        if one.environment and (one.action is Action.BUILD or one.verdict in _OFFERED)
    )
    if not wanted:
        return await warm_planned(project, survey, plan, emit, seed=seed)
    try:
        remote = await opened(fleet.remote, ANSWER_SECONDS)
        await limited(remote.name, ANSWER_SECONDS, remote.is_founded)
    except RemoteError as error:
        detail = f"{error.message} Everything is built here."
        emit(events.Event(action=events.REMOTE_TROUBLE, detail=detail))
        return await warm_planned(project, survey, plan, emit, seed=seed)
    if seed is not None:
        await seeding.seed(project, seed, to_build_here(project, plan), emit)
    flights = _Flights(project, survey, emit, fleet, remote, once=not retry)
    return await flights.run(plan, wanted)


class _Flights:
    """One flight for each target that is wanted, at the same time; builds as many as ``jobs`` says."""

    def __init__(
        self,
        project: Project,
        survey: Survey,
        emit: events.Emit,
        fleet: Fleet,
        remote: Remote,
        *,
        once: bool,
    ) -> None:
        self._project = project
        self._survey = survey
        self._emit = emit
        self._fleet = fleet
        self._remote = remote
        self._once = once
        self._builds = Builds(project, emit)
        self._chance = random.Random()  # noqa: S311 - it only spreads nodes over time
        self._warmed: dict[str, Warmed] = {}

    async def run(self, plan: Plan, wanted: tuple[Decision, ...]) -> tuple[Warmed, ...]:
        orders = {one.name: one for one in self._project.orders(self._survey, wanted)}
        # Each node in another order, so that they begin with different targets.
        shuffled = self._chance.sample(wanted, len(wanted))
        async with self._builds.working(), asyncio.TaskGroup() as group:
            for decision in shuffled:
                group.create_task(self._one(decision, orders[decision.target]))
        unconfirmed = Warming(self._project, self._survey, self._emit)
        if plan.to_confirm():
            await unconfirmed.run(Plan(decisions=plan.to_confirm()))
        return tuple(
            self._warmed.get(one.target)
            or warmed_of(one, self._survey, unconfirmed.outcomes.get(one.target))
            for one in plan.decisions
        )

    async def _one(self, decision: Decision, order: Order) -> None:
        node = ProjectNode(self._project, order, self._builds, self._remote, self._emit)
        began = time.monotonic()
        flight = self._flight(order, node)
        builds = decision.verdict is not Verdict.FAILED or decision.action is Action.BUILD
        try:
            if not builds:
                landed = await flight.take_only()
            else:
                landed = await flight.run()
        except Exception as error:
            # Whatever is wrong between nodes, this one can build.
            detail = f"{type(error).__name__}: {error}"
            self._emit(
                events.Event(action=events.UNEXPECTED, target=decision.target, detail=detail)
            )
            if builds:
                outcome = await self._builds.build(order)
                self._warmed[decision.target] = warmed_of(decision, self._survey, outcome)
            return
        if landed is not None:
            seconds = time.monotonic() - began
            self._warmed[decision.target] = self._shown(decision, landed, node, seconds)

    def _flight(self, order: Order, node: ProjectNode) -> Flight[Outcome]:
        target, environment = order.name, order.request.environment
        token, sources = secrets.token_hex(16), order.facts.sources_state
        return Flight(
            own=BuildLease(
                target=target,
                environment=environment,
                holder=Holder(host=socket.gethostname(), pid=os.getpid(), space=process_space()),
                token=token,
                length=self._fleet.lease,
                sources=sources,
                started_at=utc_now(),
            ),
            shared=SharedStore(
                remote=self._remote,
                target=target,
                environment=environment,
                ask=self._ask,
                sleep=asyncio.sleep,
                chance=self._chance.random,
            ),
            node=node,
            policy=Policy(
                token=token,
                when_busy=self._fleet.when_busy,
                length=self._fleet.lease,
                once=self._once,
                sources=sources,
            ),
            clock=time.monotonic,
            sleep=asyncio.sleep,
            chance=self._chance.random,
        )

    async def _ask(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await limited(self._remote.name, ANSWER_SECONDS, call, *arguments)

    def _shown(
        self, decision: Decision, landed: Landed[Outcome], node: ProjectNode, seconds: float
    ) -> Warmed:
        if landed.how == "built":
            return warmed_of(decision, self._survey, landed.done)
        if landed.how == "taken":
            fresh = with_verdict(decision, Verdict.FRESH)
            return Warmed(decision=fresh, result="pulled", seconds=seconds, manifest=node.taken)
        assert landed.lease is not None
        if landed.how == "left":
            busy = with_verdict(decision, Verdict.BUILDING)
            return Warmed(decision=busy, result="held", holder=landed.lease.who())
        failed = with_verdict(decision, Verdict.FAILED)
        failure = _failed_elsewhere(decision, landed.lease, landed.nodes)
        return Warmed(decision=failed, result="failed", failure=failure, seconds=seconds)


def _failed_elsewhere(decision: Decision, lease: BuildLease, nodes: int) -> Failure:
    why = lease.message or "it gave no sign of life any more"
    tried = "One node" if nodes == 1 else f"{nodes} nodes"
    return Failure(
        target=decision.target,
        environment=decision.environment,
        kind="failed_elsewhere",
        message=f"{tried} tried to build it, the last one {lease.who()}: {why}",
        remedy="Correct what it says; `preheat warm` without --once tries again, without --remote here.",
        refused=lease.refused,
        at=time.time(),
    )
