"""Lets builds pause on battery and under load."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from preheatd.politeness.asking import Asker
from preheatd.politeness.machine import OwnLoad, why_pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheatd.pauses import Pauses
    from preheatd.politeness.machine import Machine, MachineState
    from preheatd.politeness.settings import Politeness

LOOK_SECONDS = 5.0
_KINDS = ("on_battery", "load")


class MachinePauses:
    """Looks at the machine while builds wait or run. ``trouble`` is told what cannot be known."""

    def __init__(
        self,
        pauses: Pauses,
        machine: Machine,
        trouble: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pauses = pauses
        self._machine = machine
        self._trouble = trouble
        self._clock = clock
        self._asker = Asker()
        self._own = OwnLoad(at=clock())
        self._state: MachineState | None = None
        self._due = clock()

    async def look(
        self, *, some_wait: bool, some_run: bool, politeness: Politeness
    ) -> float | None:
        """Add and remove pauses, where a look is due. Says in how many seconds the next one is.

        A pause is one of builds that wait: there is none where nothing waits.
        """
        if not politeness.minds_machine or not (some_wait or some_run):
            self._state = None
            self._due = self._clock()
            self._pause({})
            return None
        if self._clock() >= self._due:
            await self._look()
        reasons = {}
        if some_wait and self._state is not None:
            paused_for_load = "load" in self._pauses
            reasons = why_pause(
                self._state, self._own.load, politeness, paused_for_load=paused_for_load
            )
        self._pause(reasons)
        return max(0.0, self._due - self._clock())

    async def _look(self) -> None:
        try:
            self._state = await self._asker.ask(self._machine.look)
        except Exception as error:  # whatever a machine's sensors come up with
            self._state = None
            self._trouble(
                f"battery and load cannot be read: {type(error).__name__}: {error}; builds do not pause"
            )
        else:
            self._own = self._own.followed(self._clock(), self._state.own)
        self._due = self._clock() + LOOK_SECONDS

    def _pause(self, reasons: dict[str, str]) -> None:
        for kind in _KINDS:
            if kind in reasons:
                self._pauses.add(kind, reasons[kind])
            else:
                self._pauses.remove(kind)
