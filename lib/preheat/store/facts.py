"""What a store is seen to hold, and what is said about it: plain data between ``inspecting``, ``examining``,
``repairing`` and ``mending``.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Literal

import msgspec

from preheat.store.layout import CACHEDIR_TAG_TEXT, FORMAT_TEXT, Layout

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from preheat.manifest import Manifest, Ref

Level = Literal["problem", "note"]
FileKind = Literal["file", "directory", "link", "fifo", "socket", "device"]


class Repair(enum.StrEnum):
    """What can be done about a finding by itself."""

    NONE = ""
    QUARANTINE = "quarantine"
    MOVE = "move"
    SET_MODE = "set_mode"
    SWEEP = "sweep"
    WRITE = "write"
    MAKE_DIRECTORY = "make_directory"
    RECOVER_REF = "recover_ref"
    REMOVE_RECORD = "remove_record"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found. ``place`` is relative to the store, or absolute outside of it.

    A ``problem`` keeps something from working, a ``note`` does not. ``repair``: what ``--repair`` does about
    it. ``target`` and ``environment``: whose package is concerned, where that is known.
    """

    kind: str
    level: Level
    place: str
    detail: str
    fix: str = ""
    repair: Repair = Repair.NONE
    target: str = ""
    environment: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One name in the store. ``status`` is of the name itself, never of where a link leads."""

    path: Path
    kind: FileKind
    status: os.stat_result
    trouble: str = ""  # why it cannot be read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """What counts of a manifest. ``trouble`` says why it has none that this version understands."""

    manifest: Manifest | None = None
    trouble: str = ""
    other_format: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectFact:
    """A file among the objects. ``digest`` is that of its bytes, empty where they were not read."""

    entry: Entry
    digest: str = ""
    package: Package | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefFact:
    """A file among the refs. Without ``ref``, ``trouble`` says why."""

    entry: Entry
    ref: Ref | None = None
    trouble: str = ""
    other_format: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignaturesFact:
    """A file of signatures; ``manifest``: the digest in its name. ``trouble`` says why it does not count."""

    entry: Entry
    manifest: str
    trouble: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemporaryFact:
    """A file that is or was being written; ``leftover``: its writer is gone."""

    entry: Entry
    leftover: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuarantineFact:
    """A file that was taken out of use; ``origin`` and ``reason`` are empty without a readable note."""

    entry: Entry
    origin: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """Everything in a store at one moment, as far as it could be read.

    ``format``, ``tag``: the bytes of these two files, None where there is none. ``missing``: directories
    that every store has; ``obstacles``: what stands in the place of one. ``owners``: who is trusted.
    ``untrusted``: objections to the way to the store and to its directories: a path, a sentence and what to
    do. ``unreadable``: directories that cannot be listed, and why.
    """

    layout: Layout
    owners: frozenset[int]
    format: bytes | None = FORMAT_TEXT
    tag: bytes | None = CACHEDIR_TAG_TEXT
    missing: tuple[Path, ...] = ()
    untrusted: tuple[tuple[str, str, str], ...] = ()
    objects: tuple[ObjectFact, ...] = ()
    refs: tuple[RefFact, ...] = ()
    signatures: tuple[SignaturesFact, ...] = ()
    temporary: tuple[TemporaryFact, ...] = ()
    quarantined: tuple[QuarantineFact, ...] = ()
    damaged_holders: tuple[Path, ...] = ()
    unknown: tuple[Path, ...] = ()
    unreadable: tuple[tuple[Path, str], ...] = ()
    obstacles: tuple[tuple[Path, FileKind], ...] = ()
