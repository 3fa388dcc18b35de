"""Every probing edit, really built and really loaded: never a wrong answer, rarely a needless refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.freshness_table import Outcome, outcomes, refused_by_text, summary

if TYPE_CHECKING:
    from pathlib import Path

MOST_OVER_EAGER = 12
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
    assert refused == []


def test_every_program_is_built(found: list[Outcome]) -> None:
    assert {one.base: one.not_built for one in found if one.loaded is None} == {}


def test_loaded_packages_compile_nothing(found: list[Outcome]) -> None:
    assert [one.name for one in found if one.loaded and one.loaded.frames_compiled] == []


def test_few_edits_are_refused_for_nothing(found: list[Outcome]) -> None:
    for extra, most in ((False, MOST_OVER_EAGER), (True, 0)):
        eager = [(one.base, one.name) for one in found if one.word == "over-eager"]
        given = {(one.base, one.name) for one in found if one.extra is extra}
        assert len(given.intersection(eager)) <= most, eager


def test_few_unchanged_programs_are_built_again(found: list[Outcome]) -> None:
    """Other options of ``torch.compile`` and edits that break a program included."""
    given = [one for one in found if not one.extra]
    refused = [(one.base, one.name) for one in refused_by_text(given)]
    assert len(refused) <= MOST_OVER_EAGER, refused


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


def test_reasons_say_where(found: list[Outcome]) -> None:
    for one in found:
        for reason in one.decided:
            assert reason.file or reason.symbol, one
