"""What a daemon knows of itself: answered from memory, with a thousand targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.manifest import FormProof, Proof
from preheat.store import DiskStore
from preheat.store.layout import Layout
from preheat.verdict import Verdict
from preheatd import events
from preheatd.live_view import LiveView, Seen
from preheatd.pauses import Pauses
from preheatd.plan import Action, Plan, TargetFacts, make_plan
from preheatd.project import Project
from preheatd.shown import StatusShown
from preheatd.state import Failure, State
from preheatd.store_figures import StoreFigures
from support.manifests import manifest_of

if TYPE_CHECKING:
    import pytest

PROOF = Proof(
    forms=(
        FormProof(form="dynamo", frames_compiled=0, max_error=0.0, load_seconds=0.1, modules=1),
    ),
    examples=1,
    against="eager",
    seconds=0.1,
)
FRESH = msgspec.structs.replace(manifest_of(b"code"), proof=PROOF)
COUNT = 1000


class Untouched:
    """Stands for what must not be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"`{name}` was looked at")


@dataclasses.dataclass(frozen=True)
class Config:
    file: Path
    store: Path
    jobs: int = 1


@dataclasses.dataclass(frozen=True)
class Survey:
    facts: tuple[TargetFacts, ...]


NO_STORE = StoreFigures(Layout(Path("/nowhere")))


def view_of(path: Path, facts: tuple[TargetFacts, ...]) -> LiveView:
    state = State(path / "state")
    state.prepare()
    config: Any = Config(path / "preheat.toml", path)
    untouched: Any = Untouched()
    survey: Any = Survey(facts)
    project = Project(config, untouched, state, untouched)
    view = LiveView(project, Pauses(), NO_STORE, lambda: "native")
    view.planned(Seen(project=project, survey=survey, plan=make_plan(facts, 0.0), began=1.0))
    return view


def fresh(name: str) -> TargetFacts:
    return TargetFacts(target=name, factory=FRESH.factory, environment="e", manifest=FRESH)


def failed(name: str) -> TargetFacts:
    failure = Failure(
        target=name, environment="e", kind="refused", message="No.", refused=True, tried=("s",)
    )
    return TargetFacts(
        target=name, factory="a:b", environment="e", sources_state="s", failure=failure
    )


async def test_a_thousand_targets_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tuple(fresh(f"t{number}") for number in range(COUNT))
    view = view_of(tmp_path, facts)
    first = msgspec.json.encode(await view.status_answer())
    # What was read for the first answer is not read for the second.
    monkeypatch.setattr(State, "log_tail", Untouched)
    monkeypatch.setattr("preheatd.status.of_plan", Untouched)
    view.heard(events.Event(action=events.BUILD_STARTED, target="t7", environment="e"))
    view.heard(events.Event(action=events.BUILD_PHASE, target="t7", phase="trace", detail="1 of 2"))
    shown = msgspec.json.decode(msgspec.json.encode(await view.status_answer()), type=StatusShown)
    assert len(msgspec.json.decode(first, type=StatusShown).targets) == COUNT
    assert [one.target for one in shown.targets] == [one.target for one in facts]
    assert {one.target for one in shown.targets if one.verdict is not Verdict.FRESH} == {"t7"}
    assert shown.targets[7].verdict is Verdict.BUILDING
    assert shown.daemon is not None
    (building,) = shown.daemon.building
    assert (building.phase, building.detail) == ("trace", "1 of 2")


async def test_before_the_first_plan_there_is_an_answer(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    state.prepare()
    config: Any = Config(tmp_path / "preheat.toml", tmp_path)
    untouched: Any = Untouched()
    view = LiveView(Project(config, untouched, state, untouched), Pauses(), NO_STORE)
    answer = await view.status_answer()
    assert (answer["targets"], answer["daemon"]["planned_at"]) == ([], None)
    assert view.plan == Plan()


async def test_a_failure_that_a_later_build_may_have_mended_is_pending(tmp_path: Path) -> None:
    view = view_of(tmp_path, (failed("a"), failed("b")))
    view.heard(events.Event(action=events.BUILD_STARTED, target="a"))
    assert [one.verdict for one in view.settled(["a", "b"])] == [Verdict.BUILDING, Verdict.FAILED]
    view.heard(events.Event(action=events.BUILD_PUBLISHED, target="a"))
    assert [one.action for one in view.settled(["a", "b"])] == [Action.BUILD, Action.WAIT]


async def test_events_change_the_picture(tmp_path: Path) -> None:
    view = view_of(tmp_path, ())
    for action in (events.CONFIG_REFUSED, events.CONTROL_FAILED, events.WATCH_POLLING):
        view.heard(events.Event(action=action, detail=action))
    daemon = (await view.status_answer())["daemon"]
    assert (daemon["refused"], daemon["control_trouble"]) == ("config_refused", "control_failed")
    assert daemon["watch"] == {"mode": "native", "limit": "watch_polling"}
    for action in (events.CONFIG_RELOADED, events.CONTROL_LISTENING):
        view.heard(events.Event(action=action, detail=action))
    daemon = (await view.status_answer())["daemon"]
    assert (daemon["refused"], daemon["control_trouble"]) == (None, None)


async def test_the_size_of_the_store_is_part_of_the_answer(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "store", create=True)
    view = view_of(tmp_path, ())
    view._store = StoreFigures(store.layout)
    assert (await view.status_answer())["daemon"]["store_size"]["objects"] == 0
    store.put_object(b"x" * 100)
    size = (await view.status_answer())["daemon"]["store_size"]
    assert (size["objects"], size["bytes"]) == (1, 100)
    assert size["free_bytes"] > 0
