"""Every probing edit: never a wrong hit, rarely a needless refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.source_edits import COVERED_ELSEWHERE, Outcome, outcomes, summary

if TYPE_CHECKING:
    from pathlib import Path

MOST_OVER_EAGER = 12


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    directory: Path = tmp_path_factory.mktemp("edits")
    return outcomes(directory)


def test_no_edit_leads_to_a_wrong_hit(found: list[Outcome]) -> None:
    wrong = [(one.base, one.name) for one in found if one.word == "WRONG HIT"]
    assert wrong == [], summary(found)


def test_controls_are_hits(found: list[Outcome]) -> None:
    refused = [(one.base, one.reasons) for one in found if one.control and not one.hit]
    assert refused == []


def test_few_edits_are_refused_for_nothing(found: list[Outcome]) -> None:
    eager = [(one.base, one.name) for one in found if one.word == "over-eager"]
    assert len(eager) <= MOST_OVER_EAGER, eager


def test_reasons_say_where(found: list[Outcome]) -> None:
    for one in found:
        for reason in one.reasons:
            assert reason.file or reason.symbol, one


def test_nothing_is_excused_that_is_not_there(found: list[Outcome]) -> None:
    assert {one.name for one in found} >= set(COVERED_ELSEWHERE)
