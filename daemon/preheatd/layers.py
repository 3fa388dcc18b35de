"""The read-only layers below a store, at one moment: where its own package is not fresh, one of them may be.

A worker loads from them, so what is fresh there is not built here. Each is judged like the store itself,
and nothing is ever written, confirmed or collected there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.errors import StoreError
from preheat.store import DiskStore
from preheat.verdict import Reason, Verdict
from preheatd.packages import with_package
from preheatd.plan import package_verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from preheat.manifest import Environment
    from preheat.store.keys import Signing
    from preheatd.plan import TargetFacts


class Layers:
    """For one survey: whether a layer is there at all is looked at once, however many targets ask."""

    def __init__(self, places: Sequence[Path], signing: Signing) -> None:
        self._places = places
        self._signing = signing
        self._opened: dict[Path, DiskStore | Reason] = {}

    def looked_through(
        self,
        own: TargetFacts,
        wanted: Environment,
        with_sources: Callable[[TargetFacts], TargetFacts],
    ) -> TargetFacts:
        """``own``, or the facts about the first layer's package that is fresh where the own one is not.

        ``with_sources`` compares a package with the sources on disk. What is not to be trusted in the own
        store stays so: a layer hides nothing of it.
        """
        if not self._places or package_verdict(own)[0] not in (Verdict.STALE, Verdict.MISSING):
            return own
        plain = dataclasses.replace(
            own, manifest=None, damage=(), source_reasons=(), elsewhere=(), damages=None
        )
        troubles = []
        for place in self._places:
            found = self._in_one(place, plain, wanted, with_sources)
            if isinstance(found, Reason):
                troubles.append(found)
            elif found is not None:
                return dataclasses.replace(found, layer=str(place), layer_reasons=own.damage)
        return dataclasses.replace(own, layer_reasons=tuple(troubles))

    def troubles(self) -> tuple[Reason, ...]:
        """Which of them cannot be looked at, and why."""
        found = (self._store(place) for place in self._places)
        return tuple(one for one in found if isinstance(one, Reason))

    def _in_one(
        self,
        place: Path,
        plain: TargetFacts,
        wanted: Environment,
        with_sources: Callable[[TargetFacts], TargetFacts],
    ) -> TargetFacts | Reason | None:
        """The facts about a fresh package; a reason where a layer or its package cannot be used."""
        store = self._store(place)
        if isinstance(store, Reason):
            return store
        try:
            facts = with_package(store, plain, wanted)
        except StoreError as error:
            return _not_usable(place, str(error))
        trouble = facts.untrusted or (facts.unsigned and str(facts.unsigned))
        if trouble or facts.damage:
            return _not_usable(place, trouble or "; ".join(map(str, facts.damage)))
        facts = with_sources(facts)
        return facts if package_verdict(facts)[0] is Verdict.FRESH else None

    def _store(self, place: Path) -> DiskStore | Reason:
        if place not in self._opened:
            self._opened[place] = self._open(place)
        return self._opened[place]

    def _open(self, place: Path) -> DiskStore | Reason:
        store = DiskStore(place, signing=self._signing)
        try:
            if store.answers():
                return store
        except StoreError as error:
            return _not_usable(place, str(error))
        return Reason(kind="layer_missing", file=str(place), detail="there is no store")


def _not_usable(place: Path, why: str) -> Reason:
    return Reason(kind="layer_not_usable", file=str(place), detail=why)
