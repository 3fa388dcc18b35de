"""What is in a store, read for its collection: one pass over its directories, one look at each manifest.

The time grows with the number of files and with nothing else. A manifest never changes, so a collector
that goes on reads each one once, as long as there are few enough of them to remember.

Nothing is guessed away: what cannot be read for another reason than that it is gone ends the pass with
an error, because whatever it names would look unreferenced.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import os
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError
from preheat.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_REF_BYTES,
    decode_ref,
)
from preheat.store.collection import (
    KEPT_WARM,
    LEASED,
    UNREADABLE,
    Contents,
    Hold,
    StoredObject,
    StoredPackage,
)
from preheat.store.failures import GONE, read_failure
from preheat.store.layout import encode_name, is_digest
from preheat.store.manifest_names import MANIFEST_BEGIN, Names, names_of
from preheat.store.reading import without_a_trace
from preheat.store.records import parse_ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from preheat.manifest import Digest, Ref
    from preheat.store.files import Files
    from preheat.store.layout import Layout
    from preheat.store.reading import Reader

# Where locks do not work, who has a package loaded cannot be told: then the grace is at least this long.
NO_LOCKS_GRACE_SECONDS = 7 * 24 * 3600.0
NO_LOCKS_NOTE = (
    "Locks do not work on this file system: only what was not used for 7 days is deleted."
)
NO_ATIME_NOTE = (
    "The file system keeps no times of access: loads by other accounts than the owner "
    "leave no trace."
)

# What an idle daemon remembers between two collections takes some kilobytes a manifest.
_MOST_REMEMBERED = 1000
_SOON_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class KeptWarm:
    """What a configuration wants to have: (target, environment), and whole targets.

    ``targets``: those whose environment is not known now, because their interpreter does not answer.
    """

    packages: frozenset[tuple[str, str]] = frozenset()
    targets: frozenset[str] = frozenset()

    def __contains__(self, one: tuple[str, str]) -> bool:
        return one in self.packages or one[0] in self.targets


# By digest: the stamp of the file that was read, and what it named.
_Known = dict[str, tuple[tuple[int, int], Names | None]]


@dataclasses.dataclass(slots=True)
class _Found:
    """An object on disk. ``read`` is its time of access."""

    stored: StoredObject
    read: float


@dataclasses.dataclass
class _Refs:
    """``unreadable``: directories of targets with a ref that cannot be read."""

    current: dict[Digest, Ref] = dataclasses.field(default_factory=dict)
    unreadable: set[str] = dataclasses.field(default_factory=set)
    notes: list[str] = dataclasses.field(default_factory=list)


class Gatherer:
    """Looks at one store, again and again."""

    def __init__(self, files: Files, reader: Reader, layout: Layout) -> None:
        self._files, self._reader, self._layout = files, reader, layout
        self._known: _Known = {}
        self.locks_work = True

    def gather(self, kept: KeptWarm | None, now: float) -> Contents:
        """Everything at this moment. ``kept`` None: nothing is known of any configuration.

        Raises ``StoreError`` (``UntrustedStoreError`` among them) for what cannot be read.
        """
        self.locks_work = True
        # Refs first: a package that is published meanwhile is then an object that is too young to go.
        refs = self._read_refs()
        objects = self._objects(now)
        known: _Known = {}
        named, leased = self._packages(refs, objects, known)
        self._known = known if len(known) <= _MOST_REMEMBERED else {}
        used = collections.Counter(name for one in named.values() for name in one.code)
        packages = tuple(
            _package(digest, names, refs, objects, used, digest in leased, kept, now)
            for digest, names in named.items()
        )
        stored = {digest: one.stored for digest, one in objects.items()}
        return Contents(stored, packages, (*refs.notes, *self._notes()))

    def _notes(self) -> Iterable[str]:
        if not self.locks_work:
            yield NO_LOCKS_NOTE
        try:
            flags = self._files.mount(self._layout.objects).f_flag
        except OSError:
            return
        if flags & os.ST_NOATIME:
            yield NO_ATIME_NOTE

    def _read_refs(self) -> _Refs:
        refs = _Refs()
        for directory in self._names(self._layout.refs):
            place = self._layout.refs / directory
            for name in self._reader.names(place):
                self._read_ref(place / name, refs)
        return refs

    def _names(self, directory: Path) -> list[str]:
        """Of a directory that every store has: without it nothing can be told."""
        try:
            self._files.lstat(directory)
        except OSError as error:
            raise read_failure(error, directory) from error
        return self._reader.names(directory)

    def _read_ref(self, path: Path, refs: _Refs) -> None:
        try:
            data = self._reader.read(path, MAX_REF_BYTES)
            if data is None:
                return
            ref = decode_ref(data, where=str(path))
            parse_ref(data, ref.target, ref.environment, str(path))
            if self._layout.ref(ref.target, ref.environment) != path:
                raise CorruptedError(f"{path}: is the ref of another name.")
            refs.current[ref.manifest] = ref
        except CorruptedError as error:
            # Another version may read it, or the disk the next time.
            refs.unreadable.add(path.parent.name)
            refs.notes.append(f"{error.message} All packages of its target are kept.")

    def _objects(self, now: float) -> dict[Digest, _Found]:
        found: dict[Digest, _Found] = {}
        for prefix in self._names(self._layout.objects):
            directory = self._layout.objects / prefix
            try:
                entries = self._files.entries(directory)
            except OSError as error:
                if error.errno in GONE:
                    continue
                raise read_failure(error, directory) from error
            for name, status in entries:
                if is_digest(name) and name.startswith(prefix):
                    stored = StoredObject(
                        status.st_size,
                        newest((status.st_mtime, status.st_ctime), now),
                        (status.st_ino, status.st_mtime_ns),
                    )
                    found[name] = _Found(stored, status.st_atime)
        return found

    def _packages(
        self, refs: _Refs, objects: Mapping[Digest, _Found], known: _Known
    ) -> tuple[dict[Digest, Names], set[Digest]]:
        """Every manifest with what it names, and which of them are leased."""
        named: dict[Digest, Names] = {}
        leased: set[Digest] = set()

        def look(digest: Digest) -> None:
            stored = objects[digest].stored
            names, is_leased = self._look(digest, stored)
            known[digest] = stored.stamp, names
            ref = refs.current.get(digest)
            if names is None and ref is not None:  # damaged: all that goes with the ref is itself
                names = Names(ref.target, ref.environment, (digest,), ())
            if names is not None:
                named[digest] = names
                if is_leased:
                    leased.add(digest)

        needed: set[Digest] = set()
        for digest in (*refs.current, *objects):
            # After those with a ref, what nobody is known to name: manifests of earlier generations, and
            # objects of theirs.
            if digest in objects and digest not in needed:
                look(digest)
                if digest in named:
                    needed.update(named[digest].all)
        return named, leased

    def _look(self, digest: Digest, stored: StoredObject) -> tuple[Names | None, bool]:
        """What an object names, None if it is no manifest; and whether somebody has a lease on it."""
        stamp, names = self._known.get(digest, (None, None))
        is_known = (
            stamp == stored.stamp
        )  # else a whole one may have taken the place of a damaged one
        if stored.size > MAX_MANIFEST_BYTES or (is_known and names is None):
            return None, False
        path = self._layout.object(digest)
        opened = self._reader.open(path)
        if opened is None:
            return None, False
        descriptor, size = opened
        try:
            without_a_trace(self._files, descriptor)
            if not is_known:
                names = self._read_names(path, descriptor, size)
            return names, names is not None and self._is_leased(descriptor)
        finally:
            self._files.close(descriptor)

    def _read_names(self, path: Path, descriptor: int, size: int) -> Names | None:
        begin = min(size, len(MANIFEST_BEGIN))
        first = self._reader.read_descriptor(path, descriptor, begin)
        if first != MANIFEST_BEGIN:
            return None
        rest = self._reader.read_descriptor(path, descriptor, size - begin)
        return None if rest is None else names_of(first + rest, path.name)

    def _is_leased(self, descriptor: int) -> bool:
        try:
            return not self._files.try_lock(descriptor, exclusive=True)
        except OSError:
            self.locks_work = False
            return False


def _package(
    digest: Digest,
    names: Names,
    refs: _Refs,
    objects: Mapping[Digest, _Found],
    used: Mapping[Digest, int],
    leased: bool,
    kept: KeptWarm | None,
    now: float,
) -> StoredPackage:
    ref = refs.current.get(digest)
    environment = names.environment or (ref.environment if ref else "")
    wanted = kept is not None and (names.target, environment) in kept
    hold: Hold | None = None
    if leased:
        hold = LEASED
    elif encode_name(names.target) in refs.unreadable:
        hold = UNREADABLE
    elif wanted and ref is not None:
        hold = KEPT_WARM
    own = objects[digest].stored
    # What packages share is read for each of them, and tells of none.
    reads = [objects[one].read for one in names.code if one in objects and used[one] == 1]
    traces = (own.stamp[1] / 1e9, *_published(ref), *reads)
    return StoredPackage(
        manifest=digest,
        target=names.target,
        environment=environment,
        names=names.all,
        last_used=now if leased else newest(traces, now),
        generation=ref.generation if ref else None,
        hold=hold,
        vanished=kept is not None and not wanted and bool(environment),
    )


def _published(ref: Ref | None) -> Iterator[float]:
    if ref is not None:
        with contextlib.suppress(ValueError, OverflowError, OSError):
            yield datetime.datetime.fromisoformat(ref.published_at).timestamp()


def newest(times: Iterable[float], now: float) -> float:
    """The latest of some times, in seconds since the epoch; pure.

    What lies in the future is no trace of anything, unless nothing else is there: then it counts as now,
    so that a clock that was set back never makes something look old.
    """
    possible = [min(one, now) for one in times if one <= now + _SOON_SECONDS]
    return max(possible, default=now)
