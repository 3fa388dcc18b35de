"""What one store says about the package of a target: the own store's, or a layer's. Only reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.differences import differences
from preheat.errors import (
    CorruptedError,
    OtherFormatError,
    PreheatError,
    UnsignedPackageError,
    UntrustedStoreError,
)
from preheat.verdict import Reason
from preheatd.executors.naming import stored_name

if TYPE_CHECKING:
    from preheat.manifest import Environment, Manifest
    from preheat.store import DiskStore
    from preheatd.plan import TargetFacts

# What a package that is built and signed anew puts right.
REPLACEABLE = frozenset(
    {"signature_missing", "signature_wrong", "signature_damaged", "signature_unknown_key"}
)


def with_package(store: DiskStore, facts: TargetFacts, wanted: Environment) -> TargetFacts:
    """The facts with what the store has for the target; ``wanted`` is its environment.

    Whether its sources are those on disk is not looked at. Raises ``StoreError`` for a store that cannot
    be read.
    """
    try:
        found = store.read_package(stored_name(facts.target), facts.environment)
        if found is None:
            return dataclasses.replace(facts, elsewhere=_elsewhere(store, facts, wanted))
        store.check_signed(*found)
        return dataclasses.replace(
            facts, manifest=found[1], damage=tuple(damage_of(store, found[1]))
        )
    except UnsignedPackageError as error:
        # Nothing in a manifest counts that nobody answers for.
        reason = Reason(kind=error.kind, detail=str(error))
        return dataclasses.replace(
            facts, unsigned=reason, may_replace=_may_sign(store) and error.kind in REPLACEABLE
        )
    except UntrustedStoreError as error:
        return dataclasses.replace(facts, untrusted=str(error))
    except CorruptedError as error:
        other = isinstance(error, OtherFormatError)
        kind = "other_format" if other else "package_corrupted"
        damage = (Reason(kind=kind, detail=error.message),)
        return dataclasses.replace(facts, damage=damage)


def damage_of(store: DiskStore, manifest: Manifest) -> list[Reason]:
    """What a look at names and sizes tells; the bytes are verified by whoever loads them.

    A missing source text is no damage: it keeps nothing from running.
    """
    reasons = []
    for ref in manifest.code_objects():
        problem = store.object_problem(ref)
        if problem:
            detail = f"object {ref.name} {problem}"
            reasons.append(Reason(kind="package_corrupted", detail=detail))
    return reasons


def _may_sign(store: DiskStore) -> bool:
    return store.signing is not None and store.signing.key is not None


def _elsewhere(store: DiskStore, facts: TargetFacts, wanted: Environment) -> tuple[Reason, ...]:
    """How the nearest environment that has a package of this target differs from this one."""
    candidates: list[tuple[Reason, ...]] = []
    for ref in store.refs(stored_name(facts.target)):
        try:
            other = store.read_manifest(ref.manifest)
        except PreheatError:
            continue
        candidates.append(differences("environment_differs", other.environment, wanted))
    return min(candidates, key=len, default=())
