"""Reads everything in a store into facts, in constant memory but for one manifest at a time.

Takes no lock and writes nothing: a store on a read-only file system can be inspected, and so can one that
others read and write at the same time. What vanishes meanwhile is left out.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import StoreError, UnsignedPackageError
from preheat.manifest import environment_digest
from preheat.store.examining import about_object, package_problem
from preheat.store.facts import (
    Entry,
    FileKind,
    ObjectFact,
    QuarantineFact,
    RefFact,
    SignaturesFact,
    StoreFacts,
    TemporaryFact,
)
from preheat.store.failures import GONE
from preheat.store.founding import is_innocent
from preheat.store.layout import (
    FORMAT_TEXT,
    MAX_FORMAT_BYTES,
    OWN_NAMES,
    Layout,
    is_damaged_format,
    is_digest,
)
from preheat.store.locks import MAX_HOLDER_BYTES, decode_holder
from preheat.store.looking import Looker
from preheat.store.manifest_names import MANIFEST_BEGIN
from preheat.store.signatures import MAX_SIGNATURES_BYTES, decode_signatures
from preheat.store.temporary import is_leftover, process_space
from preheat.store.trust import objection, walk
from preheat.store.upkeep import QuarantineNote

if TYPE_CHECKING:
    import datetime
    import os
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheat.manifest import Digest, Manifest, Ref
    from preheat.store.files import Files

_PREFIX = re.compile("[0-9a-f]{2}")
_MAX_NOTE_BYTES = 64 * 1024


class Inspector(Looker):
    """Looks at one store. ``owners``: who is trusted to own it."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        owners: frozenset[int],
        now: Callable[[], datetime.datetime],
    ) -> None:
        super().__init__(files)
        self._layout = layout
        self._owners = owners
        self._now = now
        self._unknown: list[Path] = []
        self._untrusted: list[tuple[str, str, str]] = []
        self._unreadable: list[tuple[Path, str]] = []
        self._obstacles: list[tuple[Path, FileKind]] = []

    def inspect(self) -> StoreFacts:
        """Look at everything. Raises ``StoreError`` where there is no store, or one of another format."""
        layout = self._layout
        self._unknown, self._untrusted = [], []
        self._unreadable, self._obstacles = [], []
        self._judge_the_way()
        text = self._founded()
        missing = tuple(one for one in layout.directories if self.kind(one) != "directory")
        refs = tuple(self._refs())
        # Refs first: what one of them names was there before, so it is found now.
        objects = tuple(self._objects())
        facts = StoreFacts(
            layout=layout,
            owners=self._owners,
            format=text,
            tag=self.small_file(layout.cachedir_tag, MAX_FORMAT_BYTES),
            missing=missing,
            refs=refs,
            objects=objects,
            signatures=tuple(self._signatures()),
            temporary=tuple(self._temporary()),
            quarantined=tuple(self._quarantined()),
            damaged_holders=tuple(self._damaged_holders()),
        )
        self._look_for_strangers()
        return dataclasses.replace(
            facts,
            unknown=tuple(self._unknown),
            untrusted=tuple(self._untrusted),
            unreadable=tuple(self._unreadable),
            obstacles=tuple(self._obstacles),
        )

    def manifests_of(self, ref: Path) -> Iterator[tuple[Digest, Manifest]]:
        """The whole manifests in the store that this ref could name. Opens every object, reads few."""
        for directory in self._directories(self._layout.objects):
            for name in filter(is_digest, self._names(directory)):
                path = directory / name
                if not self._begins_like_a_manifest(path):
                    continue
                fact = self.object_fact(path)
                manifest = fact.package.manifest if fact and fact.package else None
                if manifest is None or fact is None or self._is_broken(fact):
                    continue
                environment = environment_digest(manifest.environment)
                if self._layout.ref(manifest.target, environment) == ref:
                    yield name, manifest

    def _begins_like_a_manifest(self, path: Path) -> bool:
        try:
            return self.read(path, len(MANIFEST_BEGIN) - 1) == MANIFEST_BEGIN
        except OSError:
            return False

    def package_trouble(self, ref: Ref) -> str:
        """Why no worker can load the package of a ref; empty for one that is whole. Reads all of it."""
        fact = self.object_fact(self._layout.object(ref.manifest))
        if fact is None or self._is_broken(fact):
            return f"its manifest {ref.manifest} is not there whole"
        manifest = fact.package.manifest if fact.package else None
        if manifest is None:
            return "its manifest cannot be used"
        sizes = {}
        for needed in manifest.code_objects():
            found = self.object_fact(self._layout.object(needed.sha256))
            if found is not None and not self._is_broken(found):
                sizes[needed.sha256] = found.entry.status.st_size
        problem = package_problem(manifest, ref, sizes)
        return problem[1] if problem else ""

    def _is_broken(self, fact: ObjectFact) -> bool:
        return bool(about_object(StoreFacts(layout=self._layout, owners=self._owners), fact))

    def _judge_the_way(self) -> None:
        def visit(path: str, status: os.stat_result) -> None:
            found = objection(path, status, self._owners)
            if found is not None:
                self._untrusted.append((path, found.message, found.remedy))

        try:
            self._files.close(walk(self._files, self._layout.root, visit))
        except OSError as error:
            raise StoreError(
                f"There is no store at {self._layout.root}: {error.strerror}.",
                remedy="Check PREHEAT_STORE, or build something first.",
            ) from error

    def _founded(self) -> bytes | None:
        layout = self._layout
        text = self.small_file(layout.format_file, MAX_FORMAT_BYTES)
        if text is None and self.kind(layout.version) is None:
            raise StoreError(
                f"There is no store at {layout.root}.",
                remedy="Check PREHEAT_STORE, or build something first.",
            )
        if text is not None and text != FORMAT_TEXT and not is_damaged_format(text):
            raise StoreError(
                f"{layout.root} is a store of another format: {text.decode().strip()!r}.",
                remedy="Use the version of preheat that made it.",
            )
        return text

    def _refs(self) -> Iterator[RefFact]:
        for directory in self._directories(self._layout.refs):
            for name in self._names(directory):
                path = directory / name
                if path.suffix != ".json":
                    self._unknown.append(path)
                elif (fact := self.ref_fact(path)) is not None:
                    yield fact

    def _objects(self) -> Iterator[ObjectFact]:
        for directory in self._directories(self._layout.objects):
            for name in self._names(directory):
                if not is_digest(name):
                    self._unknown.append(directory / name)
                elif (fact := self.object_fact(directory / name)) is not None:
                    yield fact

    def _signatures(self) -> Iterator[SignaturesFact]:
        if self.kind(self._layout.all_signatures) is None:
            return  # nobody signs here
        for directory in self._directories(self._layout.all_signatures):
            for name in self._names(directory):
                if not is_digest(name.removesuffix(".json")):
                    self._unknown.append(directory / name)
                elif (fact := self.signatures_fact(directory / name)) is not None:
                    yield fact

    def signatures_fact(self, path: Path) -> SignaturesFact | None:
        """One file of signatures; None for what has no such name or is gone."""
        digest = path.name.removesuffix(".json")
        if not is_digest(digest):
            return None
        entry = self.entry(path)
        if entry is None:
            return None
        return SignaturesFact(entry=entry, manifest=digest, trouble=self._unsigned(entry, digest))

    def _unsigned(self, entry: Entry, digest: Digest) -> str:
        if entry.kind != "file":
            return f"is a {entry.kind} in the place of signatures"
        if entry.trouble:
            return f"cannot be read: {entry.trouble}"
        if entry.path != self._layout.signatures(digest):
            return f"lies in the wrong directory: it belongs into {digest[:2]}"
        objected = objection(entry.path, entry.status, self._owners)
        if objected is not None:
            return f"could have been changed by somebody else: {objected.message}"
        data = self.small_file(entry.path, MAX_SIGNATURES_BYTES)
        try:
            decode_signatures(data or b"", digest, str(entry.path))
        except UnsignedPackageError as error:
            return f"is damaged: {error.message.removeprefix(f'{entry.path}: ')}"
        return ""

    def _temporary(self) -> Iterator[TemporaryFact]:
        for name in self._names(self._layout.temporary):
            entry = self.entry(self._layout.temporary / name)
            if entry is None:
                continue
            if entry.kind == "directory":
                self._unknown.append(entry.path)
                continue
            age_seconds = self._now().timestamp() - entry.status.st_mtime
            leftover = is_leftover(
                name,
                age_seconds,
                space=process_space(),
                process_exists=self._files.process_exists,
            )
            yield TemporaryFact(entry=entry, leftover=leftover)

    def _quarantined(self) -> Iterator[QuarantineFact]:
        directory = self._layout.quarantine
        for name in self._names(directory):
            entry = None if name.endswith(".note") else self.entry(directory / name)
            if entry is None:
                continue
            data = self.small_file(directory / f"{name}.note", _MAX_NOTE_BYTES)
            try:
                note = msgspec.json.decode(data or b"", type=QuarantineNote)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield QuarantineFact(entry=entry)
                continue
            yield QuarantineFact(entry=entry, origin=note.origin, reason=note.reason)

    def _damaged_holders(self) -> Iterator[Path]:
        for name in self._names(self._layout.locks):
            path = self._layout.locks / name
            if name.endswith(".holder"):
                data = self.small_file(path, MAX_HOLDER_BYTES)
                if data is not None and decode_holder(data) is None:
                    yield path
            elif not name.endswith((".lock", ".holder.new")):
                self._unknown.append(path)

    def _look_for_strangers(self) -> None:
        layout = self._layout
        known = {path.name for path in layout.directories}
        known |= {layout.all_signatures.name, layout.build_leases.name}
        for directory, names in ((layout.root, OWN_NAMES), (layout.version, known)):
            self._unknown += [
                directory / name
                for name in self._names(directory)
                if name not in names and not is_innocent(name)
            ]

    def _directories(self, parent: Path) -> Iterator[Path]:
        for name in self._names(parent):
            path = parent / name
            kind = self.kind(path)
            if kind == "directory":
                yield path
            elif parent == self._layout.objects and _PREFIX.fullmatch(name) is None:
                self._unknown.append(path)
            elif kind is not None:
                self._obstacles.append((path, kind))

    def _names(self, directory: Path) -> list[str]:
        try:
            status = self._files.lstat(directory)
            found = objection(directory, status, self._owners)
            if found is not None and directory != self._layout.root:
                self._untrusted.append((self._place(directory), found.message, found.remedy))
            names = self._files.names(directory)
        except OSError as error:
            if error.errno not in GONE:
                self._unreadable.append((directory, error.strerror or str(error)))
            return []
        return [name for name in names if not name.startswith(".nfs")]

    def _place(self, path: Path) -> str:
        return str(path.relative_to(self._layout.root))
