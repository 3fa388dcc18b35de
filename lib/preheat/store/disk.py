"""The store in a directory: refs that move by one rename, objects that never change.

Writers need no lock to keep out of each other's way: names of temporary files are unique, objects are
named by their content, and a ref moves whole. With a collector they take turns of milliseconds
(``turns``). Readers wait for nobody.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError, StoreError, UntrustedStoreError
from preheat.manifest import (
    Digest,
    Manifest,
    ObjectRef,
    Ref,
    encode,
    environment_digest,
    sha256,
)
from preheat.store import founding, records
from preheat.store.failures import writing
from preheat.store.readable import ReadableStore

if TYPE_CHECKING:
    import datetime
    import os
    from collections.abc import Callable
    from pathlib import Path

    from preheat.store.arrival import Arrival
    from preheat.store.collecting import Collector
    from preheat.store.files import Files
    from preheat.store.keys import Signing
    from preheat.store.trust import TrustLevel
    from preheat.store.writing import Writer


class DiskStore(ReadableStore):
    """A ``Store`` in the directory ``root``.

    ``create=False`` (workers): making the object touches nothing; a directory that does not exist
    behaves as an empty store, and only writing into it raises. ``create=True``: the directory is made
    a store at once, parents included.

    ``signing``: what is asked of signatures, and what signs what is published (``preheat.store.keys``);
    by default readers do as variables and known places say, and nothing is signed.

    ``trust``, ``trusted_owners``: see ``preheat.store.trust``; the accounts in PREHEAT_TRUSTED_UIDS
    are trusted as well. All paths are judged again whenever a file is opened.

    Promised: a reader sees a ref, manifest or object whole or not at all, also while writers are
    killed; what a method returned from survives a loss of power; safe for threads and processes.
    Not promised: generations that only grow when several publish one name at the same moment (the lock
    of ``build_lock`` keeps them apart; to see a change, compare ``Ref.manifest``); that an object
    outlives a collection when it is published later than the grace after it was put.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        create: bool = False,
        trust: TrustLevel = "require",
        trusted_owners: frozenset[int] = frozenset(),
        files: Files | None = None,
        signing: Signing | None = None,
        now: Callable[[], datetime.datetime] = records.utc_now,
    ) -> None:
        super().__init__(
            root, trust=trust, trusted_owners=trusted_owners, files=files, signing=signing
        )
        self._now = now
        self._create = create
        self._durable = False
        if create:
            self._ready_to_write()

    @functools.cached_property
    def _writer(self) -> Writer:
        # Here, and likewise below: most processes only read.
        from preheat.store.writing import Writer

        return Writer(self._files, self._judge, self.layout.temporary)

    def put_object(self, data: bytes | Path) -> tuple[Digest, int]:
        """See ``Store``. A file is copied while it is hashed: what counts is what was copied.

        An object that is there already is read and reused if it is whole and trusted, and gets a new
        modification time, which keeps it from being collected as left over; a damaged one is replaced.
        """
        self._ready_to_write()
        with writing(self.layout.objects):
            if isinstance(data, bytes):
                return self._put_bytes(data)
            return self._put_file(data)

    def reuse(self, ref: ObjectRef) -> bool:
        """Whether the object is there whole, trusted, durable and marked as used just now.

        Reads all of it, in pieces. Where it is not, an own copy takes its place.
        """
        path = self.layout.object(ref.sha256)
        try:
            for _ in self.pieces(ref):
                pass
        except StoreError:
            return False  # missing, damaged or not to be trusted
        with writing(path):
            if not self._touch(path):
                return False
            # Whoever wrote it may have been stopped between the rename and this, or before its directory's.
            self._writer.directory(path.parent)
            self._writer.sync(path.parent)
        return True

    def arrival(self, ref: ObjectRef, *, verified: bool = False) -> Arrival:
        """An object that comes in pieces; see ``Arrival`` for ``verified``. Raises ``StoreError``."""
        from preheat.store.arrival import Arrival

        self._ready_to_write()
        return Arrival(self._files, self._writer, self.layout, ref, verified=verified)

    def publish(self, manifest: Manifest, *, built_here: bool = True) -> Ref:
        """See ``Store``. ``built_here``: a signing key signs it; else it must be signed where that is asked
        for (``accept_signatures`` comes first), and ``UnsignedPackageError`` says that it is not.

        Generations count up from 1, and again from 1 after a damaged ref.

        When it raises, the old ref is still there, unless the error came after the rename, from making
        it durable: then readers see the new package already.
        """
        from preheat.store.turns import writers_turn

        self._ready_to_write()
        content = records.encode_checked(manifest)
        with writers_turn(self._files, self.layout):
            for needed in manifest.objects():
                with writing(self.layout.object(needed.sha256)):
                    is_there = self._has(needed)
                if not is_there:
                    raise records.missing_object(manifest, needed)
            digest, _ = self.put_object(content)
            ref = records.next_ref(manifest, digest, self._previous(manifest), self._now())
            if not built_here:
                self.check_signed(ref, manifest)
            elif self.signing is not None and self.signing.key is not None:
                # Before the ref: no reader finds it unsigned.
                self.sign(ref, self.signing.key)
            path = self.layout.ref(ref.target, ref.environment)
            with writing(path):
                self._writer.directory(path.parent)
                self._writer.put(path, encode(ref))
        return ref

    def sign(self, ref: Ref, key: Path) -> bool:
        """Add the signature of a private key's file to the package that a ref names; False: it has it.

        Whoever signs says that the package may run. Raises ``StoreError``, ``ConfigurationError``.
        """
        from preheat.store import signing as signed

        return signed.sign(self._reader, self._writer, self.layout, ref, key, self._now())

    def accept_signatures(self, manifest: Manifest, data: bytes | None) -> None:
        """Check and keep what came with a package from elsewhere, before it is published.

        Raises ``UnsignedPackageError`` where signatures are required and no trusted key signed it.
        """
        from preheat.store import signing as signed

        self._ready_to_write()
        ref = signed.published_as(manifest, sha256(encode(manifest)))
        signed.accept(self._reader, self._writer, self.layout, self._signing(), ref, data)

    # upkeep

    def quarantine_ref(self, target: str, environment: Digest, *, reason: str) -> Path | None:
        """Take a ref out of use; the target then has no package. Returns where it lies now, or None.

        For damaged refs. One that was published at the same moment may be caught instead.
        """
        return self._quarantine(self.layout.ref(target, environment), reason)

    def quarantine_object(self, digest: Digest, *, reason: str) -> Path | None:
        """Take an object or manifest out of use, for whoever wants to look. None if it is not there."""
        return self._quarantine(self.layout.object(digest), reason)

    def sweep_temporary(self) -> tuple[Path, ...]:
        """Remove what writers left behind that are gone, and say what that was.

        Files of processes of this host that ended, and files more than a day old.
        """
        from preheat.store import upkeep

        return upkeep.sweep(self._files, self._reader, self.layout, self._now())

    def collector(self) -> Collector:
        """What deletes from this store. Raises ``StoreError`` when there is none."""
        from preheat.store.collecting import Collector

        if not self._is_there():
            raise StoreError(
                f"There is no store at {self.layout.root}.",
                remedy="Build something first, or check PREHEAT_STORE.",
            )
        return Collector(
            self._files,
            self._reader,
            self.layout,
            self.sweep_temporary,
            lambda: self._now().timestamp(),
        )

    def _ready_to_write(self) -> None:
        # Asked anew each time: somebody may have removed the whole store from under a daemon.
        if founding.is_founded(self._reader, self.layout):
            if not self._durable:
                with writing(self.layout.root):
                    founding.make_durable(self._writer, self.layout)
                self._durable = True
            return
        if not self._create:
            raise StoreError(
                f"There is no store at {self.layout.root}.",
                remedy="Open it with create=True, or check PREHEAT_STORE.",
            )
        founding.found(self._files, self._reader, self._writer, self.layout)

    def _previous(self, manifest: Manifest) -> Ref | None:
        try:
            return self.read_ref(manifest.target, environment_digest(manifest.environment))
        except (CorruptedError, UntrustedStoreError):
            return None  # it is about to be replaced

    def _has(self, needed: ObjectRef) -> bool:
        """Whether the object is there; then it is marked as used, and no collection takes it away now."""
        found = self._mark_used(self.layout.object(needed.sha256))
        return found is not None and found[0] == needed.size

    def _mark_used(self, path: Path) -> tuple[int, bool] | None:
        """Size of an object, and whether it could be marked: not another account's. None when it is gone."""
        opened = self._reader.open(path)
        if opened is None:
            return None
        try:
            self._files.touch(opened[0])
        except PermissionError:
            return opened[1], False
        finally:
            self._files.close(opened[0])
        return opened[1], True

    def _put_bytes(self, data: bytes) -> tuple[Digest, int]:
        digest = sha256(data)
        if not self.reuse(ObjectRef(name="", sha256=digest, size=len(data))):
            path = self.layout.object(digest)
            self._writer.directory(path.parent)
            self._commit(self._writer.stage((data,)), path)
        return digest, len(data)

    def _put_file(self, source: Path) -> tuple[Digest, int]:
        from preheat.store.incoming import Incoming

        incoming = Incoming(self._files, source)
        staged = self._writer.stage(incoming)
        try:
            if not self.reuse(ObjectRef(name="", sha256=incoming.digest, size=incoming.size)):
                path = self.layout.object(incoming.digest)
                self._writer.directory(path.parent)
                self._commit(staged, path)
                return incoming.digest, incoming.size
        except BaseException:
            self._writer.discard(staged)
            raise
        self._writer.discard(staged)
        return incoming.digest, incoming.size

    def _commit(self, staged: Path, path: Path) -> None:
        from preheat.store.turns import writers_turn

        try:
            with writers_turn(self._files, self.layout):
                self._writer.commit(staged, path)
        except BaseException:
            self._writer.discard(staged)
            raise

    def _touch(self, path: Path) -> bool:
        """Mark an object as used, in a turn in which it cannot be collected; False when it is gone."""
        from preheat.store.turns import writers_turn

        with writers_turn(self._files, self.layout):
            try:
                found = self._mark_used(path)
            except StoreError:
                return False
        return found is not None and found[1]

    def _quarantine(self, path: Path, reason: str) -> Path | None:
        self._ready_to_write()
        from preheat.store import upkeep

        return upkeep.quarantine(self._writer, self.layout, path, reason)
