"""What the daemon knows without looking: its last plan, what is building and waiting, what keeps it back.

Everything here is in memory, and all of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.verdict import Verdict
from preheat.version import VERSION
from preheatd import answers, events
from preheatd import status as statuses
from preheatd.clock import utc_now
from preheatd.executors.naming import is_elsewhere
from preheatd.plan import Action, Plan
from preheatd.troubles import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from preheatd.dispatch import Dispatcher
    from preheatd.inventory import Survey
    from preheatd.pauses import Pauses
    from preheatd.plan import Decision
    from preheatd.project import Project
    from preheatd.status import TargetStatus
    from preheatd.store_figures import StoreFigures

_ENDS = {
    events.BUILD_PUBLISHED,
    events.BUILD_FAILED,
    events.BUILD_HELD,
    events.BUILD_STOPPED,
    events.BUILD_SUPERSEDED,
}


class Building(msgspec.Struct, kw_only=True):
    """A build that runs: its phase, and since when (UTC, ISO 8601). ``detail`` as in its event."""

    target: str
    environment: str
    since: str
    phase: str = "start"
    detail: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """One round: what was looked at and what follows. ``began`` is of the monotonic clock, in seconds."""

    project: Project
    survey: Survey
    plan: Plan
    began: float
    at: str = dataclasses.field(default_factory=utc_now)
    answers: dict[str, msgspec.Raw] = dataclasses.field(default_factory=dict)
    targets: dict[str, TargetStatus] = dataclasses.field(default_factory=dict)


class LiveView:
    """The picture that the daemon has of itself, for whoever asks it.

    ``store`` knows how large that is. ``watch_mode``: how it watches at the moment. ``queue`` is set once
    builds can run.
    """

    def __init__(
        self,
        project: Project,
        pauses: Pauses,
        store: StoreFigures,
        watch_mode: Callable[[], str] = lambda: "off",
    ) -> None:
        self.project = project
        self.started_at = utc_now()
        self.refused = ""
        self.control = ""
        self.queue: Dispatcher | None = None
        self._pauses = pauses
        self._watch_mode = watch_mode
        self._store = store
        self._seen: Seen | None = None
        self._building: dict[str, Building] = {}
        self._ended: dict[str, float] = {}
        self._limit = ""
        self._control_trouble = ""

    def heard(self, event: events.Event) -> None:
        """An event of the daemon: it changes the picture."""
        name = event.target or ""
        if event.action == events.BUILD_STARTED:
            self._building[name] = Building(
                target=name, environment=event.environment or "", since=utc_now()
            )
        elif event.action == events.BUILD_PHASE and name in self._building:
            self._building[name].phase = event.phase or ""
            self._building[name].detail = event.detail
        elif event.action in _ENDS:
            self._building.pop(name, None)
            self._ended[name] = time.monotonic()
        elif event.action in (events.CONFIG_REFUSED, events.CONFIG_RELOADED):
            self.refused = event.detail if event.action == events.CONFIG_REFUSED else ""
        elif event.action == events.WATCH_POLLING:
            self._limit = event.detail
        elif event.action in (events.CONTROL_FAILED, events.CONTROL_LISTENING):
            failed = event.action == events.CONTROL_FAILED
            self._control_trouble = event.detail if failed else ""

    def planned(self, seen: Seen) -> None:
        """A round has ended like this."""
        self.project = seen.project
        self._seen = seen
        names = {one.target for one in seen.plan.decisions}
        self._ended = {name: at for name, at in self._ended.items() if name in names}

    @property
    def is_building(self) -> bool:
        """Whether a build runs on this machine."""
        return not all(map(is_elsewhere, self._building))

    @property
    def plan(self) -> Plan:
        """The last plan, with what has been begun since. Empty before the first one."""
        if self._seen is None:
            return Plan()
        return Plan(decisions=tuple(self.now(one) for one in self._seen.plan.decisions))

    def settled(self, names: Collection[str]) -> tuple[Decision, ...]:
        """The decisions about these; a failure that a later build may have mended counts as pending."""
        began = self._seen.began if self._seen else 0.0
        chosen = [one for one in self.plan.decisions if one.target in names]
        return tuple(
            msgspec.structs.replace(one, action=Action.BUILD)
            if one.verdict is Verdict.FAILED and self._ended.get(one.target, 0.0) >= began
            else one
            for one in chosen
        )

    def now(self, decision: Decision) -> Decision:
        """A decision of the last plan, or that its build has begun since."""
        if decision.target not in self._building:
            return decision
        return msgspec.structs.replace(decision, verdict=Verdict.BUILDING, action=Action.WAIT)

    def plan_answer(self) -> answers.Json:
        """As ``preheat plan --json``."""
        return answers.plan_answer(self.plan, "daemon")

    async def status_answer(self) -> answers.Json:
        """As ``preheat status --json``, from memory: nothing is looked at but ends of logs, once a plan."""
        project, seen = self.project, self._seen
        daemons = await asyncio.to_thread(project.state.running_daemons)
        rows = [] if seen is None else await self._rows(seen)
        store = str(project.config.store)
        troubles = await asyncio.to_thread(recorded, project.state)
        return {
            **answers.status_answer(rows, daemons, store, "daemon", troubles),
            "daemon": self._daemon_answer(seen, await asyncio.to_thread(self._store_answer)),
        }

    async def _rows(self, seen: Seen) -> list[msgspec.Raw]:
        if not seen.targets:
            looked = await asyncio.to_thread(
                statuses.of_plan, seen.project, seen.plan, seen.survey.facts
            )
            encoded = await asyncio.to_thread(_encoded, looked)
            seen.targets.update({one.decision.target: one for one in looked})
            seen.answers.update(encoded)
        return [
            self._row(seen.targets[name]) if name in self._building else raw
            for name, raw in seen.answers.items()
        ]

    def _row(self, target: TargetStatus) -> msgspec.Raw:
        changed = dataclasses.replace(target, decision=self.now(target.decision))
        return _raw(changed)

    def _store_answer(self) -> answers.Json:
        size = self._store.look()
        try:
            free = shutil.disk_usage(self.project.config.store).free
        except OSError:
            free = None
        return {"objects": size.objects, "bytes": size.bytes, "free_bytes": free}

    def _daemon_answer(self, seen: Seen | None, store: answers.Json) -> answers.Json:
        config = self.project.config
        return {
            "pid": os.getpid(),
            "version": VERSION,
            "started_at": self.started_at,
            "configuration": str(config.file),
            "control": self.control or None,
            "control_trouble": self._control_trouble or None,
            "jobs": config.jobs,
            "planned_at": seen.at if seen else None,
            "paused": [msgspec.to_builtins(one) for one in self._pauses.current],
            "building": [msgspec.to_builtins(one) for one in self._building.values()],
            "queue": list(self.queue.waiting) if self.queue else [],
            "refused": self.refused or None,
            "watch": {"mode": self._watch_mode(), "limit": self._limit or None},
            "store_size": store,
        }


def _encoded(looked: tuple[TargetStatus, ...]) -> dict[str, msgspec.Raw]:
    return {one.decision.target: _raw(one) for one in looked}


def _raw(target: TargetStatus) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(answers.target_answer(target)))
