"""What of politeness is not possible here: told once, and never a reason for a build to fail."""

from __future__ import annotations

from preheatd import events


class LimitsTold:
    """Tells each limit once, for as long as this object lives."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, emit: events.Emit, detail: str) -> None:
        """Make an event of it, unless that was done before."""
        if detail not in self._told:
            self._told.add(detail)
            emit(events.Event(action=events.POLITENESS_LIMITED, detail=detail))
