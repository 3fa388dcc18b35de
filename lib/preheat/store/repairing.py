"""What to do about findings, and in which order: findings become repairs. Pure; ``mending`` acts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.manifest import environment_digest
from preheat.store.examining import earlier_first, whole_objects
from preheat.store.facts import Repair

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from preheat.manifest import Digest, Manifest
    from preheat.store.facts import Finding, StoreFacts

# What others need comes first: no file can be moved without directories; an object that is moved to its place
# or away from it decides which packages are whole.
_ORDER = (
    Repair.MAKE_DIRECTORY,
    Repair.WRITE,
    Repair.SWEEP,
    Repair.MOVE,
    Repair.QUARANTINE,
    Repair.SET_MODE,
    Repair.RECOVER_REF,
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One repair. ``earlier``: the packages that a ref may go back to, the most wanted first."""

    finding: Finding
    earlier: tuple[Manifest, ...] = ()


def steps(
    facts: StoreFacts, findings: Iterable[Finding], wanted: Sequence[Digest] = ()
) -> tuple[Step, ...]:
    """The repairs in their order. ``wanted``: manifests that were published before, the last one first."""
    repairable = [one for one in findings if one.repair is not Repair.NONE]
    repairable.sort(key=lambda one: _ORDER.index(one.repair))
    return tuple(Step(one, _earlier(facts, one, wanted)) for one in repairable)


def _earlier(facts: StoreFacts, finding: Finding, wanted: Sequence[Digest]) -> tuple[Manifest, ...]:
    if finding.repair is not Repair.RECOVER_REF:
        return ()
    return earlier_packages(facts, facts.layout.root / finding.place, wanted)


def earlier_packages(
    facts: StoreFacts, ref: Path, wanted: Sequence[Digest] = ()
) -> tuple[Manifest, ...]:
    """The packages of the ref at this path that are whole and proven.

    First those in ``wanted``, in that order; then the last built. Whether one fits today's sources is
    for the caller to say.
    """
    sizes = whole_objects(facts)
    found: dict[Digest, Manifest] = {}
    for fact in facts.objects:
        manifest = fact.package.manifest if fact.package else None
        if manifest is None or fact.digest not in sizes or not manifest.is_proven():
            continue
        place = facts.layout.ref(manifest.target, environment_digest(manifest.environment))
        if place == ref and all(
            sizes.get(needed.sha256) == needed.size for needed in manifest.objects()
        ):
            found[fact.digest] = manifest
    return earlier_first(found, wanted)
