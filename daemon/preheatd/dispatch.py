"""Carries out a plan: starts builds, ends superseded ones, remembers how each one ended."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from preheatd import events, schedule
from preheatd.outcome import BuildRequest, Outcome
from preheatd.state import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheat.manifest import Manifest
    from preheatd.plan import TargetFacts
    from preheatd.state import State

Build = Callable[[BuildRequest, events.Emit], Awaitable[Outcome]]
_logger = logging.getLogger("preheatd")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """A build that was asked for, and the facts that it was decided on.

    ``known``: the files that its target is known to depend on, empty when that is unknown. ``confirm``: not
    to be built, but what is published to be proven once more.
    """

    request: BuildRequest
    facts: TargetFacts
    known: frozenset[str] = frozenset()
    confirm: bool = False

    @property
    def name(self) -> str:
        """The target's name."""
        return self.request.target.name


@dataclasses.dataclass
class _Running:
    order: Order
    slot: schedule.Slot
    task: asyncio.Task[None] | None = None
    stopped: bool = False


@dataclasses.dataclass
class _History:
    """What happened to a target since its last success, as far as this process saw it."""

    guessed_stops: int = 0
    superseded: int = 0


class Dispatcher:
    """Runs at most ``jobs`` builds at once. ``finished`` is told each outcome, in the loop."""

    def __init__(
        self,
        build: Build,
        state: State,
        *,
        jobs: int,
        emit: events.Emit,
        finished: Callable[[Outcome], None] = lambda outcome: None,
        sources_state: Callable[[str], Awaitable[str]] | None = None,
        confirm: Build | None = None,
    ) -> None:
        self.jobs = jobs
        self._accepting = True
        self._build = build
        self._confirm = confirm
        self._unconfirmed: dict[str, Order] = {}
        self._untried: dict[str, Manifest | None] = {}
        self._state = state
        self._emit = emit
        self._finished = finished
        self._sources_state = sources_state
        self._waiting: dict[str, tuple[Order, schedule.Slot]] = {}
        self._running: dict[str, _Running] = {}
        self._history: dict[str, _History] = {}
        self._counter = 0
        self._wake = asyncio.Event()

    @property
    def running(self) -> frozenset[str]:
        """The targets that are being built."""
        return frozenset(name for name, one in self._running.items() if not one.order.confirm)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._running and not self._waiting and not self._unconfirmed

    def replace_waiting(self, orders: Iterable[Order]) -> None:
        """These are to be built, in place of what was asked for and not started yet."""
        before, self._waiting = self._waiting, {}
        for order in orders:
            if order.name in self._running:
                continue
            known = before.get(order.name)
            if known is None:
                self._tell(events.BUILD_QUEUED, order)
            self._waiting[order.name] = (order, self._slot(order, known))
        self._wake.set()

    def replace_unconfirmed(self, orders: Iterable[Order]) -> None:
        """These are to be proven once more whenever nothing is to be built; one at a time.

        A package for which that could not be tried is not tried again.
        """
        self._unconfirmed = {
            one.name: one
            for one in orders
            if one.name not in self._running and self._untried.get(one.name) != one.facts.manifest
        }
        self._wake.set()

    def add(self, order: Order) -> None:
        """This is to be built as well."""
        self._waiting[order.name] = (order, self._slot(order, None))
        self._wake.set()

    async def drain(self) -> None:
        """Begin no build any more, and wait until those that run have ended."""
        self._accepting = False
        tasks = [running.task for running in self._running.values() if running.task]
        if tasks:
            await asyncio.wait(tasks)

    def stop_superseded(self, current: Mapping[str, TargetFacts]) -> None:
        """End the running builds whose sources are others now, and those of targets that are gone."""
        for name, running in self._running.items():
            facts = current.get(name)
            if facts is None or self._is_superseded(running, facts):
                self._stop(running)

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until cancelled, or until nothing is left. Cancelling ends the builds that run."""
        async with asyncio.TaskGroup() as group:
            while not (until_idle and self.idle):
                self._start_builds(group)
                await self._wake.wait()
                self._wake.clear()

    def _start_builds(self, group: asyncio.TaskGroup) -> None:
        if not self._accepting:
            return
        if self._waiting:
            # Somebody waits for these; proving once more can wait.
            for running in self._running.values():
                if running.order.confirm:
                    self._stop(running)
        waiting = [slot for _, slot in self._waiting.values()]
        active = [running.slot for running in self._running.values()]
        for slot in schedule.startable(waiting, active, self.jobs):
            order, _ = self._waiting.pop(slot.target)
            running = self._running[slot.target] = _Running(order, slot)
            running.task = group.create_task(self._run(running), name=f"build {slot.target}")
        if self._unconfirmed and not self._running and not self._waiting:
            name = next(iter(self._unconfirmed))
            order = self._unconfirmed.pop(name)
            running = self._running[name] = _Running(order, self._slot(order, None))
            running.task = group.create_task(self._run(running), name=f"proof {name}")

    async def _run(self, running: _Running) -> None:
        started_event = events.PROOF_STARTED if running.order.confirm else events.BUILD_STARTED
        self._tell(started_event, running.order)
        started = time.monotonic()
        try:
            outcome = await self._outcome(running)
            outcome = await self._remember(running.order, outcome)
        finally:
            del self._running[running.order.name]
            self._wake.set()
        if not outcome.seconds:
            outcome = dataclasses.replace(outcome, seconds=time.monotonic() - started)
        self._report(outcome, confirm=running.order.confirm)
        self._finished(outcome)

    async def _outcome(self, running: _Running) -> Outcome:
        request = running.order.request
        work = self._build
        if running.order.confirm:
            assert self._confirm is not None
            work = self._confirm
        try:
            return await work(request, self._emit)
        except asyncio.CancelledError:
            if not running.stopped:
                confirm = running.order.confirm
                self._tell(events.PROOF_STOPPED if confirm else events.BUILD_STOPPED, running.order)
                raise
            return Outcome(
                target=request.target.name, environment=request.environment, result="superseded"
            )
        except Exception as error:
            # A fault of preheat in one build must not end the others.
            _logger.exception("the build of %s met a fault in preheat", request.target.name)
            return Outcome(
                target=request.target.name,
                environment=request.environment,
                result="failed",
                failure=Failure(
                    target=request.target.name,
                    environment=request.environment,
                    kind="unexpected",
                    message=f"{type(error).__name__}: {error}",
                    remedy="This is a fault in preheat; please report it with the log.",
                    exit_code=1,
                    at=time.time(),
                ),
            )

    async def _remember(self, order: Order, outcome: Outcome) -> Outcome:
        if order.confirm:
            if outcome.result == "failed":
                self._untried[order.name] = order.facts.manifest
            return outcome
        history = self._history.setdefault(order.name, _History())
        if outcome.result == "built":
            self._history.pop(order.name)
            await asyncio.to_thread(self._state.forget, outcome.target, outcome.environment)
        elif outcome.result == "superseded" and outcome.reasons:
            history.superseded += 1
            if history.superseded >= schedule.MAX_SUPERSEDED:
                history.superseded = 0
                outcome = _never_settles(outcome)
        if outcome.failure is not None:
            failure = await self._completed(order, outcome.failure)
            await asyncio.to_thread(self._state.remember, failure)
            outcome = dataclasses.replace(outcome, failure=failure)
        return outcome

    async def _completed(self, order: Order, failure: Failure) -> Failure:
        """The failure with its history, and with the sources that it stands for."""
        before, previous = order.facts.sources_state, order.facts.failure
        after = await self._sources_state(order.name) if self._sources_state else before
        moving = previous.moving if previous else 0
        tried, moving = schedule.next_failure_tried(before, after, moving)
        same = previous is not None and before in previous.tried
        return msgspec.structs.replace(
            failure,
            tried=tried,
            moving=moving,
            attempts=previous.attempts + 1 if previous and same else 1,
        )

    def _is_superseded(self, running: _Running, facts: TargetFacts) -> bool:
        order = running.order
        if facts.environment != order.facts.environment or facts.factory != order.facts.factory:
            return True
        changed = schedule.changed_files(order.facts.sources, facts.sources)
        history = self._history.setdefault(order.name, _History())
        stop = schedule.must_stop(changed, order.known, history.guessed_stops)
        if stop and not order.known and not running.stopped:
            history.guessed_stops += 1
        return stop

    def _stop(self, running: _Running) -> None:
        if not running.stopped and running.task is not None:
            running.stopped = True
            running.task.cancel()

    def _slot(self, order: Order, known: tuple[Order, schedule.Slot] | None) -> schedule.Slot:
        self._counter += 1
        target = order.request.target
        return schedule.Slot(
            target=target.name,
            priority=target.priority,
            order=known[1].order if known else self._counter,
            jobs=target.jobs,
        )

    def _tell(self, action: str, order: Order) -> None:
        environment = order.request.environment
        self._emit(events.Event(action=action, target=order.name, environment=environment))

    def _report(self, outcome: Outcome, *, confirm: bool) -> None:
        action = {
            "confirmed": events.PROOF_CONFIRMED,
            "withdrawn": events.PACKAGE_WITHDRAWN,
            "built": events.BUILD_PUBLISHED,
            "held": events.BUILD_HELD,
            "failed": events.BUILD_FAILED,
            "superseded": events.BUILD_SUPERSEDED,
        }[outcome.result]
        if confirm and outcome.result in ("superseded", "held"):
            action = events.PROOF_STOPPED
        detail = outcome.failure.message if outcome.failure else outcome.holder
        if outcome.returned:
            detail = "the package from before the edit"
        self._emit(
            events.Event(
                action=action,
                target=outcome.target,
                environment=outcome.environment,
                seconds=round(outcome.seconds, 3),
                processes={stage: round(s, 3) for stage, s in outcome.processes.items()},
                detail=detail,
                reasons=outcome.reasons,
            )
        )


def _never_settles(outcome: Outcome) -> Outcome:
    files = ", ".join(sorted({str(reason) for reason in outcome.reasons}))
    return dataclasses.replace(
        outcome,
        result="failed",
        failure=Failure(
            target=outcome.target,
            environment=outcome.environment,
            kind="sources_never_settle",
            message=f"After each of {schedule.MAX_SUPERSEDED} builds its sources had changed: {files}.",
            remedy="If the target writes these files itself, write them elsewhere.",
            reasons=outcome.reasons,
            at=time.time(),
        ),
    )
