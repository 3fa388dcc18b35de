"""What may be deleted from a store, in which order, and why. Pure: data in, a plan out.

Nothing that is leased, kept warm or younger than the grace is in a plan, and no object that a package
which stays still names. The dry run prints the plan that a run carries out.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, NamedTuple

from preheat.store.collection import (
    GRACE,
    LEASED,
    STORE_BYTES,
    STORE_OBJECTS,
    SUPERSEDED,
    TARGET_BYTES,
    TARGET_OBJECTS,
    UNPUBLISHED,
    UNREFERENCED,
    UNUSED,
    VANISHED,
    CollectionPlan,
    Deletion,
    Held,
    Shortfall,
    amount,
    counted,
    duration,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from preheat.manifest import Digest
    from preheat.store.collection import Contents, Hold, Rules, StoredObject, StoredPackage


def plan_collection(contents: Contents, rules: Rules, now: float) -> CollectionPlan:
    """Decide about everything. ``now`` is in seconds since the epoch. Deterministic."""
    return _Planning(contents, rules, now).plan()


class _Limit(NamedTuple):
    """One limit, by the reason that it gives; of a target or of the store."""

    reason: str
    allowed: int | None
    target: str | None = None


class _Tally:
    """Distinct objects of a set of packages: how often each is named, and what they come to."""

    def __init__(self, objects: Mapping[Digest, StoredObject]) -> None:
        self._objects = objects
        self.named: collections.Counter[Digest] = collections.Counter()
        self.count = 0
        self.bytes = 0

    def add(self, names: Iterable[Digest]) -> None:
        for name in names:
            self.named[name] += 1
            if self.named[name] == 1:
                self.count += 1
                self.bytes += self._objects[name].size

    def remove(self, names: Iterable[Digest]) -> list[Digest]:
        """The objects that nothing names any more."""
        left = []
        for name in names:
            self.named[name] -= 1
            if not self.named[name]:
                del self.named[name]
                self.count -= 1
                self.bytes -= self._objects[name].size
                left.append(name)
        return left


class _Planning:
    """One plan in the making."""

    def __init__(self, contents: Contents, rules: Rules, now: float) -> None:
        self._contents, self._rules, self._now = contents, rules, now
        objects = contents.objects
        self._names = {
            one.manifest: tuple(dict.fromkeys(name for name in one.names if name in objects))
            for one in contents.packages
        }
        self._all = _Tally(objects)
        self._of_target: dict[str, _Tally] = {}
        self._packages_of: dict[str, list[StoredPackage]] = {}
        for one in contents.packages:
            names = self._names[one.manifest]
            self._all.add(names)
            self._of_target.setdefault(one.target, _Tally(objects)).add(names)
            self._packages_of.setdefault(one.target, []).append(one)
        self._gone: set[Digest] = set()
        self._deletions: list[Deletion] = []
        self._shortfalls: list[Shortfall] = []
        self._objects = len(objects)
        self._bytes = sum(one.size for one in objects.values())

    def plan(self) -> CollectionPlan:
        contents = self._contents
        before = self._objects, self._bytes
        for digest in self._orphans():
            self._delete_orphan(digest)
        for one, why in self._beyond_generations():
            self._delete(one, SUPERSEDED, why)
        self._delete_unused()
        for target in sorted(self._of_target):
            self._bring_target_under(target)
        self._bring_store_under()
        return CollectionPlan(
            deletions=tuple(self._deletions),
            shortfalls=tuple(self._shortfalls),
            notes=contents.notes,
            packages=len(contents.packages),
            leases=sum(one.hold == LEASED for one in contents.packages),
            objects_before=before[0],
            bytes_before=before[1],
            objects_after=self._objects,
            bytes_after=self._bytes,
        )

    def _hold(self, one: StoredPackage) -> Hold | None:
        """Why a package must stay; None when it may go."""
        if one.hold is not None:
            return one.hold
        own = self._contents.objects.get(one.manifest)
        return GRACE if own is not None and self._is_young(own) else None

    def _is_young(self, one: StoredObject) -> bool:
        return self._now - one.changed < self._rules.grace_seconds

    def _unused_seconds(self, one: StoredPackage) -> float:
        return self._now - one.last_used

    def _free(self, packages: Iterable[StoredPackage]) -> list[StoredPackage]:
        """Those that may go and have not, the ones to go first at the front."""
        left = (one for one in packages if one.manifest not in self._gone)
        return sorted((one for one in left if self._hold(one) is None), key=_order)

    def _orphans(self) -> Iterator[Digest]:
        for digest in sorted(self._contents.objects):
            if digest not in self._all.named and not self._is_young(self._contents.objects[digest]):
                yield digest

    def _beyond_generations(self) -> Iterator[tuple[StoredPackage, str]]:
        earlier: dict[tuple[str, str], list[StoredPackage]] = {}
        for one in self._contents.packages:
            if one.generation is None:
                earlier.setdefault((one.target, one.environment), []).append(one)
        kept = self._rules.keep_generations
        beyond = [
            one
            for several in earlier.values()
            for one in sorted(several, key=_order, reverse=True)[kept:]
        ]
        for one in self._free(beyond):
            yield one, f"an earlier generation beyond the {kept} newest, which are kept"

    def _delete_unused(self) -> None:
        rules = self._rules
        for one in self._free(self._contents.packages):
            unused = self._unused_seconds(one)
            limit = rules.vanished_seconds
            if one.vanished and limit is not None and unused > limit:
                why = f"no target here has this environment; {_why_age(unused, limit)}"
                self._delete(one, VANISHED, why)
        ages = (rules.store.max_age_seconds, rules.target.max_age_seconds)
        age = min((one for one in ages if one is not None), default=None)
        if age is None:
            return
        for one in self._free(self._contents.packages):
            if self._unused_seconds(one) > age:
                self._delete(one, UNUSED, _why_age(self._unused_seconds(one), age))

    def _bring_target_under(self, target: str) -> None:
        limits, tally = self._rules.target, self._of_target[target]
        packages = tuple(self._packages_of[target])
        self._bring_under(
            _Limit(TARGET_BYTES, limits.max_bytes, target), packages, lambda: tally.bytes
        )
        self._bring_under(
            _Limit(TARGET_OBJECTS, limits.max_objects, target), packages, lambda: tally.count
        )

    def _bring_store_under(self) -> None:
        limits, packages = self._rules.store, self._contents.packages
        self._bring_under(_Limit(STORE_BYTES, limits.max_bytes), packages, lambda: self._bytes)
        self._bring_under(
            _Limit(STORE_OBJECTS, limits.max_objects), packages, lambda: self._objects
        )

    def _bring_under(
        self, limit: _Limit, packages: tuple[StoredPackage, ...], total: Callable[[], int]
    ) -> None:
        allowed = limit.allowed
        if allowed is None or total() <= allowed:
            return
        for one in self._free(packages):
            self._delete(one, limit.reason, _why_limit(one, limit.reason, allowed))
            if total() <= allowed:
                return
        self._fall_short(limit, allowed, total(), packages)

    def _fall_short(
        self, limit: _Limit, allowed: int, remaining: int, packages: Iterable[StoredPackage]
    ) -> None:
        counts: collections.Counter[str] = collections.Counter()
        sizes: collections.Counter[str] = collections.Counter()
        for one in packages:
            if one.manifest not in self._gone:
                reason = self._hold(one) or GRACE
                counts[reason] += 1
                sizes[reason] += self._size(self._names[one.manifest])
        if limit.target is None and (young := self._size(self._unpublished())):
            sizes[UNPUBLISHED] = young
        held = tuple(
            Held(reason=reason, packages=counts[reason], bytes=sizes[reason])
            for reason in sorted(sizes)
        )
        self._shortfalls.append(
            Shortfall(
                limit=limit.reason,
                allowed=allowed,
                remaining=remaining,
                target=limit.target,
                held=held,
            )
        )

    def _unpublished(self) -> Iterator[Digest]:
        """Objects that no package names any more or yet, and that are too young to go."""
        for digest, one in self._contents.objects.items():
            if digest not in self._all.named and self._is_young(one):
                yield digest

    def _delete_orphan(self, digest: Digest) -> None:
        one = self._contents.objects[digest]
        self._objects -= 1
        self._bytes -= one.size
        age = duration(self._now - one.changed)
        self._deletions.append(
            Deletion(
                reason=UNREFERENCED,
                why=f"no package names it, and it came {age} ago",
                digest=digest,
                bytes=one.size,
                last_used=one.changed,
            )
        )

    def _delete(self, one: StoredPackage, reason: str, why: str) -> None:
        self._gone.add(one.manifest)
        names = self._names[one.manifest]
        self._of_target[one.target].remove(names)
        # What was touched a moment ago may be about to be published anew; the next plan decides about it.
        left = [
            name
            for name in self._all.remove(names)
            if not self._is_young(self._contents.objects[name])
        ]
        size = self._size(left)
        self._objects -= len(left)
        self._bytes -= size
        self._deletions.append(
            Deletion(
                reason=reason,
                why=why,
                digest=one.manifest,
                bytes=size,
                last_used=one.last_used,
                target=one.target,
                environment=one.environment,
                current=one.generation is not None,
                objects=tuple(sorted(name for name in left if name != one.manifest)),
            )
        )

    def _size(self, names: Iterable[Digest]) -> int:
        return sum(self._contents.objects[name].size for name in names)


def _order(one: StoredPackage) -> tuple[int, float, str, str, str]:
    """Earlier generations go first, then what has no environment here, then the least recently used."""
    rank = 0 if one.generation is None else 1 if one.vanished else 2
    return rank, one.last_used, one.target, one.environment, one.manifest


def _why_age(unused_seconds: float, limit_seconds: float) -> str:
    return f"not used for {duration(unused_seconds)}, and the limit is {duration(limit_seconds)}"


def _why_limit(one: StoredPackage, limit: str, allowed: int) -> str:
    what = "the store" if limit in (STORE_BYTES, STORE_OBJECTS) else "the target"
    size = limit in (STORE_BYTES, TARGET_BYTES)
    over = amount(allowed) if size else counted(allowed, "object")
    if one.generation is None:
        which = "an earlier generation"
    elif one.vanished:
        which = "no target here has this environment"
    else:
        which = "the least recently used"
    return f"{what} is over its limit of {over}; {which}"
