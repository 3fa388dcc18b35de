"""What a node decides about a package that another node may build: pure, so every history can be made up."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from preheat.store.locks import Holder
from preheatd.flight import decision
from preheatd.flight.decision import (
    Build,
    Claim,
    GiveUp,
    GoOn,
    Known,
    Leave,
    LookAtLease,
    LookAtRef,
    Policy,
    Take,
    Wait,
    decide,
)
from preheatd.flight.lease import (
    LONGEST_SECONDS,
    MAX_LEASE_BYTES,
    BuildLease,
    decode_lease,
    encode_lease,
    lease_name,
    unknown_lease,
)

OWN, OTHERS, THIRD = "own", "other", "third"
POLICY = Policy(token=OWN, length=100.0, sources="v1")
OTHER = BuildLease(
    target="encoder",
    environment="e" * 32,
    holder=Holder(host="node17", pid=12),
    token=OTHERS,
    length=100.0,
    sources="v1",
)


def looked(ref: str | None = None, *, now: float = 0.0) -> Known:
    """What is known after the ref and the first lease were looked for."""
    return decision.saw_ref(Known(), ref, now)


def behind(lease: BuildLease, *, now: float = 0.0, policy: Policy = POLICY) -> Known:
    """What is known after this lease was found, and no later one."""
    known = decision.saw_lease(looked(), lease.term, lease, now, policy, 0.5)
    return decision.saw_lease(known, lease.term + 1, None, now, policy, 0.5)


def again(known: Known, lease: BuildLease | None, now: float, policy: Policy = POLICY) -> Known:
    assert known.lease is not None
    return decision.saw_lease(known, known.lease.term, lease, now, policy, 0.5)


def step(
    known: Known, now: float = 0.0, policy: Policy = POLICY, *, may_build: bool = True
) -> object:
    return decide(known, now, policy, may_build=may_build)


def with_(lease: BuildLease, **changes: object) -> BuildLease:
    return msgspec.structs.replace(lease, **changes)


def test_what_is_published_is_taken_before_any_lease_is_read() -> None:
    assert step(Known()) == LookAtRef()
    assert step(looked("m1")) == Take("m1")


def test_without_a_lease_this_node_becomes_the_holder_and_looks_once_more() -> None:
    known = looked()
    assert step(known) == LookAtLease(0)
    known = decision.saw_lease(known, 0, None, 1.0, POLICY, 0.5)
    assert step(known) == Claim(0)
    mine = with_(OTHER, token=OWN)
    known = decision.claimed(known, mine, 2.0, POLICY, 0.5)
    assert step(known, 2.0) == LookAtRef()  # what was published just before is not built again
    assert step(decision.saw_ref(known, None, 2.0), 2.0) == Build(mine)
    moved = decision.saw_ref(known, "m1", 2.0)
    assert (step(moved, 2.0), moved.lease) == (Take("m1"), None)


def test_a_node_whose_builds_are_all_spoken_for_waits_and_looks_again() -> None:
    known = decision.saw_lease(looked(), 0, None, 1.0, POLICY, 0.5)
    waits = step(known, 1.0, may_build=False)
    assert isinstance(waits, Wait)
    assert step(known, 1.0 + waits.seconds, may_build=False) == LookAtLease(0)


def test_a_living_holder_is_waited_for_with_one_small_read_at_a_time() -> None:
    known = decision.saw_lease(looked(), 0, OTHER, 0.0, POLICY, 0.5)
    assert step(known) == LookAtLease(1)  # whether somebody took over from it already
    known = decision.saw_lease(known, 1, None, 0.0, POLICY, 0.5)
    now = 0.0
    for renewals in range(1, 200):
        waits = step(known, now)
        assert isinstance(waits, Wait)
        now += waits.seconds
        assert step(known, now) == LookAtLease(0)
        known = again(known, with_(OTHER, renewals=renewals), now)
    assert now > 10 * OTHER.patience


def test_a_later_term_is_followed() -> None:
    known = decision.saw_lease(looked(), 0, OTHER, 0.0, POLICY, 0.5)
    later = with_(OTHER, term=1, token=THIRD)
    known = decision.saw_lease(known, 1, later, 0.0, POLICY, 0.5)
    assert step(known) == LookAtLease(2)
    assert known.lease == later


def test_a_holder_without_a_sign_of_life_is_replaced() -> None:
    known = behind(OTHER)
    known = again(known, OTHER, 99.0)
    assert isinstance(step(known, 99.0), Wait)
    known = again(known, OTHER, 100.0)
    assert step(known, 100.0) == LookAtLease(1)  # somebody may have been faster
    known = decision.saw_lease(known, 1, None, 100.0, POLICY, 0.5)
    assert step(known, 100.0) == Claim(1)


def test_a_node_that_was_suspended_looks_before_it_takes_over() -> None:
    known = again(behind(OTHER), OTHER, 10.0)
    assert step(known, 1e6) == LookAtLease(0)
    assert isinstance(step(again(known, with_(OTHER, renewals=7), 1e6), 1e6), Wait)


def test_a_lease_that_is_lost_is_waited_for_as_long_as_it_could_last() -> None:
    known = again(behind(OTHER), None, 50.0)
    assert isinstance(step(known, 50.0), Wait)
    restored = again(known, with_(OTHER, renewals=1), 60.0)
    assert isinstance(step(again(restored, None, 120.0), 120.0), Wait)
    assert step(again(known, None, 100.0), 100.0) == LookAtLease(1)


def test_one_that_cannot_be_seen_yet_is_a_holder_as_well() -> None:
    known = decision.saw_lease(looked(), 0, None, 0.0, POLICY, 0.5)
    known = decision.claimed(known, unknown_lease(with_(OTHER, token=OWN)), 0.0, POLICY, 0.5)
    assert isinstance(step(known), Wait)
    assert isinstance(step(again(known, OTHER, 60.0), 60.0), Wait)
    assert step(again(known, None, 3600.0), 3600.0) == LookAtLease(1)


def test_an_ended_build_is_followed_by_what_it_came_to() -> None:
    known = behind(OTHER)
    assert step(again(known, with_(OTHER, state="published", manifest="m1"), 5.0), 5.0) == Take(
        "m1"
    )
    abandoned = again(known, with_(OTHER, state="abandoned"), 5.0)
    assert step(abandoned, 5.0) == LookAtLease(1)


def test_what_was_published_for_other_sources_is_followed_by_the_next_build() -> None:
    known = again(behind(OTHER), with_(OTHER, state="published", manifest="m1"), 5.0)
    known = decision.does_not_fit(known, "m1")
    assert step(known, 5.0) == LookAtRef()
    known = decision.saw_ref(known, "m1", 5.0)
    assert step(known, 5.0) == LookAtLease(0)  # of those that follow m1
    # Where the ref went back to what was there before, the next term is free.
    back = decision.saw_ref(dataclasses.replace(known, lease=None), "m1", 6.0)
    assert back.newest_at is None


def test_failures_are_followed_by_other_nodes_but_not_by_all_of_them() -> None:
    known = behind(OTHER)
    for term, token in enumerate(("other", "second", "third")):
        held = with_(OTHER, term=term, token=token)
        if term:
            known = decision.saw_lease(known, term, held, 10.0 * term, POLICY, 0.5)
            known = decision.saw_lease(known, term + 1, None, 10.0 * term, POLICY, 0.5)
        failed = with_(held, state="failed", message="no room")
        known = again(known, failed, 10.0 * term + 5)
        expected = GiveUp(failed, 3) if term == 2 else LookAtLease(term + 1)
        assert step(known, 10.0 * term + 5) == expected


def test_what_is_refused_is_not_tried_by_anybody_else() -> None:
    refused = with_(OTHER, state="failed", refused=True)
    assert step(again(behind(OTHER), refused, 5.0), 5.0) == GiveUp(refused, 1)


@pytest.mark.parametrize(
    ("once", "sources", "gives_up"),
    [(True, "v1", True), (True, "v2", False), (False, "v1", False)],
)
def test_a_failure_from_before_counts_once_and_with_the_same_sources(
    once: bool, sources: str, gives_up: bool
) -> None:
    policy = dataclasses.replace(POLICY, once=once)
    refused = with_(OTHER, state="failed", refused=True, sources=sources)
    found = step(behind(refused, policy=policy), policy=policy)
    assert found == (GiveUp(refused, 1) if gives_up else Claim(1))


def test_policies_while_another_node_builds() -> None:
    known = behind(OTHER)
    assert step(known, policy=dataclasses.replace(POLICY, when_busy="skip")) == Leave(OTHER)
    goes_on = step(known, policy=dataclasses.replace(POLICY, when_busy="build"))
    assert goes_on == GoOn("process 12 on node17 builds it as well", share=True)


def test_a_store_out_of_reach_is_asked_again_and_then_not_needed() -> None:
    known, now, asked = Known(), 0.0, 0
    while not isinstance(found := step(known, now), GoOn):
        if isinstance(found, Wait):
            now += found.seconds
        else:
            asked += 1
            known = decision.troubled(known, now, POLICY, 0.5)
    assert not found.share
    assert POLICY.trouble_seconds <= now < 3 * POLICY.trouble_seconds
    assert 2 < asked < 20
    assert step(decision.saw_ref(known, None, now), now) == LookAtLease(0)  # an answer ends it


def test_one_call_that_hangs_is_not_yet_out_of_reach() -> None:
    known = decision.troubled(Known(), 60.0, POLICY, 0.5)
    assert step(known, 600.0) == LookAtRef()


def test_a_package_that_cannot_be_had_is_tried_again_and_then_built() -> None:
    known, now = looked("m1"), 0.0
    for _ in range(decision.MAX_TAKES):
        found = step(known, now)
        if isinstance(found, Wait):
            now += found.seconds
            found = step(known, now)
        assert found == Take("m1")
        known = decision.take_failed(known, "m1", now, POLICY, 0.5)
    assert step(known, now) == LookAtLease(0)


TOKENS = st.sampled_from(["own", "other", "third", ""])
LEASES = st.builds(
    BuildLease,
    target=st.just("encoder"),
    environment=st.just("e" * 32),
    term=st.integers(0, 3),
    token=TOKENS,
    renewals=st.integers(0, 3),
    length=st.floats(allow_nan=True, allow_infinity=True),
    state=st.sampled_from(["building", "published", "failed", "abandoned"]),
    manifest=st.none() | st.sampled_from(["m1", "m2"]),
    refused=st.booleans(),
    sources=st.sampled_from(["v1", "v2"]),
)
POLICIES = st.builds(
    Policy,
    token=st.just("own"),
    when_busy=st.sampled_from(["wait", "build", "skip"]),
    length=st.floats(1, 3600),
    once=st.booleans(),
    sources=st.just("v1"),
)
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["answer", "nothing", "trouble"]),
        LEASES,
        st.none() | st.sampled_from(["m1", "m2"]),
        st.floats(0, 500),
        st.floats(0, 1),
        st.booleans(),
    ),
    max_size=40,
)


def carried_out(
    known: Known, found: object, answer: tuple[object, ...], now: float, policy: Policy
) -> Known:
    """Whatever the store says next: another one's lies, gaps and times."""
    kind, lease, ref, _, chance, _ = answer
    assert isinstance(lease, BuildLease)
    assert isinstance(chance, float)
    if kind == "trouble":
        if isinstance(found, Take):
            return decision.take_failed(known, found.manifest, now, policy, chance)
        return decision.troubled(known, now, policy, chance)
    if isinstance(found, LookAtRef):
        assert ref is None or isinstance(ref, str)
        return decision.saw_ref(known, ref, now)
    if isinstance(found, LookAtLease):
        seen = None if kind == "nothing" else with_(lease, term=found.term)
        return decision.saw_lease(known, found.term, seen, now, policy, chance)
    if isinstance(found, Claim):
        return decision.claimed(known, with_(lease, term=found.term), now, policy, chance)
    assert isinstance(found, Take)
    return decision.does_not_fit(known, found.manifest)


@settings(max_examples=120, deadline=None)
@given(POLICIES, ANSWERS, st.floats(-1e9, 1e9))
def test_whatever_the_store_says_a_node_does_something_that_makes_sense(
    policy: Policy, answers: list[tuple[object, ...]], start: float
) -> None:
    known, now = Known(), start
    for answer in answers:
        found = decide(known, now, policy, may_build=bool(answer[5]))
        if isinstance(found, Build | GoOn | Leave | GiveUp):
            break
        if isinstance(found, Wait):
            assert 0 < found.seconds <= LONGEST_SECONDS
            now += found.seconds
            found = decide(known, now + 1e-6, policy, may_build=bool(answer[5]))
            now += 1e-6
            assert not isinstance(found, Wait) or found.seconds < 1e-3
            continue
        known = carried_out(known, found, answer, now, policy)
        now += float(str(answer[3]))
    found = decide(known, now, policy, may_build=True)
    if isinstance(found, Build):
        assert found.lease.token == policy.token
        assert known.ref is None or known.ref in known.unfit
        assert known.ref_at is not None
        assert known.claimed_at is not None
        assert known.ref_at >= known.claimed_at
    if isinstance(found, Take):
        assert found.manifest not in known.unfit
    if isinstance(found, Claim) and found.term and known.lease is not None:
        assert known.lease.token != policy.token
        assert known.lease.state != "building" or decision.has_expired(known)


@settings(max_examples=80, deadline=None)
@given(POLICIES, ANSWERS)
def test_nothing_depends_on_what_time_it_is(
    policy: Policy, answers: list[tuple[object, ...]]
) -> None:
    """The same history a billion seconds later: powers of two, so that differences stay exact."""
    steps: list[list[object]] = []
    for start in (0.0, 2.0**30):
        known, now, taken = Known(), start, []
        for answer in answers:
            found = decide(known, now, policy, may_build=True)
            taken.append(type(found))
            if isinstance(found, Build | GoOn | Leave | GiveUp):
                break
            if isinstance(found, Wait):
                now += math.ceil(found.seconds)
                continue
            quarter = 0.25 if float(str(answer[4])) < 0.5 else 0.75
            known = carried_out(known, found, (*answer[:4], quarter, True), now, policy)
            now += float(int(float(str(answer[3]))))
        steps.append(taken)
    assert steps[0] == steps[1]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.floats(1, 3600), st.floats(0, 1))
def test_pauses_are_bounded_and_scattered(pauses: int, length: float, chance: float) -> None:
    pause = decision.pause_seconds(pauses, length, chance)
    assert 0 < pause <= max(1.5 * length / 8, 0)
    assume(pauses)
    assert decision.pause_seconds(pauses - 1, length, chance) <= pause


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=200) | LEASES.map(lambda one: msgspec.json.encode(one)))
def test_any_bytes_are_the_lease_of_somebody(data: bytes) -> None:
    expected = with_(OTHER, token=OWN)
    lease = decode_lease(data, expected)
    assert (lease.target, lease.environment, lease.base, lease.term) == (
        expected.target,
        expected.environment,
        expected.base,
        expected.term,
    )
    assert lease.token
    assert 1 <= lease.patience <= LONGEST_SECONDS
    other = decode_lease(data + b" ", expected)
    assert lease.token == other.token or lease.token.startswith("unknown")


def test_a_lease_there_and_back() -> None:
    lease = with_(OTHER, state="failed", message="x" * 1000, manifest="m" * 64, base="b" * 64)
    assert decode_lease(encode_lease(lease), lease) == lease
    assert len(encode_lease(lease)) < MAX_LEASE_BYTES
    assert decode_lease(encode_lease(lease), with_(lease, term=1)).token.startswith("unknown")
    assert lease_name(None, 0) != lease_name("b" * 64, 0) != lease_name("b" * 64, 1)
