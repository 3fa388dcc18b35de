"""What a configuration keeps warm, as a collector needs to know it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.store.gathering import KeptWarm
from preheatd.executors.naming import stored_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preheatd.plan import TargetFacts


def kept_warm(facts: Iterable[TargetFacts]) -> KeptWarm:
    """Every target in its environment; all of a target whose interpreter does not answer."""
    packages: set[tuple[str, str]] = set()
    targets: set[str] = set()
    for one in facts:
        if one.environment:
            packages.add((stored_name(one.target), one.environment))
        else:
            targets.add(stored_name(one.target))
    return KeptWarm(frozenset(packages), frozenset(targets))
