"""Carries out a plan: starts builds, ends superseded ones, remembers how each one ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from preheatd import events, schedule
from preheatd.outcome import BuildRequest, Outcome
from preheatd.politeness.gate import Gate
from preheatd.remembering import Memory, Order, told, unexpected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheatd.plan import TargetFacts
    from preheatd.state import State

Build = Callable[[BuildRequest, events.Emit], Awaitable[Outcome]]
_logger = logging.getLogger("preheatd")


@dataclasses.dataclass
class _Running:
    order: Order
    slot: schedule.Slot
    task: asyncio.Task[None] | None = None
    stopped: bool = False


class Dispatcher:
    """Runs at most ``jobs`` builds at once, as the ``gate`` lets them start.

    ``finished`` is told each outcome, in the loop.
    """

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
        gate: Gate | None = None,
    ) -> None:
        self.jobs = jobs
        self._accepting = True
        self._build = build
        self._confirm = confirm
        self._unconfirmed: dict[str, Order] = {}
        self._emit = emit
        self._finished = finished
        self._memory = Memory(state, emit, sources_state)
        self._waiting: dict[str, tuple[Order, schedule.Slot]] = {}
        self._running: dict[str, _Running] = {}
        self._ended: dict[str, int] = {}
        self._ends = 0
        self._counter = 0
        self._wake = asyncio.Event()
        self._gate = gate or Gate()
        self._gate.pauses.listen(lambda reason, begins: self._wake.set())

    @property
    def running(self) -> frozenset[str]:
        """The targets that are being built."""
        return frozenset(name for name, one in self._running.items() if not one.order.confirm)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The targets that wait for their turn, in the order in which they get it."""
        return tuple(
            slot.target for slot in schedule.in_turn(one for _, one in self._waiting.values())
        )

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._running and not self._waiting and not self._unconfirmed

    @property
    def ends(self) -> int:
        """How many builds have ended. Take it before a survey, and give it with the orders."""
        return self._ends

    def replace_waiting(self, orders: Iterable[Order], *, seen: int | None = None) -> None:
        """These are to be built, in place of what was asked for and not started yet.

        ``seen`` is what ``ends`` was when the survey behind these orders began. An order of a
        target whose build ended since then is left out: the survey may not know how it ended, and
        would have it done again. ``finished`` was told, which is when to look again.
        """
        before, self._waiting = self._waiting, {}
        for order in orders:
            if order.name in self._running:
                continue
            if seen is not None and self._ended.get(order.name, 0) > seen:
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
            if one.name not in self._running and self._memory.may_be_confirmed(one)
        }
        self._wake.set()

    def add(self, order: Order) -> None:
        """This is to be built as well."""
        self._waiting[order.name] = (order, self._slot(order, None))
        self._wake.set()

    def wake(self) -> None:
        """Look again at what may start."""
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
                wait = await self._gate.look(*self._slots(), self.jobs)
                self._start_builds(group)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                self._wake.clear()

    def _slots(self) -> tuple[list[schedule.Slot], list[schedule.Slot]]:
        """Those that wait and those that run."""
        waiting = [slot for _, slot in self._waiting.values()]
        return waiting, [running.slot for running in self._running.values()]

    def _start_builds(self, group: asyncio.TaskGroup) -> None:
        if not self._accepting:
            return
        if self._local(slot for _, slot in self._waiting.values()) and not self._gate.pauses:
            # Somebody waits for these; proving once more can wait.
            for running in self._running.values():
                if running.order.confirm:
                    self._stop(running)
        for slot in self._gate.startable(*self._slots(), self.jobs):
            order, _ = self._waiting.pop(slot.target)
            running = self._running[slot.target] = _Running(order, slot)
            running.task = group.create_task(self._run(running), name=f"build {slot.target}")
        busy = self._local(slot for slots in self._slots() for slot in slots)
        if self._unconfirmed and not (busy or self._gate.pauses):
            name = next(iter(self._unconfirmed))
            order = self._unconfirmed.pop(name)
            running = self._running[name] = _Running(order, self._slot(order, None))
            running.task = group.create_task(self._run(running), name=f"proof {name}")

    @staticmethod
    def _local(slots: Iterable[schedule.Slot]) -> bool:
        """Whether any of these takes something of this machine."""
        return any(not slot.lane for slot in slots)

    async def _run(self, running: _Running) -> None:
        started_event = events.PROOF_STARTED if running.order.confirm else events.BUILD_STARTED
        self._tell(started_event, running.order)
        started = time.monotonic()
        try:
            outcome = await self._outcome(running)
            outcome = await self._memory.remember(running.order, outcome)
        finally:
            del self._running[running.order.name]
            self._ends += 1
            self._ended[running.order.name] = self._ends
            self._gate.left(running.slot)
            self._wake.set()
        if not outcome.seconds:
            outcome = dataclasses.replace(outcome, seconds=time.monotonic() - started)
        self._emit(told(outcome, confirm=running.order.confirm))
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
            return unexpected(request, error)

    def _is_superseded(self, running: _Running, facts: TargetFacts) -> bool:
        order = running.order
        if facts.environment != order.facts.environment or facts.factory != order.facts.factory:
            return True
        changed = schedule.changed_files(order.facts.sources, facts.sources)
        return self._memory.must_stop(order, changed, stopped=running.stopped)

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
            gpus=frozenset() if target.executor else self._gate.gpus_of(order.request),
            lane=target.executor.name if target.executor else "",
        )

    def _tell(self, action: str, order: Order) -> None:
        environment = order.request.environment
        self._emit(events.Event(action=action, target=order.name, environment=environment))
