"""Targets that somebody wants to be tried now, until their builds begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.verdict import Verdict
from preheatd import events
from preheatd.plan import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheatd.plan import Plan


class Kicks:
    """Who was kicked, and whether a build is wanted even where the package is fresh."""

    def __init__(self) -> None:
        self._asked: dict[str, bool] = {}

    @property
    def asked(self) -> Mapping[str, bool]:
        """By target; true: build it even when it is fresh."""
        return dict(self._asked)

    def add(self, targets: Iterable[str], *, rebuild: bool) -> None:
        """These are wanted, from the next plan on."""
        for name in targets:
            self._asked[name] = rebuild or self._asked.get(name, False)

    def heard(self, event: events.Event) -> None:
        """A build that begins is what was asked for."""
        if event.action == events.BUILD_STARTED and event.target:
            self._asked.pop(event.target, None)

    def planned(self, plan: Plan, used: Mapping[str, bool]) -> None:
        """A plan was made with the kicks ``used``: those that lead to no build are settled."""
        wanted = still_wanted(used, plan)
        for name in used.keys() - wanted:
            if self._asked.get(name) == used[name]:
                del self._asked[name]


def still_wanted(kicks: Mapping[str, bool], plan: Plan) -> frozenset[str]:
    """The kicked targets whose build has to come yet. Pure."""
    return frozenset(
        one.target
        for one in plan.decisions
        if one.target in kicks
        and (one.action is Action.BUILD or (kicks[one.target] and one.verdict is Verdict.BUILDING))
    )


def to_kick(plan: Plan, names: Iterable[str], *, rebuild: bool) -> tuple[str, ...]:
    """Whom to kick: the named ones; when none is named all that are not fresh, or simply all. Pure."""
    wanted = tuple(names)
    if wanted:
        return wanted
    return tuple(
        one.target for one in plan.decisions if rebuild or one.verdict is not Verdict.FRESH
    )
