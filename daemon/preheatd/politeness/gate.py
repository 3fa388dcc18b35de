"""Whether builds may start now: asked by the dispatcher before it starts any.

The outside world is looked at only while somebody waits for the answer: GPUs while a build waits for
one that none of ours uses, battery and load while a build waits or runs.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from preheatd import events, schedule
from preheatd.pauses import Pauses, tell_changes
from preheatd.politeness.gpu_turns import GpuTurns
from preheatd.politeness.gpus import Nvml, gpu_names
from preheatd.politeness.limits import LimitsTold
from preheatd.politeness.machine import ThisMachine
from preheatd.politeness.machine_pauses import MachinePauses
from preheatd.politeness.settings import Politeness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preheat.verdict import Reason
    from preheatd.outcome import BuildRequest
    from preheatd.politeness.gpus import Gpus
    from preheatd.politeness.machine import Machine
    from preheatd.schedule import Slot


class Gate:
    """Keeps builds from starting for now; those that run go on. Nothing that it meets is an error.

    ``politeness`` may be replaced at any time. Whoever else wants builds to pause adds to ``pauses``.
    """

    def __init__(
        self,
        politeness: Politeness = Politeness(),  # noqa: B008  # frozen
        emit: events.Emit = lambda event: None,
        *,
        pauses: Pauses | None = None,
        gpus: Gpus | None = None,
        machine: Machine | None = None,
        limits: LimitsTold | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.politeness = politeness
        self.pauses = Pauses() if pauses is None else pauses
        self._emit = emit
        self._environ = environ
        told = limits or LimitsTold()

        def trouble(detail: str) -> None:
            told.tell(emit, detail)

        self._turns = GpuTurns(gpus or Nvml(), trouble, clock)
        self._machine = MachinePauses(self.pauses, machine or ThisMachine(), trouble, clock)
        self._waiting: dict[str, tuple[Reason, ...]] = {}
        tell_changes(self.pauses, emit)

    @property
    def waiting(self) -> Mapping[str, tuple[Reason, ...]]:
        """The targets that wait for a GPU which others use, each with the reasons."""
        return self._waiting

    def gpus_of(self, request: BuildRequest) -> frozenset[str]:
        """The GPUs that a build takes, empty for none."""
        return gpu_names(request.device, request.target.env, self._environ)

    async def look(
        self, waiting: Sequence[Slot], running: Sequence[Slot], jobs: int
    ) -> float | None:
        """Look at the world, as far as these need it.

        Says in how many seconds to look again; None: not before something else happens.
        """
        waits = [
            await self._machine.look(
                some_wait=bool(waiting), some_run=bool(running), politeness=self.politeness
            )
        ]
        here = sum(not slot.lane for slot in running)
        if self.politeness.minds_gpus and not self.pauses and here < jobs:
            waits.append(await self._turns.look(waiting, running, self.politeness))
        self._tell_waiting(waiting)
        return min((wait for wait in waits if wait is not None), default=None)

    def startable(
        self, waiting: Sequence[Slot], running: Sequence[Slot], jobs: int
    ) -> tuple[Slot, ...]:
        """Which of those that wait may start now: see ``schedule.startable``."""
        if self.pauses:
            return ()
        held = self._turns.held(waiting, running) if self.politeness.minds_gpus else frozenset()
        turns = self._turns.identified
        chosen = schedule.startable(turns(waiting), turns(running), jobs, held)
        by_target = {slot.target: slot for slot in waiting}
        return tuple(by_target[slot.target] for slot in chosen)

    def left(self, slot: Slot) -> None:
        """A build has ended."""
        self._turns.left(slot)

    def _tell_waiting(self, waiting: Sequence[Slot]) -> None:
        """Say which targets wait for a GPU; once, until they do not any more."""
        before = self._waiting
        self._waiting = self._turns.reasons(waiting) if self.politeness.minds_gpus else {}
        for target, reasons in self._waiting.items():
            if target not in before:
                event = events.Event(action=events.BUILD_WAITING, target=target, reasons=reasons)
                self._emit(event)
