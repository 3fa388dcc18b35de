"""Carrying a collection out: one collector at a time, and at no moment is anything missing that is named.

A package goes in this order: its ref, then its manifest, then the objects that no package which stays
names. A collector that is killed between any two calls leaves at worst a manifest or objects without a
ref, which the next one finds. Everything is looked at once more right before it goes: see ``turns``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import BusyError, CorruptedError
from preheat.manifest import MAX_REF_BYTES, decode_ref
from preheat.store.collection import LEASED, CollectionPlan, Deletion, Rules
from preheat.store.collection_plan import plan_collection
from preheat.store.failures import GONE, writing
from preheat.store.gathering import NO_LOCKS_GRACE_SECONDS, Gatherer, KeptWarm
from preheat.store.leases import mark
from preheat.store.turns import collectors_turn, open_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from preheat.manifest import Digest
    from preheat.store.collection import Contents, StoredObject
    from preheat.store.files import Files
    from preheat.store.layout import Layout
    from preheat.store.reading import Reader

# So many files are looked at and deleted in one turn: writers wait for some milliseconds at most.
_BATCH = 32
CHANGED = "changed"
BUSY = "busy"


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion that was planned and did not happen: ``leased``, ``changed`` or ``busy`` meanwhile."""

    digest: str
    reason: str


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection did. ``deleted`` are those of the plan that were carried out.

    ``bytes`` of what was unlinked. ``left_over``: temporary files of writers that are gone.
    """

    plan: CollectionPlan
    deleted: tuple[Deletion, ...] = ()
    spared: tuple[Spared, ...] = ()
    bytes: int = 0
    left_over: int = 0


@dataclasses.dataclass
class _Work:
    """What has happened so far. ``named``: what the spared packages still name."""

    deleted: list[Deletion] = dataclasses.field(default_factory=list)
    spared: list[Spared] = dataclasses.field(default_factory=list)
    named: set[Digest] = dataclasses.field(default_factory=set)
    bytes: int = 0


class Collector:
    """Collects one store. ``sweep`` removes left-over temporary files and says which. ``now``: see ``plan``.

    Made by ``DiskStore.collector``. Used by one thread at a time.
    """

    def __init__(
        self,
        files: Files,
        reader: Reader,
        layout: Layout,
        sweep: Callable[[], Sequence[Path]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._reader, self._layout = files, reader, layout
        self._sweep, self._now = sweep, now
        self._gatherer = Gatherer(files, reader, layout)

    def plan(self, rules: Rules, kept: KeptWarm | None = None) -> CollectionPlan:
        """What ``collect`` would do now; changes nothing, and needs no permission to write.

        ``kept``: what a configuration keeps warm; it stays. None: every package counts alike, and none
        as of a vanished environment. Raises ``StoreError`` for what cannot be read.
        """
        return self._plan(rules, kept)[1]

    def collect(self, rules: Rules, kept: KeptWarm | None = None) -> Collected:
        """Plan and carry out. Raises ``BusyError`` while another collector works, and ``StoreError``.

        When it raises in the middle, what was deleted was deleted in the right order.
        """
        with self._alone():
            with writing(self._layout.temporary):
                left_over = len(self._sweep())
            contents, plan = self._plan(rules, kept)
            self._mark(kept, contents)
            names = {one.manifest: one.names for one in contents.packages}
            work = _Work()
            orphans = [one for one in plan.deletions if one.target is None]
            packages = [one for one in plan.deletions if one.target is not None]
            with writing(self._layout.objects):
                for batch in _batches(orphans):
                    self._delete_orphans(batch, contents.objects, work)
                for batch in _batches(packages):
                    self._delete_packages(batch, contents.objects, names, work)
        return Collected(
            plan=plan,
            deleted=tuple(work.deleted),
            spared=tuple(work.spared),
            bytes=work.bytes,
            left_over=left_over,
        )

    def _plan(self, rules: Rules, kept: KeptWarm | None) -> tuple[Contents, CollectionPlan]:
        now = self._now()
        contents = self._gatherer.gather(kept, now)
        if not self._gatherer.locks_work:
            grace = max(rules.grace_seconds, NO_LOCKS_GRACE_SECONDS)
            rules = dataclasses.replace(rules, grace_seconds=grace)
        return contents, plan_collection(contents, rules, now)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = open_lock(self._files, self._layout.collector_lock)
        if descriptor is None:
            # Alone or not: every deletion is looked at once more, and a file that is gone is no error.
            yield
            return
        try:
            with contextlib.suppress(OSError):
                if not self._files.try_lock(descriptor, exclusive=True):
                    raise BusyError(
                        f"Another process is collecting {self._layout.root}.",
                        remedy="Wait for it, and look at what is left with --dry-run.",
                    )
            yield
        finally:
            self._files.close(descriptor)

    def _mark(self, kept: KeptWarm | None, contents: Contents) -> None:
        """What is kept warm here is in use, also for collectors of other configurations."""
        for one in contents.packages:
            if kept is None or one.generation is None or (one.target, one.environment) not in kept:
                continue
            opened = self._reader.open(self._layout.object(one.manifest))
            if opened is not None:
                try:
                    with contextlib.suppress(OSError):
                        mark(self._files, opened[0], self._files.fstat(opened[0]), self._now)
                finally:
                    self._files.close(opened[0])

    def _delete_orphans(
        self, batch: Sequence[Deletion], objects: Mapping[Digest, StoredObject], work: _Work
    ) -> None:
        with collectors_turn(self._files, self._layout) as mine:
            for one in batch:
                if not mine:
                    work.spared.append(Spared(digest=one.digest, reason=BUSY))
                elif not self._unlink(one.digest, objects[one.digest]):
                    work.spared.append(Spared(digest=one.digest, reason=CHANGED))
                else:
                    work.bytes += one.bytes
                    work.deleted.append(one)

    def _delete_packages(
        self,
        batch: Sequence[Deletion],
        objects: Mapping[Digest, StoredObject],
        names: Mapping[Digest, tuple[Digest, ...]],
        work: _Work,
    ) -> None:
        """Two turns: the refs, which are made durable between; then manifests and objects."""
        with contextlib.ExitStack() as stack:
            chosen: list[Deletion] = []

            def spare(one: Deletion, reason: str) -> None:
                work.spared.append(Spared(digest=one.digest, reason=reason))
                work.named.update(names[one.digest])

            with collectors_turn(self._files, self._layout) as mine:
                for one in batch:
                    why = self._lock(one, objects[one.digest], stack) if mine else BUSY
                    if why:
                        spare(one, why)
                        continue
                    if one.current:
                        self._remove(self._ref_path(one))
                    chosen.append(one)
            for directory in sorted({self._ref_path(one).parent for one in chosen if one.current}):
                with self._reader.directory(directory) as opened:
                    self._files.fsync_directory(".", opened)
            with collectors_turn(self._files, self._layout) as mine:
                gone: list[Deletion] = []
                for one in chosen:
                    # Without its ref it may have been published anew between the turns.
                    if not mine or self._is_named(one):
                        spare(one, CHANGED if mine else BUSY)
                    elif not self._unlink_manifest(one.digest, objects[one.digest]):
                        spare(one, CHANGED)
                    else:
                        work.bytes += objects[one.digest].size
                        gone.append(one)
                work.deleted += gone
                for one in gone:
                    self._unlink_objects(one, objects, work)

    def _lock(self, one: Deletion, known: StoredObject, stack: contextlib.ExitStack) -> str:
        """Take the manifest's lock until the stack ends; or say why the package must stay."""
        opened = self._reader.open(self._layout.object(one.digest))
        if opened is None:
            return CHANGED
        stack.callback(self._files.close, opened[0])
        with contextlib.suppress(OSError):
            if not self._files.try_lock(opened[0], exclusive=True):
                return LEASED
        status = self._files.fstat(opened[0])
        if (status.st_ino, status.st_mtime_ns) != known.stamp:
            return CHANGED
        return "" if self._is_named(one) == one.current else CHANGED

    def _is_named(self, one: Deletion) -> bool:
        """Whether the ref of the package's target and environment names it at this moment."""
        if not one.environment:
            return one.current
        data = self._reader.read(self._ref_path(one), MAX_REF_BYTES)
        if data is None:
            return False
        try:
            return decode_ref(data).manifest == one.digest
        except CorruptedError:
            return one.digest.encode() in data

    def _ref_path(self, one: Deletion) -> Path:
        return self._layout.ref(one.target or "", one.environment or "")

    def _unlink_objects(
        self, one: Deletion, objects: Mapping[Digest, StoredObject], work: _Work
    ) -> None:
        for digest in one.objects:
            if digest not in work.named and self._unlink(digest, objects[digest]):
                work.bytes += objects[digest].size

    def _unlink_manifest(self, digest: Digest, known: StoredObject) -> bool:
        path = self._layout.object(digest)
        if not self._is_unchanged(path, known):
            return False
        # Its signatures first: a file of signatures that nothing leads to would stay for ever.
        self._remove(self._layout.signatures(digest))
        return self._remove(path)

    def _unlink(self, digest: Digest, known: StoredObject) -> bool:
        """Delete an object that is still the one that was looked at. In a turn alone."""
        path = self._layout.object(digest)
        return self._is_unchanged(path, known) and self._remove(path)

    def _is_unchanged(self, path: Path, known: StoredObject) -> bool:
        try:
            with self._reader.directory(path.parent) as directory:
                status = self._files.lstat(path.name, directory)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        return (status.st_ino, status.st_mtime_ns) == known.stamp

    def _remove(self, path: Path) -> bool:
        try:
            with self._reader.directory(path.parent) as directory:
                self._files.unlink(path.name, directory)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        return True


def _batches(deletions: Sequence[Deletion]) -> Iterator[Sequence[Deletion]]:
    for start in range(0, len(deletions), _BATCH):
        yield deletions[start : start + _BATCH]
