"""Why no build is started at the moment: a small set of reasons that everybody may ask."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from preheat.verdict import Reason
from preheatd import events
from preheatd.clock import utc_now

ASKED = "asked"
Changed = Callable[[Reason, bool], None]


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """One reason not to begin builds: a stable word, and since when it holds (UTC, ISO 8601).

    ``detail`` is for a person.
    """

    reason: str
    since: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


class Pauses:
    """The reasons for which no build is started; builds that run go on. True while there is one.

    Of each kind there is at most one. Used from the event loop alone, and kept in memory alone: a daemon
    that is started again is not paused.
    """

    def __init__(self, changed: Changed = lambda reason, begins: None) -> None:
        self._pauses: dict[str, Pause] = {}
        self._listeners = [changed]

    def listen(self, changed: Changed) -> None:
        """Call this as well when a reason comes (True) or goes (False), after it has."""
        self._listeners.append(changed)

    def add(self, kind: str, detail: str = "") -> bool:
        """Builds pause for this reason until it is removed; says whether that is news.

        Other words for a reason that holds already are no news.
        """
        before = self._pauses.get(kind)
        since = before.since if before else utc_now()
        self._pauses[kind] = Pause(reason=kind, since=since, detail=detail)
        if before is None:
            self._tell(self._pauses[kind], begins=True)
        return before is None

    def remove(self, kind: str) -> bool:
        """The reason of this kind is over; says whether that is news."""
        pause = self._pauses.pop(kind, None)
        if pause is None:
            return False
        self._tell(pause, begins=False)
        return True

    @property
    def current(self) -> tuple[Pause, ...]:
        """All of them, the oldest first."""
        return tuple(self._pauses.values())

    def reasons(self) -> tuple[Reason, ...]:
        """The same as reasons."""
        return tuple(map(_reason, self._pauses.values()))

    def __contains__(self, kind: str) -> bool:
        return kind in self._pauses

    def __bool__(self) -> bool:
        return bool(self._pauses)

    def __str__(self) -> str:
        return ", ".join(map(str, self._pauses.values()))

    def _tell(self, pause: Pause, *, begins: bool) -> None:
        for listener in self._listeners:
            listener(_reason(pause), begins)


def _reason(pause: Pause) -> Reason:
    return Reason(kind=pause.reason, detail=pause.detail)


def tell_changes(pauses: Pauses, emit: events.Emit) -> None:
    """Make an event of each reason that comes, and of the end of the last one."""

    def changed(reason: Reason, begins: bool) -> None:
        if begins:
            emit(events.Event(action=events.PAUSED, reasons=(reason,)))
        elif not pauses:
            emit(events.Event(action=events.RESUMED, reasons=(reason,)))

    pauses.listen(changed)
