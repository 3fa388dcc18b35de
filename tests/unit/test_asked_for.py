"""What others ask of a daemon: kicks, pauses, rounds and waits as pure decisions and small classes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from preheat.errors import BuildError, StoreError, UntrustedStoreError
from preheat.manifest import FormProof, Proof
from preheat.verdict import Reason, Verdict
from preheatd import events, schedule
from preheatd.kicks import Kicks, still_wanted, to_kick
from preheatd.pauses import Pauses
from preheatd.plan import Action, Decision, Plan, TargetFacts, decide, make_plan
from preheatd.rounds import Rounds
from preheatd.state import Failure
from preheatd.waiting import is_over, outstanding
from support.manifests import manifest_of

FAILURE = Failure(
    target="t", environment="e", kind="target", message="It raised.", tried=("s",), at=1000.0
)
FAILED = TargetFacts(target="t", factory="a:b", environment="e", sources_state="s", failure=FAILURE)


def decision(verdict: Verdict, action: Action = Action.NONE, target: str = "t") -> Decision:
    reasons = (Reason(kind="target", detail="It raised."),)
    return Decision(target=target, environment="e", verdict=verdict, action=action, reasons=reasons)


def plan(*decisions: Decision) -> Plan:
    return Plan(decisions=decisions)


def test_a_kick_overrides_the_wait_after_a_failure_and_a_refusal() -> None:
    now = 1001.0
    assert decide(FAILED, now).action is Action.WAIT
    (kicked,) = make_plan([FAILED], now, kicks={"t": False}).decisions
    assert (kicked.verdict, kicked.action) == (Verdict.FAILED, Action.BUILD)
    (other,) = make_plan([FAILED], now, kicks={"other": True}).decisions
    assert other.action is Action.WAIT


def test_only_a_rebuild_builds_what_is_fresh() -> None:
    form = FormProof(form="dynamo", frames_compiled=0, max_error=0.0, load_seconds=0.1, modules=1)
    proof = Proof(forms=(form,), examples=1, against="eager", seconds=0.1)
    made = msgspec.structs.replace(manifest_of(b"code"), proof=proof)
    facts = TargetFacts(target=made.target, factory=made.factory, environment="e", manifest=made)
    plain = decide(facts, 0.0, retry=True)
    assert (plain.verdict, plain.action) == (Verdict.FRESH, Action.NONE)
    rebuilt = decide(facts, 0.0, retry=True, rebuild=True)
    assert (rebuilt.verdict, rebuilt.action) == (Verdict.FRESH, Action.BUILD)
    assert rebuilt.reasons[0].kind == "rebuild_asked"


def test_who_is_kicked() -> None:
    made = plan(
        decision(Verdict.FRESH, target="a"),
        decision(Verdict.FAILED, target="b"),
        decision(Verdict.STALE, target="c"),
    )
    assert to_kick(made, (), rebuild=False) == ("b", "c")
    assert to_kick(made, (), rebuild=True) == ("a", "b", "c")
    assert to_kick(made, ("a",), rebuild=False) == ("a",)


def test_a_kick_lasts_until_its_build_begins_or_nothing_follows_from_it() -> None:
    kicks = Kicks()
    kicks.add(["t"], rebuild=False)
    kicks.add(["gone", "fresh"], rebuild=False)
    used = kicks.asked
    kicks.planned(
        plan(decision(Verdict.FAILED, Action.BUILD), decision(Verdict.FRESH, target="fresh")), used
    )
    assert kicks.asked == {"t": False}
    kicks.heard(events.Event(action=events.BUILD_QUEUED, target="t"))
    assert kicks.asked == {"t": False}
    kicks.heard(events.Event(action=events.BUILD_STARTED, target="t"))
    assert kicks.asked == {}


def test_a_kick_that_came_during_a_plan_is_not_settled_by_it() -> None:
    kicks = Kicks()
    kicks.add(["t"], rebuild=False)
    used = kicks.asked
    kicks.add(["t"], rebuild=True)
    kicks.planned(plan(decision(Verdict.FRESH)), used)
    assert kicks.asked == {"t": True}


def test_a_rebuild_of_what_is_building_comes_after_it() -> None:
    building = plan(decision(Verdict.BUILDING, Action.WAIT))
    assert still_wanted({"t": True}, building) == {"t"}
    assert still_wanted({"t": False}, building) == frozenset()


# --- pauses ------------------------------------------------------------------------------------


def test_reasons_to_pause_are_apart_from_each_other() -> None:
    heard: list[str] = []
    pauses = Pauses(lambda reason, begins: heard.append(str(pauses)))
    assert not pauses
    assert pauses.add("asked", "the demo")
    assert not pauses.add("asked", "the demo")
    assert pauses.add("battery")
    assert str(pauses) == "asked (the demo), battery"
    assert pauses.remove("asked")
    assert not pauses.remove("asked")
    assert [one.reason for one in pauses.current] == ["battery"]
    assert pauses.remove("battery")
    assert not pauses
    assert heard == ["asked (the demo)", "asked (the demo), battery", "battery", ""]


def test_a_reason_may_change_its_words_and_keeps_its_beginning() -> None:
    pauses = Pauses()
    pauses.add("load", "9.0")
    (before,) = pauses.current
    assert not pauses.add("load", "7.5")
    (after,) = pauses.current
    assert (after.since, after.detail) == (before.since, "7.5")


# --- rounds ------------------------------------------------------------------------------------


async def test_a_round_that_runs_already_is_too_old() -> None:
    asked: list[str] = []
    rounds = Rounds(lambda: asked.append("asked"))
    rounds.begin()
    waiting = asyncio.create_task(rounds.after_now())
    await asyncio.sleep(0)
    assert asked == ["asked"]
    rounds.end()
    await asyncio.sleep(0)
    assert not waiting.done()
    rounds.begin()
    rounds.end()
    await waiting


async def test_a_round_that_fails_is_told() -> None:
    rounds = Rounds(lambda: None)
    waiting = asyncio.create_task(rounds.after_now(ask=False))
    await asyncio.sleep(0)
    rounds.begin()
    rounds.end(StoreError("the disk is away"))
    with pytest.raises(StoreError, match="away"):
        await waiting


async def test_who_goes_away_is_forgotten() -> None:
    rounds = Rounds(lambda: None)
    waiting = asyncio.create_task(rounds.after_now())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert rounds._waiting == {}


# --- waits -------------------------------------------------------------------------------------


def test_a_wait_is_over_when_all_are_fresh() -> None:
    fresh = decision(Verdict.FRESH)
    assert is_over([fresh])
    for verdict, action in (
        (Verdict.STALE, Action.BUILD),
        (Verdict.MISSING, Action.BUILD),
        (Verdict.BUILDING, Action.WAIT),
        (Verdict.FAILED, Action.BUILD),
        (Verdict.FRESH, Action.BUILD),
    ):
        other = decision(verdict, action, "other")
        assert not is_over([fresh, other])
        assert outstanding([fresh, other]) == f"other is {verdict}"


def test_a_wait_for_what_will_not_come_ends() -> None:
    with pytest.raises(BuildError, match="t failed: It raised"):
        is_over([decision(Verdict.STALE, Action.BUILD, "a"), decision(Verdict.FAILED, Action.WAIT)])
    with pytest.raises(UntrustedStoreError):
        is_over([decision(Verdict.UNTRUSTED)])


# --- when to look again ------------------------------------------------------------------------


def test_when_to_look_again() -> None:
    assert schedule.seconds_to_next(plan(), (), 0.0, 60.0) == 60.0
    building = plan(decision(Verdict.BUILDING, Action.WAIT))
    assert schedule.seconds_to_next(building, {"t"}, 0.0, 60.0) == 60.0
    assert schedule.seconds_to_next(building, (), 0.0, 60.0) == schedule.HELD_RETRY_SECONDS
    due = plan(
        Decision(
            target="t", environment="e", verdict=Verdict.FAILED, action=Action.WAIT, not_before=5.0
        )
    )
    assert schedule.seconds_to_next(due, (), 2.0, 60.0) == 3.0
    assert schedule.seconds_to_next(due, (), 9.0, 60.0) == schedule.MIN_PAUSE_SECONDS
    waits = [schedule.held_seconds(times) for times in (0, 1, 2, 50)]
    assert waits == [2.0, 4.0, 8.0, schedule.HELD_LONGEST_SECONDS]
