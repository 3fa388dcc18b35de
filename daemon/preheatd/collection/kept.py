"""What a configuration keeps warm, as a collector needs to know it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.store.gathering import KeptWarm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preheatd.plan import TargetFacts


def kept_warm(facts: Iterable[TargetFacts]) -> KeptWarm:
    """Every target in its environment; all of a target whose interpreter does not answer."""
    packages: set[tuple[str, str]] = set()
    targets: set[str] = set()
    for one in facts:
        if one.environment:
            packages.add((one.target, one.environment))
        else:
            targets.add(one.target)
    return KeptWarm(frozenset(packages), frozenset(targets))
