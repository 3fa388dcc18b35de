"""Every probing edit, really built and really loaded: never a wrong answer, rarely a needless refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.freshness_table import CONTROL, Outcome, outcomes, summary

if TYPE_CHECKING:
    from pathlib import Path

MOST_OVER_EAGER = 12
# The proof finds that its dynamo form does not load, and publishes nothing.
NOT_BUILT = {"D7"}
# All of them together: one test waits for some minutes.
pytestmark = pytest.mark.timeout(3000)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> list[Outcome]:
    return outcomes(tmp_path_factory.mktemp("edits"), caches)


def test_no_loaded_package_differs_from_eager(found: list[Outcome]) -> None:
    wrong = [(one.base, one.name, one.did) for one in found if one.word.startswith("WRONG")]
    assert wrong == [], summary(found)


def test_no_worker_crashes(found: list[Outcome]) -> None:
    assert [(one.base, one.name, one.did) for one in found if one.word == "CRASH"] == []


def test_unedited_programs_are_loaded(found: list[Outcome]) -> None:
    refused = [(one.base, one.did) for one in found if one.control and one.word != "right hit"]
    unbuilt = {one.base for one in found if one.loaded is None}
    assert {base for base, _ in refused} <= unbuilt, refused


def test_only_what_is_known_for_it_is_not_built(found: list[Outcome]) -> None:
    unbuilt = {one.base: one.not_built for one in found if one.loaded is None}
    assert set(unbuilt) == NOT_BUILT, unbuilt
    assert all(why.startswith(("refused: ", "proof: ")) for why in unbuilt.values()), unbuilt


def test_loaded_packages_compile_nothing(found: list[Outcome]) -> None:
    assert [one.name for one in found if one.loaded and one.loaded.frames_compiled] == []


def test_few_edits_are_refused_for_nothing(found: list[Outcome]) -> None:
    for extra, most in ((False, MOST_OVER_EAGER), (True, 0)):
        eager = [(one.base, one.name) for one in found if one.word == "over-eager"]
        given = {(one.base, one.name) for one in found if one.extra is extra}
        assert len(given.intersection(eager)) <= most, eager


def test_an_edit_that_the_text_does_not_show_is_noticed_by_the_worker(found: list[Outcome]) -> None:
    """Settings, configuration and what the process patched: the files are the same."""
    unseen = [one for one in found if one.loaded and not one.decided and not one.loaded.hit]
    assert {one.name for one in unseen} >= {
        "another uuid",
        "a pass before",
        "deterministic algorithms on",
        "dynamo assume_static",
        "functorch functionalize_rng_ops",
        "inductor fallback_random=True",
        "num_threads 1",
        "other file, same qualname+line, different body",
        "torch monkeypatched: torch.sin = torch.cos",
    }


def test_the_text_decides_as_strictly_without_a_package(found: list[Outcome]) -> None:
    """Programs that are not built yet are decided from what ran in them."""
    unbuilt = [one for one in found if one.loaded is None]
    missed = [(one.base, one.name) for one in unbuilt if one.changes and not one.decided]
    assert missed == []
    controls = [one for one in unbuilt if one.name == CONTROL]
    assert [one.base for one in controls if one.decided] == []


def test_reasons_say_where(found: list[Outcome]) -> None:
    for one in found:
        for reason in one.decided:
            assert reason.file or reason.symbol, one
