"""Reads the packages in use now and then, as no plan does, so that damage does not wait for a worker.

A plan looks at names and sizes. A worker that meets damaged bytes refuses them, but it cannot write: it
would refuse them for ever. Here each object of a fresh package is read once after the daemon's start,
again when its file is another or was written to, and again after a day. What is damaged goes to the
quarantine; the next plan finds it missing and brings the target back.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from preheat.errors import PreheatError
from preheat.verdict import Verdict
from preheatd import events

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from preheatd.inventory import Survey
    from preheatd.plan import Plan
    from preheatd.recovering import Recovery

AGAIN_SECONDS = 24 * 60 * 60.0
# Reading must not keep the disk from others.
PAUSE_SECONDS = 0.02

Identity = tuple[int, int, int, int]


def is_due(
    before: tuple[Identity, float] | None, identity: Identity, now: float, again: float
) -> bool:
    """Whether to read a file, after the last look at it: its identity then, and when that was. Pure."""
    return before is None or before[0] != identity or now - before[1] > again


class Scrubber:
    """Reads what the last plan found fresh. ``found`` is called when something was quarantined."""

    def __init__(
        self,
        recovery: Recovery,
        emit: events.Emit,
        found: Callable[[], None],
        *,
        again_seconds: float = AGAIN_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recovery = recovery
        self._emit = emit
        self._found = found
        self._again_seconds = again_seconds
        self._monotonic = monotonic
        self._read: dict[Path, tuple[Identity, float]] = {}
        self._wanted: dict[Path, str] = {}
        self._wake = asyncio.Event()

    def planned(self, plan: Plan, survey: Survey) -> None:
        """These packages are in use now."""
        self._wanted = dict(self._files(plan, survey))
        for path in self._read.keys() - self._wanted.keys():
            del self._read[path]
        self._wake.set()

    async def run(self) -> None:
        """Read what is due after each plan, one file at a time, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for path, target in await asyncio.to_thread(self._due, dict(self._wanted)):
                await asyncio.sleep(PAUSE_SECONDS)
                taken = await asyncio.to_thread(self._read_one, path)
                if taken:
                    self._emit(
                        events.Event(action=events.PACKAGE_DAMAGED, target=target, detail=taken)
                    )
                    self._found()
                    break  # the plan that follows says what is in use then

    def _files(self, plan: Plan, survey: Survey) -> Iterator[tuple[Path, str]]:
        layout = self._recovery.store.layout
        for decision in plan.decisions:
            facts = survey.of(decision.target)
            own = None if facts.layer else facts.manifest
            if decision.verdict is Verdict.FRESH and own is not None:
                for needed in own.code_objects():
                    yield layout.object(needed.sha256), decision.target

    def _due(self, wanted: Mapping[Path, str]) -> list[tuple[Path, str]]:
        now = self._monotonic()
        return [
            (path, target)
            for path, target in wanted.items()
            if (entry := self._recovery.inspector.entry(path)) is not None
            and is_due(self._read.get(path), _identity(entry.status), now, self._again_seconds)
        ]

    def _read_one(self, path: Path) -> str:
        """Read a file. What was wrong and where it is now, if it was taken out of use."""
        entry = self._recovery.inspector.entry(path)
        if entry is None:
            return ""
        self._read[path] = _identity(entry.status), self._monotonic()
        try:
            found = self._recovery.about(path)
            moved = found and self._recovery.mender.quarantine_object(path, found[0])
        except (PreheatError, OSError):
            return ""  # the store's troubles are the plan's to tell
        return f"{found[0].place} {found[0].detail}; {moved}" if moved else ""


def _identity(status: os.stat_result) -> Identity:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
