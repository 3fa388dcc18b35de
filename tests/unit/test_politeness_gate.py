"""The gate with scripted GPUs: who waits, who looks when, and the queue's rule of one build a GPU."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_daemon_dispatch import Script, order

from preheatd import events, schedule
from preheatd.dispatch import Dispatcher
from preheatd.politeness.asking import Asker
from preheatd.politeness.gate import Gate
from preheatd.politeness.gpu_turns import FREE_SECONDS, LOOK_SECONDS, REST_SECONDS
from preheatd.politeness.gpus import GpuState
from preheatd.politeness.settings import Politeness
from preheatd.schedule import Slot
from preheatd.state import State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from preheatd.outcome import BuildRequest, Outcome

ALL = "0123"


class Double:
    """Scripted GPUs. ``GPU-a`` is the one that CUDA counts as 0."""

    def __init__(self, *busy: str) -> None:
        self.busy = set(busy)
        self.looks: list[list[str]] = []
        self.trouble: Exception | None = None
        self.third = threading.Event()

    def look(self, names: Collection[str]) -> Mapping[str, GpuState]:
        self.looks.append(list(names))
        if len(self.looks) == 3:
            self.third.set()
        if self.trouble:
            raise self.trouble
        return {
            name: GpuState(
                identity={"0": "GPU-a"}.get(name, name),
                memory_used=0.9 if name in self.busy else 0.1,
                utilisation=0.0,
            )
            for name in names
        }


@dataclasses.dataclass
class World:
    gpus: Double
    gate: Gate
    heard: list[events.Event]
    time: list[float]

    async def look(
        self, waiting: Sequence[Slot], running: Sequence[Slot] = (), jobs: int = 4
    ) -> float | None:
        return await self.gate.look(waiting, running, jobs)

    def starts(self, waiting: Sequence[Slot], running: Sequence[Slot] = (), jobs: int = 4) -> str:
        return "".join(slot.target for slot in self.gate.startable(waiting, running, jobs))

    def told(self, action: str) -> list[str | None]:
        return [event.target for event in self.heard if event.action == action]


def world(*busy: str, politeness: Politeness | None = None) -> World:
    gpus, heard, time = Double(*busy), list[events.Event](), [0.0]
    gate = Gate(politeness or Politeness(), heard.append, gpus=gpus, clock=lambda: time[0])
    return World(gpus, gate, heard, time)


def slot(target: str, *gpus: str, order: int = 0, jobs: int | None = None) -> Slot:
    return Slot(target=target, gpus=frozenset(gpus), order=order, jobs=jobs)


async def test_builds_without_a_gpu_are_never_asked_about() -> None:
    it = world("0")
    assert await it.look([slot("a")]) is None
    assert it.starts([slot("a")]) == "a"
    assert it.gpus.looks == []


async def test_a_target_waits_for_a_busy_gpu_and_holds_back_nobody() -> None:
    it = world("0")
    waiting = [slot("a", "0", order=1), slot("b", "1", order=2), slot("c", order=3)]
    assert await it.look(waiting) == LOOK_SECONDS
    assert it.starts(waiting) == "bc"
    assert it.told(events.BUILD_WAITING) == ["a"]
    (reason,) = it.gate.waiting["a"]
    assert reason.kind == "gpu_busy"
    assert "gpu_memory_below" in reason.detail

    it.gpus.busy.clear()
    it.time[0] += LOOK_SECONDS
    assert await it.look(waiting[:1]) is None
    assert it.starts(waiting[:1]) == "a"
    assert it.gate.waiting == {}


async def test_a_busy_gpu_is_looked_at_every_few_seconds_and_told_once() -> None:
    it = world("0")
    waiting = [slot("a", "0")]
    for _ in range(3):
        await it.look(waiting)
        it.time[0] += LOOK_SECONDS / 2
        assert await it.look(waiting) == LOOK_SECONDS / 2
        it.time[0] += LOOK_SECONDS / 2
    assert len(it.gpus.looks) == 3
    assert it.told(events.BUILD_WAITING) == ["a"]


async def test_nobody_looks_at_a_gpu_that_a_build_of_ours_uses() -> None:
    it = world()
    waiting, running = [slot("a", "0")], [slot("b", "0")]
    assert await it.look(waiting, running) is None
    assert it.gpus.looks == []
    assert it.starts(waiting, running) == ""
    # Nor when no build could start anyway.
    await it.look(waiting, [slot("c")], jobs=1)
    assert it.gpus.looks == []


async def test_one_gpu_under_two_names() -> None:
    it = world()
    waiting = [slot("a", "0", order=1), slot("b", "GPU-a", order=2)]
    await it.look(waiting)
    assert it.starts(waiting) == "a"
    assert it.starts(waiting[1:], waiting[:1]) == ""


async def test_a_gpu_rests_after_a_build_of_ours() -> None:
    """Its utilisation over the last second is that of our own build."""
    it = world()
    waiting, ended = [slot("a", "0")], slot("b", "0")
    it.gpus.busy.add("0")
    it.gate.left(ended)
    assert await it.look(waiting) == REST_SECONDS
    assert it.starts(waiting) == ""
    assert it.told(events.BUILD_WAITING) == []
    it.gpus.busy.clear()
    it.time[0] += REST_SECONDS
    await it.look(waiting)
    assert it.starts(waiting) == "a"


async def test_what_was_free_long_ago_is_looked_at_again() -> None:
    it = world()
    waiting = [slot("a", "0")]
    await it.look(waiting)
    await it.look(waiting)
    assert len(it.gpus.looks) == 1
    it.gpus.busy.add("0")
    it.time[0] += FREE_SECONDS
    await it.look(waiting)
    assert it.starts(waiting) == ""


async def test_a_build_that_was_just_asked_for_is_looked_at_first() -> None:
    it = world("0")
    assert it.starts([slot("a", "0")]) == ""


async def test_thresholds_that_allow_everything_ask_nobody() -> None:
    it = world("0", politeness=Politeness(gpu_memory_below=1, gpu_utilisation_below=1))
    waiting = [slot("a", "0", order=1), slot("b", "0", order=2)]
    assert await it.look(waiting) is None
    assert it.gpus.looks == []
    assert it.starts(waiting) == "a"  # still one a GPU


async def test_new_thresholds_hold_without_a_restart() -> None:
    it = world("0")
    waiting = [slot("a", "0")]
    await it.look(waiting)
    assert it.starts(waiting) == ""
    it.gate.politeness = Politeness(gpu_memory_below=0.95)
    it.time[0] += LOOK_SECONDS
    await it.look(waiting)
    assert it.starts(waiting) == "a"


async def test_gpus_that_cannot_be_asked_let_builds_start_and_are_told_once() -> None:
    it = world("0")
    it.gpus.trouble = RuntimeError("the driver is gone")
    waiting = [slot("a", "0")]
    for _ in range(3):
        await it.look(waiting)
        assert it.starts(waiting) == "a"
        it.time[0] += LOOK_SECONDS
    (told,) = [event for event in it.heard if event.action == events.POLITENESS_LIMITED]
    assert "the driver is gone" in told.detail


async def test_while_builds_pause_nothing_starts_and_no_gpu_is_asked() -> None:
    it = world()
    it.gate.pauses.add("asked", "by a person")
    waiting = [slot("a", "0"), slot("b")]
    assert await it.look(waiting) is None
    assert it.starts(waiting) == ""
    assert it.gpus.looks == []


async def test_an_answer_that_never_comes_is_not_waited_for() -> None:
    asker, release = Asker(limit_seconds=0.01), threading.Event()
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"no answer within 0.01 s"):
            await asker.ask(release.wait)
    new = set(threading.enumerate()) - before
    assert [thread.name for thread in new] == ["asking"]
    release.set()


async def test_an_answer_that_comes_late_lets_others_ask() -> None:
    asker, release, asked = Asker(limit_seconds=10), threading.Event(), threading.Event()

    def slow() -> int:
        asked.set()
        release.wait(10)
        return 1

    first = asyncio.create_task(asker.ask(slow))
    assert await asyncio.to_thread(asked.wait, 10)
    first.cancel()
    await asyncio.wait([first])
    with pytest.raises(TimeoutError):
        await asker.ask(lambda: 2)
    release.set()
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(TimeoutError):
                assert await asker.ask(lambda: 3) == 3
                break
            await asyncio.sleep(0)


async def test_what_a_question_raises_is_its_answer() -> None:
    asker = Asker()

    def raises() -> None:
        raise TimeoutError("of the driver")

    for _ in range(2):
        with pytest.raises(TimeoutError, match="of the driver"):
            await asker.ask(raises)


@given(
    st.lists(
        st.builds(
            Slot,
            target=st.uuids().map(str),
            priority=st.integers(0, 2),
            order=st.integers(0, 9),
            gpus=st.frozensets(st.sampled_from(ALL), max_size=3),
        ),
        max_size=8,
    ),
    st.integers(1, 5),
    st.frozensets(st.integers(0, 7)),
)
def test_one_build_a_gpu_and_everybody_gets_a_turn(
    waiting: list[Slot], jobs: int, held_numbers: frozenset[int]
) -> None:
    held = frozenset(one.target for number, one in enumerate(waiting) if number in held_numbers)
    left, running = list(waiting), list[Slot]()
    for _ in range(len(waiting) + 1):
        chosen = schedule.startable(left, running, jobs, held)
        running += chosen
        left = [one for one in left if one not in chosen]
        used = [gpu for one in running for gpu in one.gpus]
        assert len(used) == len(set(used))
        assert len(running) <= jobs
        assert held.isdisjoint(one.target for one in running)
        running = running[1:]  # the oldest ends
    assert {one.target for one in left} == held


def test_a_build_of_two_gpus_is_not_overtaken_for_ever() -> None:
    two, one = slot("two", "0", "1", order=1), slot("one", "1", order=2)
    assert schedule.startable([two, one], [slot("x", "0")], 4) == ()
    assert schedule.startable([two, one], [], 4) == (two,)
    # But one whose GPU others use may be overtaken: nobody knows for how long.
    assert schedule.startable([two, one], [], 4, frozenset({"two"})) == (one,)


def test_a_build_that_waits_for_a_gpu_does_not_hold_back_the_processor() -> None:
    waits, other = slot("waits", "0", order=1, jobs=1), slot("other", order=2)
    assert schedule.startable([waits, other], [slot("x", "0")], 4) == (other,)


async def test_the_dispatcher_looks_again_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preheatd.politeness.gpu_turns.LOOK_SECONDS", 0.01)
    gpus, script, state, heard = Double("0"), Script(), State(tmp_path), list[events.Event]()
    state.prepare()
    dispatcher = Dispatcher(
        script.build,
        state,
        jobs=2,
        emit=heard.append,
        gate=Gate(emit=heard.append, gpus=gpus, environ={}),
    )
    on_gpu = order("gpu")
    request: BuildRequest = dataclasses.replace(on_gpu.request, device="cuda")
    task = asyncio.create_task(dispatcher.run(until_idle=True))
    dispatcher.replace_waiting([dataclasses.replace(on_gpu, request=request), order("cpu")])
    await script.until_started("cpu")
    assert await asyncio.to_thread(gpus.third.wait, 10)
    assert script.started == ["cpu"]
    gpus.busy.clear()
    await script.until_started("cpu", "gpu")
    for name in ("cpu", "gpu"):
        script.end(name)
    async with asyncio.timeout(120):
        await task
    assert [event.target for event in heard if event.action == events.BUILD_WAITING] == ["gpu"]


async def test_a_pause_lets_builds_that_run_go_on(tmp_path: Path) -> None:
    script, state, gate = Script(), State(tmp_path), Gate()
    state.prepare()
    ended: asyncio.Queue[Outcome] = asyncio.Queue()
    dispatcher = Dispatcher(
        script.build, state, jobs=1, emit=lambda event: None, gate=gate, finished=ended.put_nowait
    )
    task = asyncio.create_task(dispatcher.run())
    dispatcher.replace_waiting([order("a"), order("b")])
    await script.until_started("a")
    gate.pauses.add("asked", "by a person")
    script.end("a")
    assert (await ended.get()).result == "built"
    for _ in range(20):
        await asyncio.sleep(0)
    assert script.started == ["a"]
    gate.pauses.remove("asked")
    await script.until_started("a", "b")
    task.cancel()
    await asyncio.wait([task])
