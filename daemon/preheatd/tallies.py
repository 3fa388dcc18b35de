"""What a daemon counts: plain numbers, made of its events and plans alone.

No library takes part: a daemon that nobody asks for its metrics does not pay for them.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING

from preheat.verdict import Verdict
from preheatd import events
from preheatd.edits import Edits
from preheatd.kinds import OTHER, known_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preheat.verdict import Reason
    from preheatd.plan import Plan

SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1800.0)

# How a build can end.
PUBLISHED, RETURNED, FAILED = "published", "returned", "failed"
SUPERSEDED, HELD, STOPPED, WITHDRAWN = "superseded", "held", "stopped", "withdrawn"
RESULTS = (PUBLISHED, RETURNED, FAILED, SUPERSEDED, HELD, STOPPED, WITHDRAWN)
_RESULT_OF = {
    events.BUILD_PUBLISHED: PUBLISHED,
    events.BUILD_FAILED: FAILED,
    events.BUILD_SUPERSEDED: SUPERSEDED,
    events.BUILD_HELD: HELD,
    events.BUILD_STOPPED: STOPPED,
    events.PACKAGE_WITHDRAWN: WITHDRAWN,
}


class Histogram:
    """How often a value was at most each of ``bounds``, and the sum of all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Bounds as Prometheus writes them, each with how many values are not above it."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, itertools.accumulate(self._counts), strict=True))


@dataclasses.dataclass
class _Build:
    began: float
    proof_began: float | None = None


class Tallies:
    """Counts. ``clock`` is monotonic. Used in one thread; others may read meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._edits = Edits()
        self._building: dict[str, _Build] = {}
        self.targets: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        self.builds: collections.Counter[tuple[str, str]] = collections.Counter()
        self.invalidations: collections.Counter[str] = collections.Counter()
        self.build_seconds = Histogram(LONG_SECONDS)
        self.proof_seconds = Histogram(LONG_SECONDS)
        self.rescan_seconds = Histogram(SHORT_SECONDS)
        self.edit_to_fresh = {kind: Histogram(LONG_SECONDS) for kind in (PUBLISHED, RETURNED)}
        self.overflows = 0
        self.hook_failures = 0
        self.queue_depth = 0
        self._plan_seconds = 0.0

    @property
    def running(self) -> int:
        """How many builds run."""
        return len(self._building)

    def heard(self, event: events.Event) -> None:
        """Take an event into account."""
        now = self._clock()
        match event.action:
            case events.CHANGED:
                self._edits.changed(now - (event.seconds or 0.0), now)
            case events.PLANNED:
                self._plan_seconds = event.seconds or 0.0
                self.rescan_seconds.add(self._plan_seconds)
            case events.WATCH_OVERFLOW:
                self.overflows += 1
            case events.HOOK_FAILED:
                self.hook_failures += 1
            case events.BUILD_STARTED:
                self._building[event.target or ""] = _Build(now)
            case events.BUILD_PHASE:
                self._entered(event, now)
            case action if action in _RESULT_OF:
                self._ended(event, now)

    def planned(self, plan: Plan, queue_depth: int) -> None:
        """A plan was made, and its event heard; so many builds wait now."""
        counts = collections.Counter(one.verdict for one in plan.decisions)
        self.targets = {verdict: counts[verdict] for verdict in Verdict}
        self.queue_depth = queue_depth
        for lost in self._edits.planned(plan, self._clock() - self._plan_seconds):
            self.invalidations.update({known_kind(reason.kind) for reason in lost.reasons})

    def _entered(self, event: events.Event, now: float) -> None:
        build = self._building.get(event.target or "")
        if build is None:
            return
        if event.phase != "proof":
            build.proof_began = None  # a second attempt goes through all phases
        elif build.proof_began is None:
            build.proof_began = now

    def _ended(self, event: events.Event, now: float) -> None:
        target = event.target or ""
        build = self._building.pop(target, None)
        result = _RESULT_OF[event.action]
        if result == PUBLISHED and event.detail:
            result = RETURNED
        self.builds[result, _reason(result, event.kind, event.reasons)] += 1
        if result == FAILED:
            self._edits.failed(target)
        if result not in self.edit_to_fresh:
            return
        if result == PUBLISHED and build is not None and build.proof_began is not None:
            self.build_seconds.add(build.proof_began - build.began)
            self.proof_seconds.add(now - build.proof_began)
        seconds = self._edits.published(target, now)
        if seconds is not None:
            self.edit_to_fresh[result].add(seconds)


def _reason(result: str, kind: str | None, reasons: Iterable[Reason]) -> str:
    """Why a build ended so, as a word of a closed set; empty where there is nothing to say."""
    if result in (FAILED, WITHDRAWN):
        return known_kind(kind or OTHER)
    first = next(iter(reasons), None) if result == SUPERSEDED else None
    return known_kind(first.kind) if first else ""
