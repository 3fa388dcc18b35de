"""What a daemon does about a damaged package before it builds another one.

What is damaged goes to the quarantine, for whoever wants to look, and out of the way of the next build. Then
an earlier package that still fits the sources may take its place at once. Under the build lock of its target.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.errors import StoreError
from preheat.store.examining import about_object, about_ref_file, earlier_first
from preheat.store.facts import Finding, Repair, StoreFacts
from preheat.store.files import Files
from preheat.store.inspecting import Inspector
from preheat.store.mending import Mender
from preheat.store.records import utc_now
from preheat.store.trust import Trust
from preheat.store.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from preheat.manifest import Digest, Manifest
    from preheat.store import DiskStore


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Looks at the packages of one store, one at a time."""

    store: DiskStore
    inspector: Inspector
    mender: Mender

    @classmethod
    def of(cls, store: DiskStore, files: Files | None = None) -> Recovery:
        """For a store that can be written."""
        files = Files() if files is None else files
        trust = Trust.of("require", frozenset())
        layout = store.layout
        inspector = Inspector(files, layout, trust.owners, utc_now)
        mender = Mender(
            files=files,
            layout=layout,
            writer=Writer(files, trust, layout.temporary),
            inspector=inspector,
            facts=StoreFacts(layout=layout, owners=trust.owners),
        )
        return cls(store, inspector, mender)

    def is_damaged(self, target: str, environment: Digest) -> bool:
        """Whether a look at names and sizes finds damage. Cheap: no object is read but the manifest."""
        path = self.store.layout.ref(target, environment)
        if self.inspector.entry(path) is None:
            return False
        try:
            package = self.store.read_package(target, environment)
        except StoreError:
            return True
        if package is None:
            return False
        return any(self.store.object_problem(needed) for needed in package[1].code_objects())

    def earlier(
        self, target: str, environment: Digest, wanted: Sequence[Digest]
    ) -> tuple[Manifest, ...]:
        """Manifests of this target and environment that lie in the store; those in ``wanted`` first."""
        found = dict(self.inspector.manifests_of(self.store.layout.ref(target, environment)))
        return earlier_first(found, wanted)

    def take_away(self, target: str, environment: Digest) -> tuple[Path, ...]:
        """Quarantine what is damaged of a package. Reads all of it. Says what was damaged.

        Raises ``StoreError`` where that cannot be written.
        """
        taken = []
        for finding in self._damage(self.store.layout.ref(target, environment)):
            path = self.store.layout.root / finding.place
            if finding.repair is Repair.QUARANTINE:
                moved = self.mender.quarantine_object(path, finding)
            else:
                moved = str(self.store.quarantine_ref(target, environment, reason=finding.detail))
            if moved:
                taken.append(path)
        return tuple(taken)

    def damaged_objects(self, manifest: Manifest) -> Iterator[Finding]:
        """What is damaged of a package's objects. Reads them all."""
        for needed in manifest.objects():
            yield from self.about(self.store.layout.object(needed.sha256))

    def about(self, path: Path) -> tuple[Finding, ...]:
        """What is wrong with one object. Reads all of it."""
        fact = self.inspector.object_fact(path)
        return () if fact is None else about_object(self.mender.facts, fact)

    def _damage(self, path: Path) -> Iterator[Finding]:
        fact = self.inspector.ref_fact(path)
        if fact is None or fact.other_format:
            return
        yield from about_ref_file(self.mender.facts, fact)
        if fact.ref is None:
            return
        manifest_path = self.store.layout.object(fact.ref.manifest)
        yield from self.about(manifest_path)
        found = self.inspector.object_fact(manifest_path)
        if found is not None and found.package and found.package.manifest:
            yield from self.damaged_objects(found.package.manifest)
