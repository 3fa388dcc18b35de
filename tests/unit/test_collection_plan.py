"""The policy of collection: what goes, in which order, why, and what must never go."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.store.collection import (
    DAY_SECONDS,
    REASONS,
    Contents,
    Limits,
    Rules,
    StoredObject,
    StoredPackage,
    amount,
    duration,
)
from preheat.store.collection_plan import plan_collection

if TYPE_CHECKING:
    from preheat.store.collection import CollectionPlan, Hold

NOW = 1_000 * DAY_SECONDS
OLD = NOW - 10 * DAY_SECONDS


def package(
    name: str,
    *names: str,
    target: str = "model",
    environment: str = "here",
    days: float = 10.0,
    generation: int | None = 1,
    hold: Hold | None = None,
    vanished: bool = False,
) -> StoredPackage:
    return StoredPackage(
        manifest=name,
        target=target,
        environment=environment,
        names=(name, *names),
        last_used=NOW - days * DAY_SECONDS,
        generation=generation,
        hold=hold,
        vanished=vanished,
    )


def plan(
    packages: list[StoredPackage],
    rules: Rules = Rules(),  # noqa: B008 - frozen
    *,
    young: tuple[str, ...] = (),
    orphans: tuple[str, ...] = (),
    size: int = 100,
) -> CollectionPlan:
    names = {name for one in packages for name in one.names} | set(orphans)
    objects = {name: StoredObject(size, NOW if name in young else OLD) for name in sorted(names)}
    return plan_collection(Contents(objects, tuple(packages)), rules, NOW)


def gone(made: CollectionPlan) -> list[tuple[str, str]]:
    return [(one.digest, one.reason) for one in made.deletions]


def test_what_is_current_and_without_a_limit_stays() -> None:
    assert gone(plan([package("a", "x"), package("b", "x", environment="there", days=900)])) == []


def test_an_object_that_nothing_names_goes_after_the_grace() -> None:
    made = plan([package("a", "x")], orphans=("lost", "new"), young=("new",))
    assert gone(made) == [("lost", "unreferenced")]
    assert made.deletions[0].why == "no package names it, and it came 10 days ago"
    assert (made.bytes_before, made.bytes_after) == (400, 300)


def test_an_orphan_goes_also_with_a_limit_on_the_size() -> None:
    rules = Rules(store=Limits(max_bytes=250))
    made = plan([package("a", "x")], rules, orphans=("lost",))
    assert gone(made) == [("lost", "unreferenced")]
    assert made.shortfalls == ()


def test_earlier_generations_beyond_those_that_are_kept_go() -> None:
    packages = [
        package("now", "x"),
        *(package(f"before{days}", "x", days=days, generation=None) for days in (3, 1, 2)),
        package("elsewhere", "x", days=9, generation=None, environment="there"),
    ]
    made = plan(packages, Rules(keep_generations=1))
    assert gone(made) == [("before3", "superseded"), ("before2", "superseded")]


def test_packages_of_vanished_environments_go_when_nobody_has_used_them_for_long() -> None:
    packages = [
        package("long", "x", days=31, vanished=True),
        package("lately", "x", days=29, vanished=True, environment="there"),
        package("here", "x", days=900),
    ]
    assert gone(plan(packages)) == [("long", "environment_vanished")]
    assert gone(plan(packages, Rules(vanished_seconds=None))) == []


def test_an_age_limit() -> None:
    packages = [package("a", days=5), package("b", days=50), package("c", days=50, hold="leased")]
    for limits in (
        {"store": Limits(max_age_seconds=30 * DAY_SECONDS)},
        {"target": Limits(max_age_seconds=30 * DAY_SECONDS)},
    ):
        made = plan(packages, Rules(**limits))
        assert gone(made) == [("b", "unused")]
        assert made.deletions[0].why == "not used for 50 days, and the limit is 30 days"


def test_a_size_limit_takes_generations_first_then_vanished_then_the_least_recently_used() -> None:
    packages = [
        package("used long ago", target="one", days=20),
        package("used lately", target="two", days=2),
        package("vanished", target="three", days=3, vanished=True),
        package("earlier", target="four", days=2, generation=None),
    ]
    for limit, expected in ((300, 1), (200, 2), (100, 3), (0, 4)):
        made = plan(packages, Rules(store=Limits(max_bytes=limit)))
        order = ["earlier", "vanished", "used long ago", "used lately"]
        assert gone(made) == [(name, "store_size") for name in order[:expected]]
    made = plan(packages, Rules(store=Limits(max_objects=3)))
    assert gone(made) == [("earlier", "store_objects")]


def test_the_limits_of_a_target_concern_it_alone() -> None:
    packages = [
        package("large now", "x", "y", target="large"),
        package("large before", "x", "z", target="large", generation=None, days=3),
        package("small", "x", target="small", days=900),
    ]
    made = plan(packages, Rules(target=Limits(max_bytes=300)))
    assert gone(made) == [("large before", "target_size")]
    assert made.deletions[0].objects == ("z",)  # x is named by others
    made = plan(packages, Rules(target=Limits(max_objects=3)))
    assert gone(made) == [("large before", "target_objects")]


def test_what_stays_over_its_limit_says_why() -> None:
    packages = [
        package("loaded", "x", hold="leased"),
        package("wanted", "x", hold="kept_warm", target="two"),
        package("new", "x", target="three"),
        package("free", target="four"),
    ]
    made = plan(packages, Rules(store=Limits(max_bytes=150)), young=("new",))
    assert gone(made) == [("free", "store_size")]
    (short,) = made.shortfalls
    assert (short.limit, short.allowed, short.remaining) == ("store_size", 150, 400)
    assert {one.reason: one.packages for one in short.held} == {
        "grace": 1,
        "kept_warm": 1,
        "leased": 1,
    }
    assert str(short) == (
        "The store keeps 400 B, and its limit is 150 B. "
        "1 package (200 B): it is younger than the grace. "
        "1 package (200 B): this configuration keeps it warm. "
        "1 package (200 B): a process has it loaded."
    )


def test_objects_that_no_package_names_yet_are_a_reason_too() -> None:
    made = plan([], Rules(store=Limits(max_bytes=0)), orphans=("new",), young=("new",))
    assert str(made.shortfalls[0]) == (
        "The store keeps 100 B, and its limit is 0 B. "
        "Objects (100 B): no package names them yet, and they are younger than the grace."
    )


def test_an_object_that_was_touched_a_moment_ago_outlives_its_package() -> None:
    made = plan([package("a", "x", "y")], Rules(store=Limits(max_bytes=0)), young=("x",))
    assert made.deletions[0].objects == ("y",)
    assert made.bytes_after == 100
    assert made.shortfalls != ()


def test_texts_for_people() -> None:
    assert [amount(size) for size in (0, 1023, 1536, 200 * 1024**2)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "200 MiB",
    ]
    assert [duration(one) for one in (-5, 1, 90, 7200, 30 * DAY_SECONDS)] == [
        "0 seconds",
        "1 second",
        "2 minutes",
        "2 hours",
        "30 days",
    ]


# every store and every set of rules

NAMES = st.sampled_from([f"object {number}" for number in range(8)])


@st.composite
def stores(draw: st.DrawFn) -> Contents:
    count = draw(st.integers(0, 12))
    packages = [
        package(
            f"manifest {number}",
            *draw(st.lists(NAMES, max_size=4)),
            target=draw(st.sampled_from(["one", "two"])),
            environment=draw(st.sampled_from(["here", "there"])),
            days=draw(st.integers(-1, 60)),
            generation=draw(st.sampled_from([None, 1])),
            hold=draw(st.sampled_from([None, None, "leased", "kept_warm", "unreadable"])),
            vanished=draw(st.booleans()),
        )
        for number in range(count)
    ]
    names = {name for one in packages for name in one.names} | set(draw(st.sets(NAMES)))
    ages = st.floats(-1e6, 1e6, allow_nan=False)
    objects = {
        name: StoredObject(draw(st.integers(0, 1000)), NOW - draw(ages)) for name in sorted(names)
    }
    for name in draw(st.sets(NAMES)):
        objects.pop(name, None)  # damaged: named and not there
    return Contents(objects, tuple(packages))


LIMITS = st.builds(
    Limits,
    max_bytes=st.none() | st.integers(0, 5000),
    max_objects=st.none() | st.integers(0, 20),
    max_age_seconds=st.none() | st.floats(0, 60 * DAY_SECONDS),
)
RULES = st.builds(
    Rules,
    store=LIMITS,
    target=LIMITS,
    keep_generations=st.integers(0, 3),
    vanished_seconds=st.none() | st.floats(0, 60 * DAY_SECONDS),
    grace_seconds=st.floats(0, 2 * DAY_SECONDS),
)


@given(stores(), RULES)
def test_what_must_stay_stays(contents: Contents, rules: Rules) -> None:
    made = plan_collection(contents, rules, NOW)
    deleted = [one.digest for one in made.deletions]
    unlinked = [*deleted, *(name for one in made.deletions for name in one.objects)]
    assert len(unlinked) == len(set(unlinked))
    by_name = {one.manifest: one for one in contents.packages}
    for digest in unlinked:
        assert NOW - contents.objects[digest].changed >= rules.grace_seconds
    assert all(by_name[one].hold is None for one in deleted if one in by_name)
    for one in contents.packages:
        if one.manifest not in deleted:  # nothing that it names is missing
            assert not set(one.names) & set(unlinked)
    assert {one.reason for one in made.deletions} <= set(REASONS)
    assert all(one.why for one in made.deletions)


@given(stores(), RULES)
def test_limits_are_met_or_it_is_said_why_not(contents: Contents, rules: Rules) -> None:
    made = plan_collection(contents, rules, NOW)
    unlinked = {one.digest for one in made.deletions} | {
        name for one in made.deletions for name in one.objects
    }
    left = {name: one for name, one in contents.objects.items() if name not in unlinked}
    assert made.objects_after == len(left)
    assert made.bytes_after == sum(one.size for one in left.values())
    short = {(one.limit, one.target) for one in made.shortfalls}
    store = rules.store
    assert (
        store.max_bytes is None
        or made.bytes_after <= store.max_bytes
        or ("store_size", None) in short
    )
    assert (
        store.max_objects is None
        or len(left) <= store.max_objects
        or ("store_objects", None) in short
    )
    for target in {one.target for one in contents.packages}:
        names = {
            name
            for one in contents.packages
            if one.target == target and one.manifest in left
            for name in one.names
            if name in left
        }
        size = sum(left[name].size for name in names)
        limit = rules.target.max_bytes
        assert limit is None or size <= limit or ("target_size", target) in short
    for one in made.shortfalls:
        over = one.remaining - one.allowed
        assert over > 0
        if one.limit.endswith("_size"):  # what is said to be kept explains all that remains
            assert sum(held.bytes for held in one.held) >= one.remaining
    # Whoever falls short has let everything go that may go.
    kept = [one for one in contents.packages if one.manifest in left]
    if any(one.target is None for one in made.shortfalls):
        for one in kept:
            own = contents.objects[one.manifest]
            assert one.hold or NOW - own.changed < rules.grace_seconds


@given(stores(), RULES, st.randoms())
def test_the_same_store_gives_the_same_plan(
    contents: Contents, rules: Rules, chance: object
) -> None:
    packages = list(contents.packages)
    chance.shuffle(packages)  # type: ignore[attr-defined]
    shuffled = Contents(dict(reversed(contents.objects.items())), tuple(packages))
    assert plan_collection(shuffled, rules, NOW) == plan_collection(contents, rules, NOW)


@given(stores(), RULES)
def test_after_a_collection_nothing_is_left_to_do(contents: Contents, rules: Rules) -> None:
    made = plan_collection(contents, rules, NOW)
    deleted = {one.digest for one in made.deletions}
    unlinked = deleted | {name for one in made.deletions for name in one.objects}
    left = Contents(
        {name: one for name, one in contents.objects.items() if name not in unlinked},
        tuple(one for one in contents.packages if one.manifest not in deleted),
    )
    again = plan_collection(left, dataclasses.replace(rules), NOW)
    assert again.deletions == ()
    assert again.shortfalls == made.shortfalls


@pytest.mark.parametrize("reason", REASONS)
def test_reasons_are_stable_words(reason: str) -> None:
    assert reason.replace("_", "").isalpha()
