"""Why no builds are begun: a set of reasons, each with its own beginning and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preheatd.clock import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED = "asked"


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
    """The reasons that hold now. While there is one, builds that run go on and none is begun.

    ``changed`` is called after each change, in the caller's thread. Kept in memory alone: a daemon
    that is started again is not paused.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._pauses: dict[str, Pause] = {}

    def __bool__(self) -> bool:
        return bool(self._pauses)

    def __str__(self) -> str:
        return ", ".join(str(one) for one in self._pauses.values())

    @property
    def current(self) -> tuple[Pause, ...]:
        """The reasons, the oldest first."""
        return tuple(self._pauses.values())

    def add(self, reason: str, detail: str = "") -> bool:
        """Pause for this reason; says whether that is news."""
        before = self._pauses.get(reason)
        if before is not None and before.detail == detail:
            return False
        since = before.since if before else utc_now()
        self._pauses[reason] = Pause(reason=reason, since=since, detail=detail)
        self._changed()
        return before is None

    def remove(self, reason: str) -> bool:
        """This reason holds no more; says whether that is news. Others may go on."""
        if self._pauses.pop(reason, None) is None:
            return False
        self._changed()
        return True
