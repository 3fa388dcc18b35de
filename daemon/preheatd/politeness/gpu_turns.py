"""Which GPUs a build may have now: those that no build of ours uses, and others hardly."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from preheatd.politeness.asking import Asker
from preheatd.politeness.gpus import GpuState, label, why_busy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from preheat.verdict import Reason
    from preheatd.politeness.gpus import Gpus
    from preheatd.politeness.settings import Politeness
    from preheatd.schedule import Slot

LOOK_SECONDS = 5.0
# What was free a moment ago is free. What a build of ours has just left still looks busy: the driver
# tells how much a GPU was used over up to a second.
FREE_SECONDS = 1.0
REST_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """What was found out about a GPU, and until when it is not asked again (monotonic seconds)."""

    until: float
    reason: Reason | None = None


class GpuTurns:
    """Looks at the GPUs that waiting builds want. ``trouble`` is told what cannot be known."""

    def __init__(
        self,
        gpus: Gpus,
        trouble: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = gpus
        self._trouble = trouble
        self._clock = clock
        self._asker = Asker()
        self._verdicts: dict[str, _Verdict] = {}
        self._identities: dict[str, str] = {}
        self._rests: dict[str, float] = {}

    def identified(self, slots: Iterable[Slot]) -> list[Slot]:
        """The same slots, with one name for each GPU, as far as the GPUs have been looked at."""
        return [
            dataclasses.replace(slot, gpus=frozenset(map(self._identity, slot.gpus)))
            for slot in slots
        ]

    def held(self, waiting: Iterable[Slot], running: Iterable[Slot]) -> frozenset[str]:
        """The targets that wait for a GPU that is not known to be free.

        A GPU that one of ours uses is left to the queue: see ``schedule.startable``.
        """
        taken = self._taken(running)
        free = {self._identity(name) for name, one in self._verdicts.items() if not one.reason}
        return frozenset(
            slot.target for slot in self.identified(waiting) if slot.gpus - taken - free
        )

    def reasons(self, waiting: Iterable[Slot]) -> dict[str, tuple[Reason, ...]]:
        """Why targets wait, for those whose GPU others use."""
        found = {
            slot.target: tuple(
                verdict.reason
                for name in sorted(slot.gpus)
                if (verdict := self._verdicts.get(name)) and verdict.reason
            )
            for slot in waiting
        }
        return {target: reasons for target, reasons in found.items() if reasons}

    def left(self, slot: Slot) -> None:
        """A build of ours has ended; its GPUs are looked at anew, after a rest."""
        for name in slot.gpus:
            self._rests[self._identity(name)] = self._clock() + REST_SECONDS

    async def look(
        self, waiting: Iterable[Slot], running: Iterable[Slot], politeness: Politeness
    ) -> float | None:
        """Look at the GPUs that are wanted and not taken, where that was not done just now.

        Says in how many seconds to look again; None: not before something else happens.
        """
        now, taken = self._clock(), self._taken(running)
        wanted = {name for slot in waiting for name in slot.gpus}
        wanted = {name for name in wanted if self._identity(name) not in taken}
        self._forget(now, wanted)
        unknown = {name for name in wanted if name not in self._verdicts} - self._resting(wanted)
        for name, state in (await self._states(unknown)).items():
            self._judge(name, state, politeness)
        now = self._clock()
        dues = [one.until for name, one in self._verdicts.items() if one.reason and name in wanted]
        dues += [self._rests[self._identity(name)] for name in self._resting(wanted)]
        return max(0.0, min(dues) - now) if dues else None

    def _forget(self, now: float, wanted: set[str]) -> None:
        """What is too old, and what nobody asks for, is not known any more."""
        self._rests = {one: until for one, until in self._rests.items() if until > now}
        resting = self._resting(wanted)
        self._verdicts = {
            name: verdict
            for name, verdict in self._verdicts.items()
            if verdict.until > now and name in wanted - resting
        }

    def _resting(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if self._identity(name) in self._rests}

    async def _states(self, names: set[str]) -> Mapping[str, GpuState]:
        if not names:
            return {}
        try:
            return await self._asker.ask(lambda: self._gpus.look(sorted(names)))
        except Exception as error:  # whatever a driver comes up with
            why = f"{type(error).__name__}: {error}"
            return {name: GpuState(identity=name, trouble=why) for name in names}

    def _judge(self, name: str, state: GpuState, politeness: Politeness) -> None:
        self._identities[name] = state.identity
        reason = why_busy(name, state, politeness)
        if state.trouble:
            self._trouble(f"builds start without a look at {label(name)}: {state.trouble}")
        until = self._clock() + (LOOK_SECONDS if reason else FREE_SECONDS)
        self._verdicts[name] = _Verdict(until, reason)

    def _taken(self, running: Iterable[Slot]) -> frozenset[str]:
        return frozenset(gpu for slot in self.identified(running) for gpu in slot.gpus)

    def _identity(self, name: str) -> str:
        return self._identities.get(name, name)
