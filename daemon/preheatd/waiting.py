"""When a wait for targets is over, and how. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.errors import BuildError, UntrustedStoreError
from preheat.verdict import Verdict
from preheatd.plan import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preheat.errors import PreheatError
    from preheatd.plan import Decision


def is_over(decisions: Iterable[Decision]) -> bool:
    """Whether every target is fresh. Raises what makes one of them never fresh by waiting alone.

    ``BuildError`` for a target that failed, also where it is tried again later; ``UntrustedStoreError``
    for a store that somebody else could have changed.
    """
    decisions = tuple(decisions)
    for decision in decisions:
        trouble = trouble_of(decision)
        if trouble is not None:
            raise trouble
    return all(_is_settled(decision) for decision in decisions)


def trouble_of(decision: Decision) -> PreheatError | None:
    """Why a target will not become fresh unless somebody does something; None: it may."""
    reason = next(iter(decision.reasons), None)
    why = "no reason is known" if reason is None else reason.detail or str(reason)
    if decision.verdict is Verdict.UNTRUSTED and decision.action is Action.NONE:
        return UntrustedStoreError(f"{decision.target}: {why}")
    # One that failed and is about to be tried again is on its way.
    if decision.verdict is Verdict.FAILED and decision.action is not Action.BUILD:
        return BuildError(
            f"{decision.target} failed: {why}",
            remedy="`preheat status` shows the end of its log; `preheat kick` tries it again.",
        )
    return None


def outstanding(decisions: Iterable[Decision]) -> str:
    """Which targets are not fresh yet, in words."""
    return ", ".join(f"{one.target} is {one.verdict}" for one in decisions if not _is_settled(one))


def _is_settled(decision: Decision) -> bool:
    # A fresh one that is to be built all the same has its build to come.
    return decision.verdict is Verdict.FRESH and decision.action is not Action.BUILD
