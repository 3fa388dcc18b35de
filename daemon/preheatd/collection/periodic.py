"""The daemon's collection: now and then, while nothing is built.

It would be safe at any time (see ``preheat.store.turns``); it waits only so as not to be in the way.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from preheat.errors import BusyError, PreheatError
from preheat.store.collection import REASONS, amount
from preheatd import events
from preheatd.collection.kept import kept_warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preheat.store import DiskStore
    from preheat.store.collecting import Collected, Collector
    from preheat.store.collection import Shortfall
    from preheat.store.gathering import KeptWarm
    from preheatd.collection.settings import Collection
    from preheatd.plan import TargetFacts

# A daemon that has just started has other things to do.
FIRST_SECONDS = 60.0
_LOOK_SECONDS = 5.0
# Builds that never end must not keep a store from being collected for ever.
_LONGEST_WAIT_SECONDS = 3600.0


@dataclasses.dataclass
class Tallies:
    """What this daemon has collected so far. ``leases``, ``seconds`` and ``at`` are of the last time."""

    deletions: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    bytes: int = 0
    leases: int = 0
    seconds: float = 0.0
    at: float = 0.0

    def add(self, done: Collected, seconds: float) -> None:
        """A collection ended."""
        for reason, count in collections.Counter(one.reason for one in done.deleted).items():
            self.deletions[reason] += count
        self.bytes += done.bytes
        self.leases = done.plan.leases
        self.seconds, self.at = seconds, time.time()


class PeriodicCollection:
    """A named task of the daemon. ``is_idle`` says whether nothing is built at the moment."""

    def __init__(
        self,
        store: DiskStore,
        emit: events.Emit,
        is_idle: Callable[[], bool],
    ) -> None:
        self.tallies = Tallies()
        self._store, self._emit, self._is_idle = store, emit, is_idle
        self._settings: Collection | None = None
        self._kept: KeptWarm | None = None
        self._collector: Collector | None = None
        self._changed = asyncio.Event()
        self._failed = False
        self._short: frozenset[tuple[str, str | None]] = frozenset()

    def planned(self, settings: Collection, facts: Iterable[TargetFacts]) -> None:
        """What the configuration is now, and what it keeps warm."""
        self._kept = kept_warm(facts)
        if settings != self._settings:
            self._settings = settings
            self._changed.set()

    async def run(self) -> None:
        """Collect at the interval until cancelled; a changed configuration begins it anew."""
        wait = FIRST_SECONDS
        while True:
            interval = self._settings.interval_seconds if self._settings else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if interval is None else min(wait, interval)):
                    await self._changed.wait()
            if self._changed.is_set():
                self._changed.clear()
                wait = FIRST_SECONDS
                continue
            await self._until_idle()
            await self.collect_once()
            wait = interval or FIRST_SECONDS

    async def _until_idle(self) -> None:
        waited = 0.0
        while not self._is_idle() and waited < _LONGEST_WAIT_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS

    async def collect_once(self) -> None:
        """Collect now. Trouble is told, and the daemon goes on."""
        assert self._settings is not None
        began = time.monotonic()
        try:
            done = await asyncio.to_thread(self._collect, self._settings, self._kept)
        except BusyError:
            return  # somebody else does it
        except (PreheatError, OSError) as error:
            if not self._failed:
                self._emit(events.Event(action=events.COLLECTION_FAILED, detail=str(error)))
            self._failed = True
            return
        seconds = round(time.monotonic() - began, 3)
        self.tallies.add(done, seconds)
        if done.deleted or self._failed:
            text = _text(done)
            self._emit(events.Event(action=events.COLLECTED, seconds=seconds, detail=text))
        self._failed = False
        self._tell_limits(done.plan.shortfalls)

    def _collect(self, settings: Collection, kept: KeptWarm | None) -> Collected:
        if self._collector is None:
            self._collector = self._store.collector()
        return self._collector.collect(settings.rules, kept)

    def _tell_limits(self, shortfalls: tuple[Shortfall, ...]) -> None:
        """Say which limits are not met when that is another set of them than the last time."""
        short = frozenset((one.limit, one.target) for one in shortfalls)
        before, self._short = self._short, short
        if short and short != before:
            detail = " ".join(map(str, shortfalls))
            self._emit(events.Event(action=events.STORE_OVER_LIMIT, detail=detail))
        elif before and not short:
            detail = "every limit of the store is met"
            self._emit(events.Event(action=events.STORE_WITHIN_LIMITS, detail=detail))


def _text(done: Collected) -> str:
    packages = sum(one.target is not None for one in done.deleted)
    counts = collections.Counter(one.reason for one in done.deleted)
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    objects = len(done.deleted) - packages
    text = f"{packages} packages and {objects} unreferenced objects, {amount(done.bytes)}"
    return f"{text}: {why}" if why else text
