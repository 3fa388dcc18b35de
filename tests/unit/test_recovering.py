"""Damage to packages in use: how it is found, how often it is built again, and what takes its place."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import pytest

from preheat.manifest import encode, sha256
from preheat.store.examining import earlier_first
from preheat.verdict import Reason, Verdict
from preheatd import cli, events, schedule
from preheatd.inventory import Survey
from preheatd.plan import Action, TargetFacts, decide, make_plan
from preheatd.recovering import Recovery
from preheatd.scrubbing import Scrubber, is_due
from preheatd.state import Damages, State
from support.faults import NEW, OLD, QuickFiles, opened
from support.manifests import ENVIRONMENT, manifest_of
from support.packages import proven

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.store import DiskStore

DAMAGE = (Reason(kind="package_corrupted", detail="object payload is not in the store"),)
NOW = 1_800_000_000.0


def facts(damages: Damages | None, damage: tuple[Reason, ...] = DAMAGE) -> TargetFacts:
    return TargetFacts(
        target="model", factory="app:model", environment="e", damage=damage, damages=damages
    )


def test_the_first_damage_is_built_again_at_once() -> None:
    decision = decide(facts(None), NOW)
    assert (decision.verdict, decision.action) == (Verdict.MISSING, Action.BUILD)


@pytest.mark.parametrize(("times", "seconds"), [(1, 5.0), (2, 10.0), (4, 40.0), (40, 600.0)])
def test_damage_that_comes_again_waits_longer_and_longer(times: int, seconds: float) -> None:
    known = facts(Damages(times=times, at=NOW))
    waiting = decide(known, NOW + seconds - 0.1)
    assert (waiting.action, waiting.not_before) == (Action.WAIT, NOW + seconds)
    assert waiting.reasons == DAMAGE
    assert decide(known, NOW + seconds).action is Action.BUILD
    assert decide(known, NOW + 1.0, retry=True).action is Action.BUILD  # somebody asks for it
    assert decide(known, NOW - 100.0).action is Action.BUILD  # the clock was set back
    assert schedule.again_at(Damages(times=times, at=NOW)) == NOW + seconds


def test_what_was_damaged_lately_keeps_no_other_build(tmp_path: Path) -> None:
    assert decide(facts(Damages(times=9, at=NOW), damage=()), NOW).action is Action.BUILD


def test_damages_outlive_the_process_and_are_forgotten_after_hours(tmp_path: Path) -> None:
    for times in (1, 2, 3):
        State(tmp_path).prepare()
        State(tmp_path).note_damage("model", "e", NOW + times)
        assert State(tmp_path).damages("model", "e") == Damages(times=times, at=NOW + times)
    State(tmp_path).note_damage("model", "e", NOW + 7 * 60 * 60)
    assert State(tmp_path).damages("model", "e") == Damages(times=1, at=NOW + 7 * 60 * 60)
    State(tmp_path).note_damage("model", "e", NOW)  # the clock was set back
    assert State(tmp_path).damages("model", "e") == Damages(times=1, at=NOW)
    (record,) = (tmp_path / "damages").iterdir()
    record.write_bytes(b"{")
    assert State(tmp_path).damages("model", "e") is None


def test_which_package_a_ref_goes_back_to_first() -> None:
    made = {name: proven(name.encode(), f"2026-01-0{at}") for at, name in enumerate("abcd", 1)}
    order = earlier_first(made, wanted=["b", "gone", "a"])
    assert order == (made["b"], made["a"], made["d"], made["c"])
    # One with a forked proof may have been withdrawn: then only the daemon's own record says that it was not.
    made["d"] = proven(b"d", "2026-01-04", forked=True)
    assert earlier_first(made, wanted=[]) == (made["c"], made["b"], made["a"])
    assert earlier_first(made, wanted=["d"])[0] == made["d"]


def test_when_a_file_is_read_again() -> None:
    before = ((1, 2, 3, 4), NOW)
    assert is_due(None, (1, 2, 3, 4), NOW, 60.0)
    assert not is_due(before, (1, 2, 3, 4), NOW + 60.0, 60.0)
    assert is_due(before, (1, 2, 3, 4), NOW + 61.0, 60.0)
    for changed in ((9, 2, 3, 4), (1, 9, 3, 4), (1, 2, 9, 4), (1, 2, 3, 9)):
        assert is_due(before, changed, NOW, 60.0)


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    store = opened(tmp_path / "store")
    for content, started_at in ((OLD, "2026-01-01"), (NEW, "2026-01-02")):
        store.put_object(content)
        store.publish(proven(content, started_at))
    return store


def damage(path: Path) -> None:
    """Other bytes, the same size."""
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"?" + data[1:])
    path.chmod(0o444)


async def test_packages_in_use_are_read_and_damage_is_taken_away_once(store: DiskStore) -> None:
    heard: list[events.Event] = []
    found = asyncio.Event()
    scrubber = Scrubber(Recovery.of(store, QuickFiles()), heard.append, found.set)
    manifest = proven(NEW, "2026-01-02")
    survey = Survey(
        (TargetFacts(target="model", factory="app:model", environment="e", manifest=manifest),),
        ((),),
    )
    plan = make_plan(survey.facts, NOW)
    assert plan.all_fresh
    task = asyncio.create_task(scrubber.run())
    scrubber.planned(plan, survey)
    await asyncio.sleep(0.3)
    assert (heard, found.is_set()) == ([], False)
    path = store.layout.object(sha256(NEW))
    status = path.stat()
    damage(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    scrubber.planned(plan, survey)
    async with asyncio.timeout(300):
        await found.wait()
    scrubber.planned(plan, survey)  # an old plan finds nothing more
    await asyncio.sleep(0.3)
    task.cancel()
    assert [event.action for event in heard] == [events.PACKAGE_DAMAGED]
    assert heard[0].target == "model"
    assert heard[0].is_problem
    assert not path.exists()
    assert len([one for one in store.layout.quarantine.iterdir() if one.suffix != ".note"]) == 1


def test_what_is_damaged_is_told_cheaply_and_taken_away(store: DiskStore) -> None:
    recovery = Recovery.of(store, QuickFiles())
    assert not recovery.is_damaged("model", ENVIRONMENT)
    assert not recovery.is_damaged("another", ENVIRONMENT)
    path = store.layout.object(sha256(NEW))
    path.unlink()
    path.mkdir()  # no writer could put an object there
    assert recovery.is_damaged("model", ENVIRONMENT)
    assert recovery.take_away("model", ENVIRONMENT) == (path,)
    assert recovery.take_away("model", ENVIRONMENT) == ()
    assert recovery.earlier("model", ENVIRONMENT, ()) == (
        proven(NEW, "2026-01-02"),
        proven(OLD, "2026-01-01"),
    )
    store.put_object(NEW)
    ref = store.layout.ref("model", ENVIRONMENT)
    damage(ref)
    assert recovery.is_damaged("model", ENVIRONMENT)
    assert recovery.take_away("model", ENVIRONMENT) == (ref,)
    assert not recovery.is_damaged("model", ENVIRONMENT)


def test_a_damaged_manifest_and_a_foreign_one_are_no_candidates(store: DiskStore) -> None:
    damage(store.layout.object(sha256(encode(proven(OLD, "2026-01-01")))))
    store.put_object(encode(manifest_of(NEW, target="another")))
    found = Recovery.of(store, QuickFiles()).earlier("model", ENVIRONMENT, ())
    assert found == (proven(NEW, "2026-01-02"),)


def test_the_command_works_without_a_configuration(
    store: DiskStore,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREHEAT_STORE", str(store.layout.root))
    monkeypatch.delenv("PREHEAT_STATE", raising=False)
    damage(store.layout.object(sha256(NEW)))
    assert cli.run(["fsck", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["whole"], answer["objects"], answer["refs"]) == (False, 4, 1)
    assert {one["kind"] for one in answer["findings"] if one["level"] == "problem"} == {
        "object_damaged",
        "object_missing",
    }
    assert cli.run(["fsck", "--repair"]) == 0
    text = capsys.readouterr().out
    assert "withdrawn to" in text  # without a configuration, nothing is known to fit
    assert "whole" in text.splitlines()[-1]
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "nowhere"))
    assert cli.run(["fsck", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "store"
