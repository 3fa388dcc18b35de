"""From an edit to a fresh package: which targets an edit made stale, and how long each stayed so.

Several targets may depend on one file: each has its own time, from the same first hint of the edit to
the moment when its own package is published. An edit that comes before that does not start the time
anew, so it is the whole time in which workers had no package. A failed build ends it: what comes then
is the time that a person takes. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.verdict import Verdict

if TYPE_CHECKING:
    from preheatd.plan import Decision, Plan

_LOST = (Verdict.STALE, Verdict.MISSING)
_WAITS_FOR_A_BUILD = (*_LOST, Verdict.BUILDING)


class Edits:
    """Follows hints, plans and ends of builds."""

    def __init__(self) -> None:
        self._verdicts: dict[str, Verdict] = {}
        self._edited: dict[str, float] = {}
        self._published: dict[str, float] = {}
        # Lost in the last plan, before any hint: that one comes when the burst has settled.
        self._unexplained: set[str] = set()
        self._hint: float | None = None
        self._heard = 0.0

    def changed(self, first: float, now: float) -> None:
        """Files were touched, the first of them at ``first``."""
        self._hint = first if self._hint is None else min(first, self._hint)
        self._heard = now
        for target in self._unexplained:
            self._edited.setdefault(target, first)
        self._unexplained.clear()

    def planned(self, plan: Plan, began: float) -> tuple[Decision, ...]:
        """A plan of what was found since ``began``. Returns those that were fresh and are not any more."""
        before = self._verdicts
        # What was published while the plan was made is not what the plan saw.
        decisions = [
            one for one in plan.decisions if self._published.get(one.target, began) <= began
        ]
        self._verdicts = {
            one.target: before.get(one.target, one.verdict) for one in plan.decisions
        } | {one.target: one.verdict for one in decisions}
        self._unexplained.clear()
        for one in decisions:
            if one.verdict is Verdict.FRESH:
                self._edited.pop(one.target, None)
            elif not _is_news(before.get(one.target), one.verdict):
                continue
            elif self._hint is None:
                self._unexplained.add(one.target)
            else:
                self._edited.setdefault(one.target, self._hint)
        self._edited = {name: at for name, at in self._edited.items() if name in self._verdicts}
        if began >= self._heard:
            self._hint = None
        return tuple(
            one
            for one in decisions
            if one.verdict in _LOST and before.get(one.target) is Verdict.FRESH
        )

    def published(self, target: str, now: float) -> float | None:
        """Its package is fresh: how long that took since the edit, if there was one."""
        self._verdicts[target] = Verdict.FRESH
        self._published[target] = now
        self._unexplained.discard(target)
        edited = self._edited.pop(target, None)
        return None if edited is None else now - edited

    def failed(self, target: str) -> None:
        """Its build failed; the next edit counts from its own beginning."""
        self._verdicts[target] = Verdict.FAILED
        self._unexplained.discard(target)
        self._edited.pop(target, None)


def _is_news(before: Verdict | None, now: Verdict) -> bool:
    return before in (Verdict.FRESH, Verdict.FAILED) and now in _WAITS_FOR_A_BUILD
