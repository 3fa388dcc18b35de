"""A thousand nodes that start at once, in one process and on a clock of our own: what they ask is counted.

All that decides is what `preheat warm --remote` runs; see ``support/starters.py`` for what is not.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from support import fake_time
from support.starters import ENVIRONMENT, Counts, Network, Scene, Starter, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER_ENVIRONMENT = "f" * 32


def network(**how: object) -> Network:
    chance = random.Random(1)  # noqa: S311 - repeatable
    return Network(chance, **how)  # type: ignore[arg-type]


def first_holder(act: Callable[[Starter], object]) -> Callable[[Starter, str], None]:
    """Does something to the first node that begins to build."""
    begun: list[Starter] = []

    def builds_begun(starter: Starter, target: str) -> None:
        begun.append(starter)
        if len(begun) == 1:
            act(starter)

    return builds_begun


def dies(starter: Starter) -> None:
    starter.died = True


def is_one_build_each(counts: Counts, scene: Scene) -> None:
    wanted = [(target, one) for target in scene.targets for one in scene.environments]
    assert counts.builds == dict.fromkeys(wanted, 1)
    assert counts.most_object_reads <= 1


def test_a_thousand_starters_build_once_and_read_one_object_each() -> None:
    scene = Scene()
    counts = simulate(1000, scene)
    is_one_build_each(counts, scene)
    assert counts.how() == {"built": 1, "taken": 999}
    assert counts.most_objects == 1
    assert sum(counts.object_reads.values()) == 999
    # The store is not stormed: hardly any node writes, and each reads a few hundred bytes now and then.
    assert counts.writes < 50
    assert counts.most_small_reads <= 16
    assert counts.busiest_second < 500
    assert counts.finished_at < scene.build_seconds + scene.length / 4


def test_once_a_package_is_there_a_thousand_starters_read_it_and_nothing_else() -> None:
    shared = network()
    simulate(1, Scene(), shared)
    counts = simulate(1000, Scene(), shared)
    assert (counts.builds, counts.how(), counts.writes) == ({}, {"taken": 1000}, 0)
    assert (counts.most_small_reads, counts.most_objects) == (1, 1)
    edited = Scene(sources=("v2",))
    counts = simulate(100, edited, shared, seed=1)
    is_one_build_each(counts, edited)
    assert counts.how() == {"built": 1, "taken": 99}
    assert counts.most_objects == 2  # the one that did not fit, and the one that does


def test_one_build_for_each_target_and_environment_and_they_are_spread_over_the_nodes() -> None:
    scene = Scene(
        targets=("encoder", "decoder", "ranker"), environments=(ENVIRONMENT, OTHER_ENVIRONMENT)
    )
    counts = simulate(60, scene)
    is_one_build_each(counts, scene)
    assert counts.how() == {"built": 6, "taken": 174}
    # Side by side, and not one after the other: a node makes one build at a time.
    assert counts.finished_at < 2 * scene.build_seconds


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"late_seconds": 60.0},
        {"failing": 0.2},
        {"losing": 0.4},
        {"late_seconds": 60.0, "failing": 0.2, "losing": 0.2},
    ],
)
def test_clocks_that_are_wrong_and_a_store_that_shows_late_and_fails(how: dict[str, float]) -> None:
    scene = Scene(clocks="wrong")
    counts = simulate(100, scene, network(**how))
    is_one_build_each(counts, scene)
    assert counts.how() == {"built": 1, "taken": 99}


@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_can_be_created_exclusively(seed: int) -> None:
    """Several write the same lease, because they have not seen yet that it is there."""
    scene = Scene(clocks="wrong", answer_seconds=0.5)
    chance = random.Random(seed)  # noqa: S311 - repeatable
    shared = Network(chance, exclusive=False, late_seconds=1.0)
    counts = simulate(100, scene, shared, seed=seed)
    is_one_build_each(counts, scene)
    assert counts.how() == {"built": 1, "taken": 99}


@pytest.mark.parametrize(
    ("nodes", "scene", "how"),
    [
        (200, Scene(), {}),
        (100, Scene(clocks="wrong"), {"late_seconds": 60.0, "failing": 0.1}),
        (100, Scene(clocks="wrong"), {"exclusive": False}),
    ],
)
def test_a_follower_takes_over_from_a_holder_that_dies(
    nodes: int, scene: Scene, how: dict[str, float]
) -> None:
    counts = simulate(nodes, scene, network(**how), builds_begun=first_holder(dies))
    assert sum(counts.builds.values()) == 2  # that of the dead one, and one more
    assert counts.how() == {"built": 1, "taken": nodes - 2}
    assert counts.most_object_reads <= 1
    assert counts.writes < 100


def test_a_lease_that_is_lost_is_written_again_and_nobody_builds_twice() -> None:
    shared = network()

    def lose(starter: Starter) -> None:
        loop = asyncio.get_running_loop()
        for seconds in (3, 20, 40):
            loop.call_later(seconds, take_away)

    def take_away() -> None:
        for path in [one for one in shared.files if "build-leases" in one]:
            del shared.files[path]

    scene = Scene()
    is_one_build_each(simulate(60, scene, shared, builds_begun=first_holder(lose)), scene)


def test_a_holder_that_was_stopped_for_too_long_goes_on_and_is_only_wasteful() -> None:
    def stop(starter: Starter) -> None:
        starter.stopped_until = 500.0

    counts = simulate(60, Scene(), builds_begun=first_holder(stop))
    assert sum(counts.builds.values()) == 2
    assert counts.how() == {"built": 2, "taken": 58}
    assert counts.most_object_reads <= 1


def test_what_fails_is_tried_by_some_nodes_and_not_by_all() -> None:
    counts = simulate(60, Scene(fails="once"))
    assert (sum(counts.builds.values()), counts.how()) == (2, {"built": 2, "taken": 58})
    counts = simulate(60, Scene(fails="always"))
    assert (sum(counts.builds.values()), counts.how()) == (3, {"built": 3, "gave_up": 57})
    counts = simulate(60, Scene(fails="refused", once=False))
    assert (sum(counts.builds.values()), counts.how()) == (1, {"built": 1, "gave_up": 59})


def test_with_different_sources_each_is_built_once() -> None:
    counts = simulate(60, Scene(sources=("v1", "v2")))
    assert sum(counts.builds.values()) == 2
    assert counts.how() == {"built": 2, "taken": 58}


def test_nodes_that_do_not_wait() -> None:
    counts = simulate(60, Scene(when_busy="skip"))
    assert (sum(counts.builds.values()), counts.how()) == (1, {"built": 1, "left": 59})
    counts = simulate(50, Scene(when_busy="build"))
    assert (sum(counts.builds.values()), counts.how()) == (50, {"built": 50})


def test_a_store_that_never_answers_keeps_nobody_from_building() -> None:
    counts = simulate(20, Scene(), network(failing=1.0))
    assert (sum(counts.builds.values()), counts.how()) == (20, {"built": 20})
    assert counts.finished_at < 120


def test_the_fake_clock_says_when_nobody_can_go_on() -> None:
    with pytest.raises(RuntimeError, match="waits for another"):
        fake_time.run(asyncio.Event().wait())
