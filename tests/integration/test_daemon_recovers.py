"""What the daemon does about a damaged package, with a double of the interpreter that builds at once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from test_daemon_builds import ENVIRONMENT, build, project_at

from preheat.manifest import Form, ObjectRef
from preheat.verdict import Verdict
from preheatd.plan import Action, make_plan
from preheatd.remembering import Memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheat.manifest import Manifest
    from preheatd import events
    from preheatd.plan import Decision
    from preheatd.project import Project


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def truncated(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


WAYS: list[Callable[[Path], object]] = [truncated, directory, lambda path: path.unlink()]


def current(project: Project) -> Manifest:
    package = project.store.read_package("encoder", ENVIRONMENT)
    assert package is not None
    for needed in package[1].objects():
        project.store.open_object(needed).close()
    return package[1]


def code_of(project: Project, manifest: Manifest) -> Path:
    return project.store.layout.object(manifest.code_objects()[0].sha256)


def quarantined(project: Project) -> list[Path]:
    place = project.store.layout.quarantine
    return [path for path in place.iterdir() if path.suffix != ".note"]


def publish_another(project: Project, earlier: Manifest) -> Manifest:
    """A later package of the same sources, with other code."""
    digest, size = project.store.put_object(b"compiled otherwise")
    form = Form(
        kind="dynamo",
        format=earlier.forms[0].format,
        objects=(ObjectRef(name="code", sha256=digest, size=size),),
    )
    later = msgspec.structs.replace(earlier, forms=(form,))
    project.store.publish(later)
    return later


@pytest.mark.parametrize("damage", WAYS, ids=["truncated", "directory", "gone"])
async def test_an_earlier_package_takes_the_place_of_a_damaged_one_without_a_build(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    project = project_at(tmp_path)
    earlier = (await build(project)).manifest
    assert earlier is not None
    later = publish_another(project, earlier)
    for record in (project.state.path / "published").iterdir():
        record.unlink()  # a daemon that remembers nothing: the store has it all
    damage(code_of(project, later))
    heard: list[events.Event] = []
    outcome = await build(project, heard)
    assert (outcome.result, outcome.returned) == ("built", True)
    assert heard == []  # no process ran
    assert current(project) == earlier
    (kept,) = quarantined(project) or (None,)
    if damage is WAYS[-1]:
        assert kept is None
    else:
        assert kept is not None
        assert kept.name.startswith(code_of(project, later).name)


async def test_an_earlier_package_of_other_sources_does_not(tmp_path: Path) -> None:
    project = project_at(tmp_path)
    earlier = (await build(project)).manifest
    assert earlier is not None
    source = tmp_path / "project" / earlier.sources.modules[0].path
    source.write_text("def encoder():\n    return 2\n")
    second = await build(project)
    assert not second.returned
    assert second.manifest is not None
    assert current(project) != earlier
    project.store.layout.ref("encoder", ENVIRONMENT).chmod(0o644)
    project.store.layout.ref("encoder", ENVIRONMENT).write_bytes(b"{")
    third = await build(project)
    assert third.returned  # the ref was all that was damaged
    assert current(project) == second.manifest
    assert len(quarantined(project)) == 1


@pytest.mark.parametrize("damage", WAYS, ids=["truncated", "directory", "gone"])
async def test_without_an_earlier_one_it_is_built_once(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    project = project_at(tmp_path)
    first = (await build(project)).manifest
    assert first is not None
    damage(code_of(project, first))
    outcome = await build(project)
    assert (outcome.result, outcome.returned) == ("built", False)
    current(project)
    assert (await decided(project)).verdict is Verdict.FRESH


async def decided(project: Project) -> Decision:
    survey = await project.inventory.survey(project.config)
    (decision,) = make_plan(survey.facts, time.time()).decisions
    return decision


async def test_damage_that_comes_again_at_once_waits_also_for_the_next_daemon(
    tmp_path: Path,
) -> None:
    project = project_at(tmp_path)
    first = (await build(project)).manifest
    assert first is not None
    for times in (1, 2):
        truncated(code_of(project, first))
        survey = await project.inventory.survey(project.config)
        plan = make_plan(survey.facts, time.time() + 3600.0 * (times - 1))
        (order,) = project.orders(survey, plan.to_build())
        # Each time another process: nothing but the state directory knows of the time before.
        await Memory(project.state, lambda event: None).remember(order, await build(project))
        known = await asyncio.to_thread(project.state.damages, "encoder", ENVIRONMENT)
        assert known is not None
        assert known.times == times
    truncated(code_of(project, first))
    decision = await decided(project)
    assert (decision.verdict, decision.action) == (Verdict.MISSING, Action.WAIT)
    assert decision.not_before is not None
    assert decision.not_before > time.time()
    assert [reason.kind for reason in decision.reasons] == ["package_corrupted"]
