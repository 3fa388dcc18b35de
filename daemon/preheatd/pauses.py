"""Why no build is started at the moment: a small set of reasons that everybody may ask."""

from __future__ import annotations

from collections.abc import Callable

from preheat.verdict import Reason
from preheatd import events

Changed = Callable[[Reason, bool], None]


class Pauses:
    """The reasons for which no build is started; builds that run go on. True while there is one.

    Of each kind there is at most one. Used from the event loop alone.
    """

    def __init__(self, changed: Changed = lambda reason, begins: None) -> None:
        self._reasons: dict[str, Reason] = {}
        self._listeners = [changed]

    def listen(self, changed: Changed) -> None:
        """Call this as well when a reason comes (True) or goes (False), after it has."""
        self._listeners.append(changed)

    def add(self, kind: str, detail: str) -> None:
        """Builds pause for this reason, until it is removed. One of its kind is replaced silently."""
        known = kind in self._reasons
        self._reasons[kind] = Reason(kind=kind, detail=detail)
        if not known:
            self._tell(self._reasons[kind], begins=True)

    def remove(self, kind: str) -> None:
        """The reason of this kind is over, if there was one."""
        reason = self._reasons.pop(kind, None)
        if reason is not None:
            self._tell(reason, begins=False)

    def reasons(self) -> tuple[Reason, ...]:
        """All of them, the oldest first."""
        return tuple(self._reasons.values())

    def __contains__(self, kind: str) -> bool:
        return kind in self._reasons

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def _tell(self, reason: Reason, *, begins: bool) -> None:
        for listener in self._listeners:
            listener(reason, begins)


def tell_changes(pauses: Pauses, emit: events.Emit) -> None:
    """Make an event of each reason that comes, and of the end of the last one."""

    def changed(reason: Reason, begins: bool) -> None:
        if begins:
            emit(events.Event(action=events.PAUSED, reasons=(reason,)))
        elif not pauses:
            emit(events.Event(action=events.RESUMED, reasons=(reason,)))

    pauses.listen(changed)
