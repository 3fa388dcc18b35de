"""What is wrong with a store: facts become findings. Pure; whoever reads the facts is ``inspecting``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.manifest import environment_digest
from preheat.store.facts import Finding, Repair
from preheat.store.layout import CACHEDIR_TAG_TEXT, FORMAT_TEXT, is_digest
from preheat.store.trust import objection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from preheat.manifest import Digest, Manifest, Ref
    from preheat.store.facts import (
        Level,
        ObjectFact,
        Package,
        RefFact,
        StoreFacts,
    )

# Modes that are as they should be, in the eyes of readers that are other users.
OBJECT_MODE = 0o444


def examine(facts: StoreFacts) -> tuple[Finding, ...]:
    """Everything that is to be said about a store, what is worst first."""
    sizes = whole_objects(facts)
    packages = {
        fact.digest: fact.package for fact in facts.objects if fact.digest in sizes and fact.package
    }
    found = [
        *_about_trust(facts),
        *_about_founding(facts),
        *(one for fact in facts.objects for one in about_object(facts, fact)),
        *(one for fact in facts.refs for one in _about_ref(facts, fact, sizes, packages)),
        *_about_signatures(facts, sizes),
        *_about_orphans(facts, sizes, packages),
        *_about_the_rest(facts),
    ]
    return tuple(sorted(found, key=lambda one: one.level == "note"))


def whole_objects(facts: StoreFacts) -> dict[str, int]:
    """The objects that can be used where they are, with their sizes."""
    return {
        fact.digest: fact.entry.status.st_size
        for fact in facts.objects
        if not about_object(facts, fact)
    }


def _about_trust(facts: StoreFacts) -> Iterator[Finding]:
    for place, message, remedy in facts.untrusted:
        yield Finding(kind="untrusted", level="problem", place=place, detail=message, fix=remedy)
    for path, trouble in facts.unreadable:
        yield _finding(
            facts, "unreadable", path, f"cannot be read: {trouble}", "Check its owner and mode."
        )


def _about_founding(facts: StoreFacts) -> Iterator[Finding]:
    layout = facts.layout
    if facts.format is None:
        detail = "is missing: workers take this store for an empty one"
        yield _finding(facts, "format_missing", layout.format_file, detail, repair=Repair.WRITE)
    elif facts.format != FORMAT_TEXT:
        detail = f"is damaged: {len(facts.format)} bytes that no version of preheat wrote"
        yield _finding(facts, "format_damaged", layout.format_file, detail, repair=Repair.WRITE)
    if facts.tag != CACHEDIR_TAG_TEXT:
        detail = "is missing" if facts.tag is None else "is damaged"
        detail += ": backup programs will copy the store"
        place = layout.cachedir_tag
        yield _finding(facts, "tag_missing", place, detail, level="note", repair=Repair.WRITE)
    for path, kind in facts.obstacles:
        detail = f"is a {kind} in the place of a directory: nothing can be written there"
        yield _finding(facts, "not_a_directory", path, detail, repair=Repair.QUARANTINE)
    for path in facts.missing:
        detail = "is missing: nothing can be written without it"
        yield _finding(facts, "directory_missing", path, detail, repair=Repair.MAKE_DIRECTORY)


def about_object(facts: StoreFacts, fact: ObjectFact) -> tuple[Finding, ...]:
    """What is wrong with one object by itself; nothing for one that can be used where it is."""
    entry, layout = fact.entry, facts.layout
    name = entry.path.name
    if entry.kind != "file":
        detail = f"is a {entry.kind} in the place of an object"
        return (_finding(facts, "not_a_file", entry.path, detail, repair=Repair.QUARANTINE),)
    if entry.trouble:
        detail = f"cannot be read: {entry.trouble}"
        return (_finding(facts, "object_unreadable", entry.path, detail, "Check its owner."),)
    if fact.digest != name:
        detail = (
            f"is damaged: its {entry.status.st_size} bytes do not have the digest that names it"
        )
        return (_finding(facts, "object_damaged", entry.path, detail, repair=Repair.QUARANTINE),)
    objected = objection(entry.path, entry.status, facts.owners)
    if objected is not None:
        detail = f"could have been changed by somebody else: {objected.message}"
        return (_finding(facts, "object_untrusted", entry.path, detail, repair=Repair.QUARANTINE),)
    if entry.path != layout.object(name):
        detail = f"lies in the wrong directory: it belongs into {name[:2]}"
        return (_finding(facts, "object_misplaced", entry.path, detail, repair=Repair.MOVE),)
    return ()


def mode_finding(facts: StoreFacts, fact: ObjectFact) -> Finding | None:
    """A mode that keeps other users' workers out, or lets its owner change an object by mistake."""
    mode = fact.entry.status.st_mode & 0o7777
    if fact.entry.kind != "file" or mode == OBJECT_MODE:
        return None
    detail = f"has mode {mode:04o} instead of {OBJECT_MODE:04o}"
    return _finding(
        facts, "object_mode", fact.entry.path, detail, level="note", repair=Repair.SET_MODE
    )


def _about_ref(
    facts: StoreFacts,
    fact: RefFact,
    sizes: Mapping[str, int],
    packages: Mapping[str, Package],
) -> Iterator[Finding]:
    by_itself = about_ref_file(facts, fact)
    yield from by_itself
    if fact.ref is not None and not by_itself:
        yield from _about_package(facts, fact.entry.path, fact.ref, sizes, packages)


def about_ref_file(facts: StoreFacts, fact: RefFact) -> tuple[Finding, ...]:
    """What is wrong with a ref by itself, whatever it names."""
    path, ref = fact.entry.path, fact.ref
    objected = objection(path, fact.entry.status, facts.owners)
    level: Level = "problem"
    repair, fix = Repair.RECOVER_REF, ""
    if fact.entry.kind != "file":
        kind, detail = "not_a_file", f"is a {fact.entry.kind} in the place of a ref"
    elif fact.entry.trouble:
        kind, detail = "ref_unreadable", f"cannot be read: {fact.entry.trouble}"
        repair, fix = Repair.NONE, "Check its owner and mode."
    elif objected is not None:
        kind = "ref_untrusted"
        detail = f"could have been changed by somebody else: {objected.message}"
    elif ref is None and fact.other_format:
        kind, level, repair = "other_format", "note", Repair.NONE
        detail = f"was written by another version of preheat: {fact.trouble}"
    elif ref is None or not is_digest(ref.manifest) or ref.generation < 1:
        kind, detail = "ref_damaged", f"is damaged: {fact.trouble or 'it names no manifest'}"
    elif path != facts.layout.ref(ref.target, ref.environment):
        kind = "ref_misplaced"
        detail = f"is the ref of {ref.target!r} in {ref.environment}, in the wrong place"
    else:
        return ()
    return (_finding(facts, kind, path, detail, fix, level=level, repair=repair),)


def _about_package(
    facts: StoreFacts,
    path: Path,
    ref: Ref,
    sizes: Mapping[str, int],
    packages: Mapping[str, Package],
) -> Iterator[Finding]:
    """What is wrong with the package that a good ref names."""
    level: Level = "problem"
    repair = Repair.RECOVER_REF
    package = packages.get(ref.manifest)
    if ref.manifest not in sizes:
        kind, detail = "manifest_missing", f"its manifest {ref.manifest} is not there whole"
    elif package is None or package.manifest is None:
        kind = "manifest_damaged"
        detail = f"its manifest cannot be used: {package.trouble if package else 'not a manifest'}"
        if package is not None and package.other_format:
            kind, level, repair = "other_format", "note", Repair.NONE
    elif problem := package_problem(package.manifest, ref, sizes):
        kind, detail = problem
    else:
        lost = [one for one in package.manifest.objects() if sizes.get(one.sha256) != one.size]
        if lost:
            detail = f"names a package whose source text {lost[0].name} is not there whole: only "
            detail += "`explain` misses it"
            yield _finding(facts, "text_missing", path, detail, level="note")
        return
    yield Finding(
        kind=kind,
        level=level,
        place=_place(facts, path),
        detail=f"names a package that no worker here can load: {detail}",
        fix=_FIX[repair],
        repair=repair,
        target=ref.target,
        environment=ref.environment,
    )


def package_problem(
    manifest: Manifest, ref: Ref, sizes: Mapping[str, int]
) -> tuple[str, str] | None:
    """Why a worker could not load this package: a kind and a sentence."""
    if (manifest.target, environment_digest(manifest.environment)) != (ref.target, ref.environment):
        return "manifest_foreign", "its manifest is that of another target or environment"
    for needed in manifest.code_objects():
        if needed.sha256 not in sizes:
            return (
                "object_missing",
                f"its object {needed.name} ({needed.sha256}) is not there whole",
            )
        if sizes[needed.sha256] != needed.size:
            return (
                "object_missing",
                f"its object {needed.name} has another size than its manifest says",
            )
    if not manifest.is_proven():
        return "unproven", "its package was never proven, so no worker loads it"
    return None


def referenced(facts: StoreFacts, packages: Mapping[str, Package]) -> frozenset[str]:
    """The digests that refs lead to, manifests among them."""
    named = {fact.ref.manifest for fact in facts.refs if fact.ref is not None}
    manifests = (packages[digest].manifest for digest in named & packages.keys())
    return frozenset(named) | {
        needed.sha256 for one in manifests if one is not None for needed in one.objects()
    }


def _about_orphans(
    facts: StoreFacts, sizes: Mapping[str, int], packages: Mapping[str, Package]
) -> Iterator[Finding]:
    orphans = sizes.keys() - referenced(facts, packages)
    if orphans:
        total = sum(sizes[digest] for digest in orphans)
        detail = f"holds {len(orphans)} objects ({total} bytes) that belong to no published package"
        yield _finding(facts, "orphans", facts.layout.objects, detail, level="note")
    for fact in facts.objects:
        if not about_object(facts, fact) and (found := mode_finding(facts, fact)):
            yield found


def _about_signatures(facts: StoreFacts, sizes: Mapping[str, int]) -> Iterator[Finding]:
    for fact in facts.signatures:
        path = fact.entry.path
        if fact.trouble:
            kind, repair = "signatures_damaged", Repair.QUARANTINE
            yield _finding(facts, kind, path, fact.trouble, _SIGN_AGAIN, repair=repair)
        elif fact.manifest not in sizes:
            detail = "signs a manifest that is not in the store"
            fix = "Remove it if nobody needs it."
            yield _finding(facts, "signatures_alone", path, detail, fix, level="note")


def _about_the_rest(facts: StoreFacts) -> Iterator[Finding]:
    for temporary in facts.temporary:
        if temporary.leftover:
            path = temporary.entry.path
            detail = "was left behind by a writer that is gone"
            yield _finding(facts, "leftover", path, detail, level="note", repair=Repair.SWEEP)
    for holder in facts.damaged_holders:
        detail = "is damaged: it does not say who holds the lock"
        yield _finding(
            facts, "holder_damaged", holder, detail, level="note", repair=Repair.QUARANTINE
        )
    for one in facts.quarantined:
        detail = f"was {one.origin}: {one.reason}" if one.origin else "has no note that says why"
        fix = "Remove it when nobody wants to look at it any more."
        yield _finding(facts, "quarantined", one.entry.path, detail, fix, level="note")
    for path in facts.unknown:
        detail = "is nothing that preheat puts there"
        yield _finding(
            facts, "unknown", path, detail, "Remove it if nobody needs it.", level="note"
        )


_SIGN_AGAIN = (
    "`preheat fsck --repair` moves it to the quarantine; then `preheat keys resign` signs anew."
)
_FIX = {
    Repair.NONE: "",
    Repair.QUARANTINE: "`preheat fsck --repair` moves it to the quarantine.",
    Repair.MOVE: "`preheat fsck --repair` moves it to its place.",
    Repair.SET_MODE: "`preheat fsck --repair` sets the mode.",
    Repair.SWEEP: "`preheat fsck --repair` removes it, as does any command that builds.",
    Repair.WRITE: "`preheat fsck --repair` writes it anew.",
    Repair.MAKE_DIRECTORY: "`preheat fsck --repair` makes it.",
    Repair.RECOVER_REF: "`preheat fsck --repair` goes back to an earlier package that fits the "
    "sources, or withdraws this one; the daemon or `preheat warm` builds another.",
}


def _finding(
    facts: StoreFacts,
    kind: str,
    path: Path,
    detail: str,
    fix: str = "",
    *,
    level: Level = "problem",
    repair: Repair = Repair.NONE,
) -> Finding:
    return Finding(
        kind=kind,
        level=level,
        place=_place(facts, path),
        detail=detail,
        fix=fix or _FIX[repair],
        repair=repair,
    )


def _place(facts: StoreFacts, path: Path) -> str:
    root = facts.layout.root
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def earlier_first(
    found: Mapping[Digest, Manifest], wanted: Sequence[Digest]
) -> tuple[Manifest, ...]:
    """Packages that a ref may go back to: those in ``wanted`` in that order, then the last built first.

    One with a forked proof counts in ``wanted`` alone: it may have been withdrawn since.
    """
    rank = {digest: at for at, digest in enumerate(wanted)}
    allowed = [
        digest
        for digest, manifest in found.items()
        if digest in rank or (manifest.proof is not None and not manifest.proof.forked)
    ]
    newest = sorted(allowed, key=lambda digest: found[digest].build.started_at, reverse=True)
    return tuple(
        found[digest] for digest in sorted(newest, key=lambda one: rank.get(one, len(rank)))
    )


def problems(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that keep something from working."""
    return tuple(one for one in found if one.level == "problem")
