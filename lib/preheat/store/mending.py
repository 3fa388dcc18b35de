"""Carries out repairs. Each finding is looked at again before anything is done about it.

Readers and writers may work at the same time. A ref is repaired under the build lock of its target, so a
publication is never taken for the damage that it replaced. An object that a writer replaced by a whole one in
the very moment in which the damaged one was moved away is moved back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from preheat.errors import BusyError, StoreError
from preheat.manifest import encode, environment_digest, sha256
from preheat.store import upkeep
from preheat.store.examining import OBJECT_MODE, about_object, about_ref_file
from preheat.store.facts import Repair
from preheat.store.failures import GONE, writing
from preheat.store.layout import CACHEDIR_TAG_TEXT, FORMAT_TEXT
from preheat.store.signing import published_as

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheat.manifest import Digest, Manifest
    from preheat.store.disk import DiskStore
    from preheat.store.facts import Finding, StoreFacts
    from preheat.store.files import Files
    from preheat.store.inspecting import Inspector
    from preheat.store.layout import Layout
    from preheat.store.repairing import Step
    from preheat.store.writing import Writer


@dataclasses.dataclass(frozen=True)
class Mender:
    """Works on one store.

    ``fits``: whether a package is of the sources on disk now. ``lock`` holds the build lock of a target and
    environment, or raises ``BusyError``. ``published`` is told what a ref went back to.
    """

    files: Files
    layout: Layout
    writer: Writer
    inspector: Inspector
    facts: StoreFacts
    open_store: Callable[[], DiskStore] | None = None
    lock: Callable[[str, str], contextlib.AbstractContextManager[object]] | None = None
    fits: Callable[[Manifest], bool] = lambda manifest: False
    published: Callable[[Manifest, Digest], None] = lambda manifest, digest: None

    def mend(self, step: Step) -> str:
        """Do one repair; says what was done. Empty where there was nothing to be done any more.

        Raises ``StoreError`` when it is not possible.
        """
        finding = step.finding
        path = self.layout.root / finding.place
        match finding.repair:
            case Repair.MAKE_DIRECTORY:
                return self._make_directory(path)
            case Repair.WRITE:
                return self._write(path)
            case Repair.SWEEP:
                return self._sweep(path)
            case Repair.MOVE:
                return self._move(path)
            case Repair.SET_MODE:
                return self._set_mode(path)
            case Repair.RECOVER_REF:
                return self._recover(path, step)
            case _:
                return self._quarantine(path, finding)

    def _make_directory(self, path: Path) -> str:
        with writing(path):
            self._away(path, "not a directory", unless="directory")
            self.writer.directory(path)
        return "made"

    def _write(self, path: Path) -> str:
        text = FORMAT_TEXT if path == self.layout.format_file else CACHEDIR_TAG_TEXT
        if self.inspector.small_file(path, len(text)) == text:
            return ""
        moved = self._away(path, "damaged")
        with writing(path):
            self.writer.put(path, text)
        return f"written anew; what was there is {moved}" if moved else "written"

    def _away(self, path: Path, reason: str, unless: str = "") -> Path | None:
        """What stands in a place where something else belongs goes to the quarantine."""
        entry = self.inspector.entry(path)
        if entry is None or entry.kind == unless:
            return None
        return upkeep.quarantine(self.writer, self.layout, path, reason)

    def _sweep(self, path: Path) -> str:
        with writing(path):
            try:
                self.writer.unlink(path)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                return ""
        return "removed"

    def _move(self, path: Path) -> str:
        fact = self.inspector.object_fact(path)
        place = self.layout.object(path.name)
        if fact is None or fact.digest != path.name:
            return ""
        if self.inspector.entry(place) is not None:
            moved = self._away(path, f"lay in the wrong directory; {place} is there as well")
            return f"moved to {moved}" if moved else ""
        with writing(place):
            self.writer.directory(place.parent)
            self.writer.rename(path, place)
            self.writer.sync(place.parent)
            self.writer.sync(path.parent)
        return f"moved to {place}"

    def _set_mode(self, path: Path) -> str:
        with writing(path):
            descriptor = self.files.open_for_reading(path)
            try:
                self.files.fchmod(descriptor, OBJECT_MODE)
                self.files.fsync(descriptor)
            finally:
                self.files.close(descriptor)
        return f"mode set to {OBJECT_MODE:04o}"

    def _quarantine(self, path: Path, finding: Finding) -> str:
        if finding.kind == "not_a_directory":
            moved = self._away(path, finding.detail, unless="directory")
            return f"moved to {moved}" if moved else ""
        if path.is_relative_to(self.layout.objects):
            return self.quarantine_object(path, finding)
        if path.is_relative_to(self.layout.all_signatures):
            fact = self.inspector.signatures_fact(path)
            if fact is not None and not fact.trouble:
                return ""  # signed anew meanwhile
        moved = upkeep.quarantine(self.writer, self.layout, path, finding.detail)
        return f"moved to {moved}" if moved else ""

    def quarantine_object(self, path: Path, finding: Finding) -> str:
        """Take an object out of use, if it is still damaged. Says where it lies now, else nothing."""
        fact = self.inspector.object_fact(path)
        if fact is None or not about_object(self.facts, fact):
            return ""
        moved = upkeep.quarantine(self.writer, self.layout, path, finding.detail)
        if moved is None:
            return ""
        now = self.inspector.object_fact(moved)
        if now is not None and now.digest == path.name and finding.kind == "object_damaged":
            with writing(path):  # a writer came first, and this is its whole object
                self.writer.rename(moved, path)
                self.writer.sync(path.parent)
            return ""
        return f"moved to {moved}"

    def _recover(self, path: Path, step: Step) -> str:
        finding = step.finding
        target, environment = finding.target, finding.environment
        if not target and step.earlier:
            target = step.earlier[0].target
            environment = environment_digest(step.earlier[0].environment)
        held: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if target and self.lock is not None:
            held = self.lock(target, environment)
        try:
            with held:
                return self._recover_locked(path, step)
        except BusyError as error:
            raise StoreError(
                f"{finding.place} was left alone: {error.message}",
                remedy="Its publication mends it; else run `preheat fsck --repair` once more.",
            ) from error

    def _recover_locked(self, path: Path, step: Step) -> str:
        if not self.is_still_broken(path):
            return ""
        fact = self.inspector.ref_fact(path)
        damaged = fact is not None and bool(about_ref_file(self.facts, fact))
        for manifest in step.earlier:
            if self.open_store is None or not self.fits(manifest):
                continue
            store = self.open_store()
            if not _is_signed(store, manifest):
                continue
            if damaged:
                upkeep.quarantine(self.writer, self.layout, path, step.finding.detail)
            ref = store.publish(manifest)
            self.published(manifest, ref.manifest)
            return f"went back to the package {ref.manifest} that fits the sources"
        moved = upkeep.quarantine(self.writer, self.layout, path, step.finding.detail)
        return f"withdrawn to {moved}; no other package fits the sources" if moved else ""

    def is_still_broken(self, path: Path) -> bool:
        """Whether no worker can load what this ref names, looked at now."""
        fact = self.inspector.ref_fact(path)
        if fact is None or fact.other_format:
            return False
        if fact.ref is None or about_ref_file(self.facts, fact):
            return True
        return bool(self.inspector.package_trouble(fact.ref))


def _is_signed(store: DiskStore, manifest: Manifest) -> bool:
    # What is published again is signed again: only what was signed before may be.
    try:
        store.check_signed(published_as(manifest, sha256(encode(manifest))), manifest)
    except StoreError:
        return False
    return True
