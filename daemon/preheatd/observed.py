"""What a daemon knows about itself while it works: its troubles and its metrics, from its events."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from preheatd import clock, events, troubles
from preheatd.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheatd.plan import Plan
    from preheatd.store_figures import StoreFigures

# How long a clock that was set is told of.
CLOCK_TOLD_SECONDS = 600.0


class Observed:
    """Sees every event, and hands it on to ``emit``. ``offset``: see ``clock.offset_seconds``."""

    def __init__(
        self,
        emit: events.Emit,
        store: StoreFigures,
        *,
        offset: Callable[[], float] = clock.offset_seconds,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = Metrics(store)
        self.troubles: tuple[troubles.Trouble, ...] = ()
        self._emit = emit
        self._record: troubles.Record | None = None
        self._gone: tuple[Path, ...] = ()
        self._offset, self._monotonic = offset, monotonic
        self._last_offset = offset()
        self._jumped: float | None = None

    def heard(self, event: events.Event) -> None:
        """An event of the daemon."""
        self._emit(event)
        self.metrics.heard(event)
        found = troubles.after(self.troubles, event, clock.utc_now())
        if found != self.troubles:
            self.troubles = self.metrics.troubles = found
            if self._record is not None:
                self._record.keep(found)

    @contextlib.contextmanager
    def keeping(self, place: Path) -> Iterator[None]:
        """Inside, ``preheat status`` finds the troubles in ``place``, the daemon's own directory."""
        with troubles.Record(place) as record:
            record.keep(self.troubles)
            self._record = record
            try:
                yield
            finally:
                self._record = None

    def missing(self, gone: tuple[Path, ...]) -> None:
        """These directories are to be watched and are not there. Said once, until that changes."""
        if gone == self._gone:
            return
        self._gone = gone
        if gone:
            detail = f"{', '.join(map(str, gone))} cannot be watched: it is not there."
            self.heard(events.Event(action=events.WATCH_GONE, detail=detail))
        else:
            detail = "every directory is there again"
            self.heard(events.Event(action=events.WATCH_BACK, detail=detail))

    def planned(self, plan: Plan, queue_depth: int) -> None:
        """A plan was made, and its event heard."""
        self.metrics.planned(plan, queue_depth)
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        before, self._last_offset = self._last_offset, self._offset()
        jump = clock.jump_seconds(before, self._last_offset)
        if jump:
            self._jumped = self._monotonic()
            where = "forward" if jump > 0 else "back"
            detail = f"The machine's clock was set {where} by {abs(jump):.0f} s."
            self.heard(events.Event(action=events.CLOCK_JUMPED, detail=detail))
        elif self._jumped is not None and self._monotonic() > self._jumped + CLOCK_TOLD_SECONDS:
            self._jumped = None
            self.heard(events.Event(action=events.CLOCK_STEADY))
