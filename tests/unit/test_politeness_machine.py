"""Battery and load: pure decisions, and the pauses that follow from a scripted machine."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
from hypothesis import given
from hypothesis import strategies as st

from preheatd.pauses import Pauses
from preheatd.politeness import machine as machines
from preheatd.politeness.machine import MachineState, OwnLoad, ThisMachine, why_pause
from preheatd.politeness.machine_pauses import LOOK_SECONDS, MachinePauses
from preheatd.politeness.settings import Politeness

if TYPE_CHECKING:
    import pytest

LOAD = Politeness(pause_above_load=1.0)
BATTERY = Politeness(pause_on_battery=True)


def kinds(
    state: MachineState, politeness: Politeness, own: float = 0.0, paused: bool = False
) -> set[str]:
    return set(why_pause(state, own, politeness, paused_for_load=paused))


def test_on_battery_only_if_asked() -> None:
    state = MachineState(battery=0.54)
    assert kinds(state, Politeness()) == set()
    assert kinds(state, BATTERY) == {"on_battery"}
    assert kinds(MachineState(), BATTERY) == set()
    assert why_pause(state, 0, BATTERY, paused_for_load=False)["on_battery"].startswith("54% left")


def test_load_is_that_of_others_for_each_processor() -> None:
    state = MachineState(load=10.0, processors=8)
    assert kinds(state, Politeness()) == set()
    assert kinds(state, LOAD) == {"load"}
    assert kinds(state, LOAD, own=3.0) == set()
    assert "1.25 a processor" in why_pause(state, 0, LOAD, paused_for_load=False)["load"]


@given(st.lists(st.floats(0, 4), max_size=30), st.floats(0.1, 2))
def test_a_pause_for_load_does_not_flap(loads: list[float], limit: float) -> None:
    """It begins above the limit, and ends well below it."""
    politeness, paused = Politeness(pause_above_load=limit), False
    for load in loads:
        now = "load" in kinds(MachineState(load=load), politeness, paused=paused)
        if now and not paused:
            assert load > limit
        if paused and not now:
            assert load <= limit * machines.RESUME_FRACTION
        paused = now


def test_the_own_load_follows_what_the_builds_use() -> None:
    own, used = OwnLoad(at=0.0), 0.0
    for step in range(1, 200):
        used += 5 * 3.0  # three processors
        own = own.followed(step * 5.0, {7: used})
    assert 2.99 < own.load <= 3.0
    # A minute after they have ended, as the kernel's average does.
    later = own.followed(own.at + machines.LOAD_SECONDS, {})
    assert 1.0 < later.load < 1.2


def test_a_build_that_ends_takes_nothing_from_another() -> None:
    own = OwnLoad(at=0.0, seconds={1: 1000.0, 2: 0.0})
    assert own.followed(5.0, {2: 5.0}).load == own.followed(5.0, {1: 1000.0, 2: 5.0}).load > 0


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.dictionaries(st.integers(1, 3), st.floats(0, 1e6))),
        max_size=20,
    )
)
def test_the_own_load_is_never_negative(steps: list[tuple[float, dict[int, float]]]) -> None:
    own = OwnLoad(at=0.0)
    for passed, seconds in steps:
        own = own.followed(own.at + passed, seconds)
        assert own.load >= 0


@dataclasses.dataclass
class Double:
    """A scripted machine."""

    state: MachineState = dataclasses.field(default_factory=MachineState)
    trouble: Exception | None = None
    looks: int = 0
    now: float = 100.0

    def look(self) -> MachineState:
        self.looks += 1
        if self.trouble:
            raise self.trouble
        return self.state


@dataclasses.dataclass
class World:
    machine: Double
    pauses: Pauses
    troubles: list[str]
    watched: MachinePauses

    async def look(
        self, politeness: Politeness, *, wait: bool = True, run: bool = False
    ) -> float | None:
        return await self.watched.look(some_wait=wait, some_run=run, politeness=politeness)

    def kinds(self) -> set[str]:
        return {reason.kind for reason in self.pauses.reasons()}


def world(**state: float) -> World:
    machine, pauses, troubles = Double(MachineState(**state)), Pauses(), list[str]()  # type: ignore[arg-type]
    watched = MachinePauses(pauses, machine, troubles.append, lambda: machine.now)
    return World(machine, pauses, troubles, watched)


async def test_nobody_looks_unless_asked_and_needed() -> None:
    it = world(battery=0.5)
    assert await it.look(Politeness()) is None
    assert await it.look(BATTERY, wait=False) is None
    assert it.machine.looks == 0


async def test_looks_are_seconds_apart() -> None:
    it = world(battery=0.5)
    assert await it.look(BATTERY) == LOOK_SECONDS
    it.machine.now += 2
    assert await it.look(BATTERY) == LOOK_SECONDS - 2
    assert it.machine.looks == 1
    it.machine.now += 3
    await it.look(BATTERY)
    assert it.machine.looks == 2


async def test_a_pause_ends_when_its_cause_does() -> None:
    it = world(battery=0.5, load=3.0)
    both = dataclasses.replace(BATTERY, pause_above_load=1.0)
    await it.look(both)
    assert it.kinds() == {"on_battery", "load"}
    it.machine.state = MachineState(load=3.0)
    it.machine.now += LOOK_SECONDS
    await it.look(both)
    assert it.kinds() == {"load"}
    await it.look(BATTERY)  # the configuration was changed
    assert it.kinds() == set()


async def test_there_is_no_pause_where_nothing_waits() -> None:
    it = world(battery=0.5)
    await it.look(BATTERY)
    assert it.kinds() == {"on_battery"}
    it.pauses.add("asked", "by a person")
    assert await it.look(BATTERY, wait=False, run=True) is not None
    assert it.kinds() == {"asked"}
    await it.look(BATTERY)
    assert it.kinds() == {"asked", "on_battery"}
    assert await it.look(BATTERY, wait=False) is None
    assert it.kinds() == {"asked"}


async def test_the_builds_themselves_are_no_reason_to_pause() -> None:
    it = world(load=0.0)
    used = 0.0
    for _ in range(100):
        await it.look(LOAD, wait=False, run=True)
        it.machine.now += LOOK_SECONDS
        used += 4 * LOOK_SECONDS
        it.machine.state = MachineState(load=4.0, processors=1, own={9: used})
    await it.look(LOAD, run=True)
    assert it.kinds() == set()
    it.machine.now += LOOK_SECONDS
    it.machine.state = MachineState(load=5.5, processors=1, own={9: used + 4 * LOOK_SECONDS})
    await it.look(LOAD, run=True)
    assert it.kinds() == {"load"}


async def test_a_machine_that_cannot_be_read_lets_builds_start() -> None:
    it = world(battery=0.5)
    it.machine.trouble = OSError("no sensors")
    assert await it.look(BATTERY) == LOOK_SECONDS
    assert it.kinds() == set()
    assert "no sensors" in it.troubles[0]


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ThisMachine().look()
    assert state.processors >= 1
    assert state.load >= 0
    for plugged, wanted in ((False, 0.25), (True, None), (None, None)):
        battery = SimpleNamespace(percent=25, power_plugged=plugged)
        monkeypatch.setattr(psutil, "sensors_battery", lambda battery=battery: battery)
        assert ThisMachine().look().battery == wanted
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert ThisMachine().look().load == 3.5
