"""The dispatcher with scripted builds: limits, superseding, failures and what is remembered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.verdict import Reason
from preheatd import events, schedule
from preheatd.config import Target
from preheatd.dispatch import Dispatcher
from preheatd.outcome import BuildRequest, Outcome
from preheatd.plan import TargetFacts
from preheatd.remembering import Order
from preheatd.state import Failure, State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Script:
    """Builds that end when and how the test says."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: dict[str, asyncio.Future[Outcome]] = {}
        self.changed = asyncio.Event()

    async def build(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        name = request.target.name
        self.started.append(name)
        self.ended[name] = asyncio.get_running_loop().create_future()
        self.changed.set()
        return await self.ended[name]

    def end(self, name: str, result: str = "built", **fields: object) -> None:
        outcome = Outcome(target=name, environment="e", result=result, **fields)  # type: ignore[arg-type]
        self.ended[name].set_result(outcome)

    async def until_started(self, *names: str) -> None:
        async with asyncio.timeout(120):
            while self.started[-len(names) :] != list(names):
                self.changed.clear()
                await self.changed.wait()


@dataclasses.dataclass
class World:
    script: Script
    state: State
    dispatcher: Dispatcher
    events: list[events.Event]
    outcomes: asyncio.Queue[Outcome]

    def actions(self) -> list[str]:
        return [event.action for event in self.events]


@contextlib.asynccontextmanager
async def world(tmp_path: Path, *, jobs: int = 1, after: str = "s") -> AsyncIterator[World]:
    script, state = Script(), State(tmp_path)
    state.prepare()
    heard: list[events.Event] = []
    outcomes: asyncio.Queue[Outcome] = asyncio.Queue()

    async def sources_state(target: str) -> str:
        return after

    dispatcher = Dispatcher(
        script.build,
        state,
        jobs=jobs,
        emit=heard.append,
        finished=outcomes.put_nowait,
        sources_state=sources_state,
    )
    task = asyncio.create_task(dispatcher.run())
    try:
        yield World(script, state, dispatcher, heard, outcomes)
    finally:
        task.cancel()
        await asyncio.wait([task])


def order(
    name: str,
    *,
    priority: int = 0,
    known: frozenset[str] = frozenset(),
    sources: dict[str, str] | None = None,
    failure: Failure | None = None,
) -> Order:
    target = Target(name=name, factory=f"a:{name}", python="p", cwd=Path("/"), priority=priority)
    return Order(
        request=BuildRequest(target=target, environment="e", device="cpu"),
        facts=facts(name, sources, failure),
        known=known,
    )


def facts(
    name: str, sources: dict[str, str] | None = None, failure: Failure | None = None
) -> TargetFacts:
    return TargetFacts(
        target=name,
        factory=f"a:{name}",
        environment="e",
        sources=sources or {"f": "1"},
        sources_state="s",
        failure=failure,
    )


def a_failure(name: str = "a") -> Failure:
    return Failure(target=name, environment="e", kind="target", message="It raised.")


async def test_one_at_a_time_in_order(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a"), order("b"), order("c", priority=1)])
        await it.script.until_started("c")
        assert it.dispatcher.running == {"c"}
        it.script.end("c")
        await it.script.until_started("c", "a")
        it.script.end("a")
        await it.script.until_started("c", "a", "b")


async def test_a_survey_from_before_the_end_of_a_build_does_not_repeat_it(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a"), order("b")])
        await it.script.until_started("a")
        seen = it.dispatcher.ends
        it.script.end("a")
        await it.outcomes.get()
        # This plan was made from facts that were read while "a" was still being built.
        it.dispatcher.replace_waiting([order("a"), order("b")], seen=seen)
        await it.script.until_started("a", "b")
        it.script.end("b")
        await it.outcomes.get()
        assert it.dispatcher.idle
        # One that was read afterwards knows how it ended, and may ask for it again.
        it.dispatcher.replace_waiting([order("a")], seen=it.dispatcher.ends)
        await it.script.until_started("a", "b", "a")
        it.script.end("a")
        await it.outcomes.get()


async def test_as_many_as_allowed(tmp_path: Path) -> None:
    async with world(tmp_path, jobs=2) as it:
        it.dispatcher.replace_waiting([order("a"), order("b"), order("c")])
        await it.script.until_started("a", "b")
        assert it.dispatcher.running == {"a", "b"}


async def test_a_new_plan_replaces_what_waits_and_leaves_what_runs(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a"), order("b")])
        await it.script.until_started("a")
        it.dispatcher.replace_waiting([order("a"), order("c")])
        it.script.end("a")
        await it.script.until_started("a", "c")
        it.script.end("c")
        await it.outcomes.get()
        await it.outcomes.get()
        assert it.dispatcher.idle
    assert it.actions().count(events.BUILD_QUEUED) == 3


async def test_an_edit_of_a_known_source_ends_the_build(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a", known=frozenset({"f"}))])
        await it.script.until_started("a")

        it.dispatcher.stop_superseded({"a": facts("a", {"f": "1", "new": "1"})})
        await asyncio.sleep(0)
        assert not it.script.ended["a"].cancelled()

        it.dispatcher.stop_superseded({"a": facts("a", {"f": "2"})})
        outcome = await it.outcomes.get()
        assert outcome.result == "superseded"
        assert it.script.ended["a"].cancelled()
        assert events.BUILD_SUPERSEDED in it.actions()
        assert it.state.failure("a", "e") is None

        it.dispatcher.replace_waiting([order("a")])
        await it.script.until_started("a", "a")


async def test_a_target_that_is_gone_is_not_built_on(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a")])
        await it.script.until_started("a")
        it.dispatcher.stop_superseded({})
        assert (await it.outcomes.get()).result == "superseded"


async def test_busily_edited_files_of_unknown_relevance_do_not_starve(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for _ in range(schedule.MAX_GUESSED_STOPS):
            it.dispatcher.replace_waiting([order("a")])
            await it.script.until_started("a")
            it.dispatcher.stop_superseded({"a": facts("a", {"f": "2"})})
            assert (await it.outcomes.get()).result == "superseded"
            it.script.started.clear()
        it.dispatcher.replace_waiting([order("a")])
        await it.script.until_started("a")
        it.dispatcher.stop_superseded({"a": facts("a", {"f": "2"})})
        it.script.end("a")
        assert (await it.outcomes.get()).result == "built"


async def test_a_failure_is_remembered_with_its_sources(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a")])
        await it.script.until_started("a")
        it.script.end("a", "failed", failure=a_failure())
        await it.outcomes.get()

        first = it.state.failure("a", "e")
        assert first is not None
        assert (first.tried, first.attempts) == (("s",), 1)

        it.dispatcher.replace_waiting([order("a", failure=first)])
        await it.script.until_started("a", "a")
        it.script.end("a", "failed", failure=a_failure())
        await it.outcomes.get()
        second = it.state.failure("a", "e")
        assert second is not None
        assert second.attempts == 2

        it.dispatcher.replace_waiting([order("a", failure=second)])
        await it.script.until_started("a", "a", "a")
        it.script.end("a")
        await it.outcomes.get()
        assert it.state.failure("a", "e") is None


async def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.dispatcher.replace_waiting([order("a"), order("b")])
        await it.script.until_started("a")
        it.script.ended["a"].set_exception(RuntimeError("a fault"))
        await it.script.until_started("a", "b")
        it.script.end("b")
        first, second = await it.outcomes.get(), await it.outcomes.get()

    assert first.failure is not None
    assert (first.failure.kind, first.failure.exit_code) == ("unexpected", 1)
    assert second.result == "built"


async def test_sources_that_every_build_changes(tmp_path: Path) -> None:
    reasons = (Reason(kind="data_changed", file="counter.txt"),)
    async with world(tmp_path) as it:
        results = []
        for _ in range(schedule.MAX_SUPERSEDED):
            it.dispatcher.replace_waiting([order("a")])
            await it.script.until_started("a")
            it.script.end("a", "superseded", reasons=reasons)
            outcome = await it.outcomes.get()
            results.append(outcome.result)
            it.script.started.clear()

    assert results == ["superseded", "superseded", "failed"]
    assert outcome.failure is not None
    assert "counter.txt" in outcome.failure.message


async def test_cancelling_ends_the_builds(tmp_path: Path) -> None:
    async with world(tmp_path, jobs=2) as it:
        it.dispatcher.replace_waiting([order("a"), order("b")])
        await it.script.until_started("a", "b")
    assert it.script.ended["a"].cancelled()
    assert it.script.ended["b"].cancelled()
    assert it.actions().count(events.BUILD_STOPPED) == 2


@pytest.mark.parametrize("names", [[], ["a", "b"]])
async def test_running_until_nothing_is_left(tmp_path: Path, names: list[str]) -> None:
    state = State(tmp_path)
    state.prepare()

    async def build(request: BuildRequest, emit: events.Emit) -> Outcome:
        return Outcome(target=request.target.name, environment="e", result="built")

    ended: list[str] = []
    dispatcher = Dispatcher(
        build,
        state,
        jobs=1,
        emit=lambda event: None,
        finished=lambda outcome: ended.append(outcome.target),
    )
    dispatcher.replace_waiting([order(name) for name in names])
    await dispatcher.run(until_idle=True)
    assert ended == names
