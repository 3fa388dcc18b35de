"""Battery and load: when builds pause for them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from typing import TYPE_CHECKING, Protocol

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheatd.politeness.settings import Politeness

# The load is an average over this time.
LOAD_SECONDS = 60.0
# A pause for load ends when the load is this far below the limit, so that it does not come and go.
RESUME_FRACTION = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineState:
    """The machine at one moment.

    ``battery``: the charge as a fraction while the machine runs on battery, else None. ``load``: the
    average over a minute, of the whole machine; ``processors``: all of the machine, whatever this
    process may use of them. ``own``: seconds of processor time by each process that the daemon started,
    with all that it started in turn.
    """

    battery: float | None = None
    load: float = 0.0
    processors: int = 1
    own: Mapping[int, float] = dataclasses.field(default_factory=dict)


class Machine(Protocol):
    """The outside world of battery and load."""

    def look(self) -> MachineState:
        """How it is now. Blocks; may raise."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLoad:
    """What the daemon's own processes add to the load, followed as the kernel follows the load.

    ``at`` is a monotonic time in seconds. Not promised: exactness. Threads that wait for a processor
    are part of the load and not of this, so a machine that others keep busy looks busy.
    """

    at: float
    load: float = 0.0
    seconds: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def followed(self, at: float, seconds: Mapping[int, float]) -> OwnLoad:
        """The same at a later time, with the processor time that was used meanwhile."""
        passed = at - self.at
        if passed <= 0:
            return self
        used = sum(max(0.0, now - self.seconds.get(pid, 0.0)) for pid, now in seconds.items())
        kept = math.exp(-passed / LOAD_SECONDS)
        weight = -math.expm1(-passed / LOAD_SECONDS) / passed
        return OwnLoad(at=at, load=self.load * kept + used * weight, seconds=dict(seconds))


def why_pause(
    state: MachineState, own_load: float, politeness: Politeness, *, paused_for_load: bool
) -> dict[str, str]:
    """The kinds of reasons to pause, each with a detail for a person."""
    reasons = {}
    if politeness.pause_on_battery and state.battery is not None:
        reasons["on_battery"] = f"{state.battery:.0%} left (pause_on_battery)"
    limit = politeness.pause_above_load
    if limit is not None:
        load = max(0.0, state.load - own_load) / state.processors
        if load > limit * (RESUME_FRACTION if paused_for_load else 1):
            reasons["load"] = (
                f"{load:.2f} a processor without the builds, {limit:g} is allowed (pause_above_load)"
            )
    return reasons


class ThisMachine:
    """The machine that this process runs on."""

    def look(self) -> MachineState:
        """See ``Machine``."""
        battery = psutil.sensors_battery()
        return MachineState(
            battery=battery.percent / 100 if battery and battery.power_plugged is False else None,
            load=os.getloadavg()[0],
            processors=os.cpu_count() or 1,
            own={child.pid: _seconds(child) for child in psutil.Process().children()},
        )


def _seconds(process: psutil.Process) -> float:
    """Processor time of a process, of all below it, and of those that have ended."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
