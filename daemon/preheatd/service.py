"""The daemon: watches, plans again after every change, and keeps every target warm.

A group of named tasks. Everything that happens (an event, a finished build, a timer, an overflow)
leads to the same step: look at the outside world, make the plan, carry it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

from preheat.errors import PreheatError
from preheat.verdict import Verdict
from preheatd import events, owned, schedule, settle
from preheatd.clock import utc_now
from preheatd.config import load_config
from preheatd.dispatch import Dispatcher
from preheatd.history import History
from preheatd.hooks import Hooks
from preheatd.notify import Notifier
from preheatd.observed import Observed
from preheatd.plan import Plan, make_plan
from preheatd.roots import look_at_roots
from preheatd.signals import on_reload_signal, on_stop_signals
from preheatd.supervised import Supervised
from preheatd.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.verdict import Reason
    from preheatd.config import Config
    from preheatd.inventory import Survey
    from preheatd.outcome import BuildRequest, Outcome
    from preheatd.project import Project
    from preheatd.roots import Root

# Notifications may be lost; nothing stays stale for longer than this.
RESCAN_SECONDS = 60.0
TROUBLE_RETRY_SECONDS = 10.0
HELD_LONGEST_SECONDS = 30.0
MIN_PAUSE_SECONDS = 0.05


class _Stop(Exception):
    """Ends the task group."""


class Service:
    """The daemon of one project. ``planned`` is told each plan, for displays.

    ``notifier``: the service manager, where there is one. ``drain_seconds``: how long builds that run
    may go on after the first request to stop; a second request ends them at once.
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
    ) -> None:
        self._project = project
        self._history = History(project.state, emit)
        self._supervised = Supervised(
            notifier or Notifier(), self._history.heard, self._is_well, project.state
        )
        self.observed = Observed(self._supervised.heard, project.store.layout)
        self._emit = self.observed.heard
        self._hooks = Hooks(self._emit, project.state)
        self._drain_seconds = drain_seconds
        self._at_once = asyncio.Event()
        self._reload_asked = False
        self._planned = planned
        self._make_watcher = watcher or _watcher
        self._rescan_seconds = rescan_seconds
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._armed: tuple[Root, ...] | None = None
        self._config_text: bytes | None = b""
        self._held = 0
        self._blocked: dict[str, tuple[Reason, ...]] = {}
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
        self._config_text = _read(project.config)
        ignored = (str(project.config.store), str(project.state.path))
        self._watcher = self._make_watcher(self._emit, ignored)
        self.observed.metrics.watch_events = lambda: self._watcher.count
        self._dispatcher = Dispatcher(
            self._build,
            project.state,
            jobs=project.config.jobs,
            emit=self._emit,
            finished=self._finished,
            sources_state=self._sources_state,
        )
        owner = owned.Owner(
            pid=os.getpid(),
            purpose="daemon",
            started_at=utc_now(),
            configuration=str(project.config.file),
        )
        try:
            with (
                owned.OwnedDirectory(project.state.daemons, owner) as place,
                self.observed.keeping(place),
                on_stop_signals(self.stop),
                on_reload_signal(self.reload),
            ):
                await self._run_tasks()
        finally:
            await self._hooks.close()
            await self._watcher.close()
            await asyncio.to_thread(self._history.close)

    async def _run_tasks(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(), name="watch")
                group.create_task(self._keep_planning(), name="plan")
                group.create_task(self._dispatcher.run(), name="builds")
                group.create_task(self._wait_for_stop(), name="stop")
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
            {drained, asked},
            timeout=self._drain_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        drained.cancel()
        asked.cancel()

    def _is_well(self) -> bool:
        """Whether the watch and the store answer. Blocks for as long as the store does."""
        format_file = self._project.store.layout.format_file
        return self._watcher.is_alive and bool(format_file.read_bytes())

    async def _watch(self) -> None:
        while True:
            await self._watcher.wait()
            await self._settle()
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

    async def _settle(self) -> None:
        while True:
            locked = await asyncio.to_thread(self._is_locked)
            wait = settle.seconds_to_wait(self._watcher.burst(), time.monotonic(), locked=locked)
            if wait <= 0:
                return
            await asyncio.sleep(wait)

    def _is_locked(self) -> bool:
        """Whether version control is rewriting files, in the project or a directory above it."""
        project = self._project.config.project
        return any(
            (place / name).exists()
            for place in (project, *project.parents)
            for name in settle.LOCK_FILES
        )

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
        try:
            plan = await self._replan()
        except (PreheatError, OSError) as error:
            self._reload_asked |= asked
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
        return self._seconds_to_next(plan)

    def _seconds_to_next(self, plan: Plan) -> float:
        waits = [self._rescan_seconds]
        due = plan.next_retry()
        if due is not None:
            waits.append(max(MIN_PAUSE_SECONDS, due - time.time()))
        building = {one.target for one in plan.decisions if one.verdict is Verdict.BUILDING}
        if building - self._dispatcher.running:
            # Another process builds it and does not tell us when it is done.
            waits.append(schedule.HELD_RETRY_SECONDS)
        return min(waits)

    async def _replan(self) -> Plan:
        began = time.monotonic()
        await self._reload_config()
        survey = await self._survey()
        roots, gone = await asyncio.to_thread(look_at_roots, self._project.config, survey.roots)
        self.observed.missing(gone)
        if roots != self._armed:
            await self._watcher.arm(roots)
            self._armed = roots
            # Only what is read after the watch is armed cannot be missed.
            survey = await self._survey()
        plan = make_plan(survey.facts, time.time())
        self._dispatcher.stop_superseded({facts.target: facts for facts in survey.facts})
        self._dispatcher.replace_waiting(self._project.orders(survey, plan.to_build()))
        self._tell_blocked(plan)
        took = time.monotonic() - began
        self._emit(
            events.Event(action=events.PLANNED, seconds=round(took, 4), detail=plan.summary())
        )
        self.observed.planned(plan, self._dispatcher.waiting)
        self._supervised.planned(plan, self._dispatcher.running)
        self._planned(plan)
        return plan

    def _tell_blocked(self, plan: Plan) -> None:
        """Say which targets cannot even be tried; once, until that changes."""
        blocked = {
            one.target: one.reasons
            for one in plan.decisions
            if one.verdict is Verdict.UNTRUSTED or not one.environment
        }
        for target, reasons in blocked.items():
            if self._blocked.get(target) != reasons:
                event = events.Event(action=events.TARGET_BLOCKED, target=target, reasons=reasons)
                self._emit(event)
        self._blocked = blocked

    async def _survey(self) -> Survey:
        return await self._project.inventory.survey(self._project.config)

    async def _reload_config(self) -> None:
        config = self._project.config
        text = await asyncio.to_thread(_read, config)
        if text == self._config_text:
            return
        self._config_text = text
        try:
            new = await asyncio.to_thread(load_config, config.file)
        except PreheatError as error:
            detail = f"{error} The configuration from before stays in force."
            self._emit(events.Event(action=events.CONFIG_REFUSED, detail=detail))
            return
        if new.store != config.store:
            detail = f"{config.file}: `store` takes effect after a restart."
            self._emit(events.Event(action=events.CONFIG_REFUSED, detail=detail))
            return
        self._project = self._project.with_config(new)
        self._dispatcher.jobs = new.jobs
        self._emit(events.Event(action=events.CONFIG_RELOADED, detail=str(config.file)))

    async def _build(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        return await self._project.build(request, emit)

    async def _sources_state(self, target: str) -> str:
        survey = await self._survey()
        return next((one.sources_state for one in survey.facts if one.target == target), "")

    def _finished(self, outcome: Outcome) -> None:
        self._hooks.start(outcome, self._project.config, os.environ)
        if outcome.result == "held":
            wait = min(schedule.HELD_RETRY_SECONDS * 2.0**self._held, HELD_LONGEST_SECONDS)
            self._held = min(self._held + 1, 10)
            asyncio.get_running_loop().call_later(wait, self._wanted.set)
            return
        self._held = 0
        self._wanted.set()


def _watcher(emit: events.Emit, ignored: tuple[str, ...]) -> Watcher:
    return Watcher(emit, ignored=ignored)


def _read(config: Config) -> bytes:
    try:
        return config.file.read_bytes()
    except OSError:
        return b""


def _count(number: int, noun: str = "path") -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
