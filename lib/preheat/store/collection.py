"""The words of a collection: what is in a store, what is to be kept, and the plan that follows. Pure data.

A package here is a manifest with the objects that it names; it is *current* while a ref names it, and
an earlier generation otherwise. The plan itself is made in ``collection_plan``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.manifest import Digest

HOUR_SECONDS: Final = 3600.0
DAY_SECONDS: Final = 24 * HOUR_SECONDS

# Why something is deleted. A closed set: metrics have it as a label.
UNREFERENCED = "unreferenced"
SUPERSEDED = "superseded"
VANISHED = "environment_vanished"
UNUSED = "unused"
TARGET_BYTES, TARGET_OBJECTS = "target_size", "target_objects"
STORE_BYTES, STORE_OBJECTS = "store_size", "store_objects"
REASONS: Final = (
    UNREFERENCED,
    SUPERSEDED,
    VANISHED,
    UNUSED,
    TARGET_BYTES,
    TARGET_OBJECTS,
    STORE_BYTES,
    STORE_OBJECTS,
)

# Why something stays although a limit asks for its room.
LEASED: Final = "leased"
GRACE: Final = "grace"
KEPT_WARM: Final = "kept_warm"
UNREADABLE: Final = "unreadable"
UNPUBLISHED: Final = "unpublished"  # of objects that no package names yet
Hold = Literal["leased", "grace", "kept_warm", "unreadable"]
_HELD_TEXT: Final[dict[str, str]] = {
    LEASED: "a process has it loaded",
    GRACE: "it is younger than the grace",
    KEPT_WARM: "this configuration keeps it warm",
    UNREADABLE: "a ref of its target cannot be read",
    UNPUBLISHED: "no package names them yet, and they are younger than the grace",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The most of everything; None: no limit. Of a store, or of each target by itself.

    ``max_age_seconds`` counts from the last use.
    """

    max_bytes: int | None = None
    max_objects: int | None = None
    max_age_seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """What is to be kept.

    ``keep_generations``: earlier generations of each target in each environment. ``vanished_seconds``: so
    long after their last use packages stay whose target or environment is not configured here; None: for
    ever. ``grace_seconds``: nothing that came or was touched more recently is deleted.
    """

    store: Limits = Limits()
    target: Limits = Limits()
    keep_generations: int = 7
    vanished_seconds: float | None = 30 * DAY_SECONDS
    grace_seconds: float = DAY_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class StoredObject:
    """One file of the store. ``changed``: when it came or was touched last, in seconds since the epoch.

    ``stamp`` is what must still be the same when it is deleted: inode and modification time.
    """

    size: int
    changed: float
    stamp: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredPackage:
    """One manifest. ``names`` are the objects that it needs, itself among them.

    ``generation`` is the ref's, None where no ref names it. ``last_used``: the newest trace of a
    publication or a load, in seconds since the epoch. ``hold``: why it must stay whatever its age.
    ``vanished``: no target that is configured here has its environment now.
    """

    manifest: Digest
    target: str
    environment: str
    names: tuple[Digest, ...]
    last_used: float
    generation: int | None = None
    hold: Hold | None = None
    vanished: bool = False


@dataclasses.dataclass(frozen=True)
class Contents:
    """What is in a store at one moment. ``notes``: what a reader of the plan should know about it."""

    objects: Mapping[Digest, StoredObject]
    packages: tuple[StoredPackage, ...]
    notes: tuple[str, ...] = ()


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """One package, or one object that no package names; and why it goes.

    ``objects`` are what is unlinked after the manifest, because no package that stays names them.
    ``bytes`` of all that goes. ``current``: a ref names it, and goes first. ``last_used`` in seconds since
    the epoch.
    """

    reason: str
    why: str
    digest: str
    bytes: int
    last_used: float
    target: str | None = None
    environment: str | None = None
    current: bool = False
    objects: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """So many packages, with so many bytes, that one reason keeps. Shared objects count for each.

    ``unpublished`` is the reason of objects without a package.
    """

    reason: str
    packages: int
    bytes: int


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that is not met after everything that may go has gone, and what keeps the rest.

    ``limit`` is one of the reasons ``store_size`` to ``target_objects``; ``target`` None: of the store.
    """

    limit: str
    allowed: int
    remaining: int
    target: str | None = None
    held: tuple[Held, ...] = ()

    def __str__(self) -> str:
        what = f"The target {self.target}" if self.target is not None else "The store"
        size = self.limit.endswith("_size")
        over = amount(self.remaining) if size else f"{self.remaining} objects"
        limit = amount(self.allowed) if size else str(self.allowed)
        text = f"{what} keeps {over}, and its limit is {limit}."
        for one in self.held:
            because = _HELD_TEXT.get(one.reason, one.reason)
            which = "Objects" if one.reason == UNPUBLISHED else counted(one.packages, "package")
            text += f" {which} ({amount(one.bytes)}): {because}."
        return text


class CollectionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All deletions in their order; what could not be brought under its limit; the store before and after."""

    deletions: tuple[Deletion, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    notes: tuple[str, ...] = ()
    packages: int = 0
    leases: int = 0
    objects_before: int = 0
    bytes_before: int = 0
    objects_after: int = 0
    bytes_after: int = 0


def amount(size: int) -> str:
    """Bytes for a person."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time for a person, to a unit that suits it."""
    for unit, length in (("day", DAY_SECONDS), ("hour", HOUR_SECONDS), ("minute", 60.0)):
        if seconds >= length:
            return counted(round(seconds / length), unit)
    return counted(round(max(seconds, 0.0)), "second")


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
