"""The daemon: watches, plans again after every change, and keeps every target warm.

A group of named tasks. Everything that happens (an event, a finished build, a timer, an overflow)
leads to the same step: look at the outside world, make the plan, carry it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from preheat.errors import PreheatError
from preheatd import events, schedule
from preheatd.blocked import Blocked
from preheatd.bursts import until_settled
from preheatd.collection.periodic import PeriodicCollection
from preheatd.configured import ConfigurationFile
from preheatd.control.stream import Stream
from preheatd.dispatch import Dispatcher
from preheatd.history import History
from preheatd.hooks import Hooks
from preheatd.kicks import Kicks
from preheatd.live_view import LiveView, Seen
from preheatd.notify import Notifier
from preheatd.observed import Observed
from preheatd.operations import Listening, Operations
from preheatd.own_output import output_files
from preheatd.pauses import Pauses
from preheatd.plan import Plan, make_plan
from preheatd.politeness.gate import Gate
from preheatd.presence import Presence
from preheatd.recovering import Recovery
from preheatd.roots import look_at_roots
from preheatd.rounds import Rounds
from preheatd.scrubbing import Scrubber
from preheatd.signals import on_reload_signal, on_stop_signals
from preheatd.store_figures import StoreFigures
from preheatd.supervised import Supervised
from preheatd.watch import Watcher
from preheatd.zygotes import Zygotes

if TYPE_CHECKING:
    from preheatd.inventory import Survey
    from preheatd.outcome import Outcome
    from preheatd.project import Project
    from preheatd.roots import Root

# Notifications may be lost; nothing stays stale for longer than this.
RESCAN_SECONDS = 60.0
TROUBLE_RETRY_SECONDS = 10.0

Listen = Callable[[Operations, events.Emit], Listening]


class _Stop(Exception):
    """Ends the task group."""


class Service:
    """The daemon of one project. ``planned`` is told each plan, for displays.

    ``notifier``: the service manager, where there is one. ``drain_seconds``: how long builds that run
    may go on after the first request to stop; a second one ends them. ``listen`` lets others ask it.
    """

    def __init__(
        self,
        project: Project,
        emit: events.Emit = events.log_event,
        *,
        planned: Callable[[Plan], None] = lambda plan: None,
        watcher: Callable[[events.Emit, tuple[str, ...]], Watcher] | None = None,
        rescan_seconds: float = RESCAN_SECONDS,
        notifier: Notifier | None = None,
        drain_seconds: float = 0.0,
        listen: Listen | None = None,
    ) -> None:
        self._zygotes = Zygotes(
            project.state.path / "logs", on_started=lambda pid: self._presence.note_group(pid)
        )
        self._project = dataclasses.replace(project, zygotes=self._zygotes)
        self._history = History(project.state, emit)
        self.pauses = Pauses()
        self._kicks = Kicks()
        store = StoreFigures(project.store.layout)
        self._view = LiveView(project, self.pauses, store, lambda: self._watcher.mode)
        self._stream = Stream()
        listeners = events.to_all(
            self._history.heard, self._view.heard, self._kicks.heard, self._stream.publish
        )
        self._supervised = Supervised(
            notifier or Notifier(), listeners, self._is_well, project.state, self.pauses
        )
        self.observed = Observed(self._supervised.heard, store)
        self._emit = self.observed.heard
        self._wanted = asyncio.Event()
        self._rounds = Rounds(self._wanted.set)
        self._scrubber = Scrubber(Recovery.of(project.store), self._emit, self._wanted.set)
        self._hooks = Hooks(self._emit, project.state)
        self.collection = PeriodicCollection(
            project.store, self._emit, lambda: not self._view.is_building
        )
        self.observed.metrics.collection = self.collection.tallies
        self._blocked = Blocked(self._emit)
        self._configuration = ConfigurationFile(project.config, self._emit)
        control = listen(self._operations(), self._emit) if listen else None
        self._presence = Presence(self._view, control, self.observed.keeping)
        self._drain_seconds = drain_seconds
        self._at_once = asyncio.Event()
        self._reload_asked = False
        self._planned = planned
        self._make_watcher = watcher or _watcher
        self._rescan_seconds = rescan_seconds
        self._stopping = asyncio.Event()
        self._armed: tuple[Root, ...] | None = None
        self._held = 0
        self._preparing: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()

    def stop(self, _signal: object = None) -> None:
        """Ask for a graceful end: nothing is begun, nothing that is published is lost.

        Builds that run may end within ``drain_seconds``; asked again, they are ended.
        """
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    def reload(self, _signal: object = None) -> None:
        """Read the configuration again and ask the interpreters again; builds that run go on."""
        self._supervised.reloading()
        self._project.inventory.doubt_environments()
        self._config_text = None  # what it names may have come, though its text is the same
        self._reload_asked = True
        self._wanted.set()

    async def run(self) -> None:
        """Work until ``stop`` or a stop signal. Raises what makes the start impossible."""
        project = self._project
        ignored = (str(project.config.store), str(project.state.path), *output_files())
        self._watcher = self._make_watcher(self._emit, ignored)
        self.observed.metrics.watch_events = lambda: self._watcher.count
        self.observed.metrics.paused = lambda: bool(self.pauses)
        self._gate = Gate(
            project.config.politeness, self._emit, pauses=self.pauses, limits=project.limits
        )
        self._view.queue = self._dispatcher = Dispatcher(
            lambda request, emit: self._project.build(request, emit),
            project.state,
            jobs=project.config.jobs,
            emit=self._emit,
            finished=self._finished,
            sources_state=self._sources_state,
            confirm=lambda request, emit: self._project.confirm(request, emit),
            gate=self._gate,
        )
        try:
            with on_stop_signals(self.stop), on_reload_signal(self.reload):
                async with self._presence:
                    await self._run_tasks()
        finally:
            await self._hooks.close()
            await self._watcher.close()
            if self._preparing is not None:
                self._preparing.cancel()
            await self._zygotes.close()
            # Nothing of it runs any more: what its killed processes left is nobody's.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._project.state.sweep)
            await asyncio.to_thread(self._history.close)

    def _operations(self) -> Operations:
        return Operations(
            self._view,
            self._rounds,
            self.pauses,
            self._kicks,
            self._stream,
            self._emit,
            reread=self.reload,
            doubt=self._project.inventory.doubt_environments,
            metrics=self.observed.metrics.render,
        )

    async def _run_tasks(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(), name="watch")
                group.create_task(self._keep_planning(), name="plan")
                group.create_task(self._dispatcher.run(), name="builds")
                group.create_task(self.collection.run(), name="collection")
                group.create_task(self._wait_for_stop(), name="stop")
                group.create_task(self._scrubber.run(), name="scrub")
                group.create_task(self._supervised.keep_watchdog(), name="watchdog")
        except* _Stop:
            pass
        except* (PreheatError, OSError) as troubles:
            # One error for the person who started it, not a group.
            raise troubles.exceptions[0] from None

    async def _wait_for_stop(self) -> None:
        await self._stopping.wait()
        self._emit(events.Event(action=events.STOPPING))
        self._supervised.stopping()
        await self._drain()
        raise _Stop

    async def _drain(self) -> None:
        """Begin nothing more, and let what runs end by itself for a while."""
        drained = asyncio.create_task(self._dispatcher.drain())
        asked = asyncio.create_task(self._at_once.wait())
        await asyncio.wait(
            {drained, asked}, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        drained.cancel()
        asked.cancel()

    def _is_well(self) -> bool:
        """Whether the watch and the store answer. Blocks for as long as the store does."""
        return self._watcher.is_alive and self._project.store.answers()

    async def _watch(self) -> None:
        while True:
            await self._watcher.wait()
            await until_settled(self._watcher, self._project.config.project)
            first = self._watcher.burst().first
            hints = self._watcher.take()
            if hints.rescan or not self._watcher.is_alive or self._watcher.moved_roots(hints.paths):
                self._armed = None
            if hints.paths:
                age, detail = time.monotonic() - first, _count(len(hints.paths))
                self._emit(
                    events.Event(action=events.CHANGED, seconds=round(age, 4), detail=detail)
                )
            self._wanted.set()

    async def _keep_planning(self) -> None:
        while True:
            wait = await self._plan_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            self._wanted.clear()
            if not self._watcher.is_alive:
                self._armed = None

    async def _plan_once(self) -> float:
        """Make and apply a plan; says how long to wait for the next one if nothing happens."""
        asked, self._reload_asked = self._reload_asked, False
        self._rounds.begin()
        try:
            plan = await self._replan(reload=asked)
        except (PreheatError, OSError) as error:
            self._reload_asked |= asked
            self._rounds.end(error)
            # While starting, whoever started us wants to know. Later, trouble may pass.
            if not self.ready.is_set():
                raise
            self._emit(events.Event(action=events.UNEXPECTED, detail=str(error)))
            return TROUBLE_RETRY_SECONDS
        if not self.ready.is_set():
            self.ready.set()
            count = _count(len(self._project.config.targets), "target")
            self._emit(events.Event(action=events.READY, detail=f"keeping {count} warm"))
            self._supervised.started()
        if asked:
            await asyncio.to_thread(self._supervised.reloaded)
        self._rounds.end()
        running = self._dispatcher.running
        return schedule.seconds_to_next(plan, running, time.time(), self._rescan_seconds)

    async def _replan(self, *, reload: bool) -> Plan:
        asked = time.monotonic()
        if reload:
            self._configuration.doubt()
        new = await self._configuration.changed(self._project.config)
        if new is not None:
            self._project = self._project.with_config(new)
            self._dispatcher.jobs = new.jobs
            self._gate.politeness = new.politeness
        if new is not None or reload:
            await self._presence.apply(self._project.config)
        kicks, began, ends = self._kicks.asked, time.monotonic(), self._dispatcher.ends
        survey = await self._survey()
        roots, gone = await asyncio.to_thread(look_at_roots, self._project.config, survey.roots)
        self.observed.missing(gone)
        if roots != self._armed:
            await self._watcher.arm(roots)
            self._armed = roots
            # Only what is read after the watch is armed cannot be missed.
            began, ends = time.monotonic(), self._dispatcher.ends
            survey = await self._survey()
        plan = make_plan(survey.facts, time.time(), kicks=kicks)
        self._dispatcher.stop_superseded({facts.target: facts for facts in survey.facts})
        orders = self._project.orders(survey, plan.to_build(), kicks)
        self._dispatcher.replace_waiting(orders, seen=ends)
        self._dispatcher.replace_unconfirmed(
            self._project.orders(survey, plan.to_confirm(), confirm=True)
        )
        if self._preparing is None and not plan.to_build():
            preparing = self._project.prepare_zygotes(survey)
            self._preparing = asyncio.create_task(preparing, name="zygotes")
        self._scrubber.planned(plan, survey)
        self._kicks.planned(plan, kicks)
        self.collection.planned(self._project.config.collection, survey.facts)
        self._blocked.planned(plan)
        self._view.planned(Seen(project=self._project, survey=survey, plan=plan, began=began))
        took = round(time.monotonic() - asked, 4)
        self._emit(events.Event(action=events.PLANNED, seconds=took, detail=plan.summary()))
        self.observed.planned(plan, len(self._dispatcher.waiting))
        self._supervised.planned(plan, self._dispatcher.running)
        self._planned(plan)
        return plan

    async def _survey(self) -> Survey:
        return await self._project.inventory.survey(self._project.config)

    async def _sources_state(self, target: str) -> str:
        survey = await self._survey()
        return next((one.sources_state for one in survey.facts if one.target == target), "")

    def _finished(self, outcome: Outcome) -> None:
        self._hooks.start(outcome, self._project.config, os.environ)
        if outcome.result == "held":
            wait = schedule.held_seconds(self._held)
            self._held += 1
            asyncio.get_running_loop().call_later(wait, self._wanted.set)
            return
        self._held = 0
        self._wanted.set()


def _watcher(emit: events.Emit, ignored: tuple[str, ...]) -> Watcher:
    return Watcher(emit, ignored=ignored)


def _count(number: int, noun: str = "path") -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
