"""The store in a directory: refs that move by one rename, objects that never change.

Writers need no lock to keep out of each other's way: names of temporary files are unique, objects are
named by their content, and a ref moves whole. With a collector they take turns of milliseconds
(``turns``). Readers wait for nobody.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError, StoreError, UntrustedStoreError
from preheat.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_REF_BYTES,
    Digest,
    Manifest,
    ObjectRef,
    Ref,
    decode_ref,
    encode,
    environment_digest,
    sha256,
)
from preheat.store import founding, mapping, records
from preheat.store.failures import writing
from preheat.store.files import Files
from preheat.store.layout import Layout, is_digest
from preheat.store.reading import Reader, VerifiedObject
from preheat.store.trust import Trust, TrustLevel

if TYPE_CHECKING:
    import datetime
    import mmap
    from collections.abc import Callable, Iterator

    from preheat.store.arrival import Arrival
    from preheat.store.collecting import Collector
    from preheat.store.keys import Signing
    from preheat.store.leases import Lease
    from preheat.store.protocol import OpenObject
    from preheat.store.writing import Writer


class DiskStore:
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
        self.layout = Layout(Path(root).absolute())
        self._files = Files() if files is None else files
        self._now = now
        self._create = create
        self._founded = False
        self._durable = False
        self.signing = signing
        judge = Trust.of(trust, trusted_owners)
        self._reader = Reader(self._files, judge)
        self._judge = judge
        if create:
            self._ready_to_write()

    @property
    def location(self) -> str:
        return str(self.layout.root)

    def __repr__(self) -> str:
        return f"DiskStore({self.location!r})"

    @functools.cached_property
    def _writer(self) -> Writer:
        # Here, and likewise below: most processes only read.
        from preheat.store.writing import Writer

        return Writer(self._files, self._judge, self.layout.temporary)

    # reading

    def read_ref(self, target: str, environment: Digest) -> Ref | None:
        path = self.layout.ref(target, environment)
        data = self._reader.read(path, MAX_REF_BYTES) if self._is_there() else None
        return None if data is None else records.parse_ref(data, target, environment, str(path))

    def read_manifest(self, digest: Digest) -> Manifest:
        manifest = self._find_manifest(digest)
        if manifest is None:
            raise records.missing_manifest(digest)
        return manifest

    def read_package(self, target: str, environment: Digest) -> tuple[Ref, Manifest] | None:
        return records.read_package(
            lambda: self.read_ref(target, environment),
            lambda ref: self._find_manifest(ref.manifest),
        )

    def check_signed(self, ref: Ref, manifest: Manifest) -> None:
        """Whether a trusted key signed this package, where that is asked for.

        ``ref`` and ``manifest`` are what ``read_package`` gave. Raises ``UnsignedPackageError``;
        ``ConfigurationError`` for an impossible level.
        """
        signing = self._signing()
        if not signing.is_on:
            return
        from preheat.store import signing as signed

        signed.check_signed(self._reader, self.layout, signing, ref, manifest)

    def _signing(self) -> Signing:
        from preheat.store.keys import signing_of

        return signing_of(os.environ) if self.signing is None else self.signing

    def open_object(self, ref: ObjectRef) -> OpenObject:
        path = self.layout.object(ref.sha256)
        opened = self._reader.open(path)
        if opened is None:
            raise CorruptedError(f"{path} ({ref.name}) is not in the store.")
        descriptor, size = opened
        try:
            records.check_declared_size(ref, size, str(path))
            if (mapped := self._mapped(descriptor, ref)) is not None:
                return VerifiedObject(self._files, descriptor, mapped)
            data = self._reader.read_descriptor(path, descriptor, size)
            if data is None:
                raise CorruptedError(f"{path} ({ref.name}) is not in the store any more.")
            records.check_digest(data, ref.sha256, str(path))
        except BaseException:
            self._files.close(descriptor)
            raise
        return VerifiedObject(self._files, descriptor, data)

    def lease(self, digest: Digest) -> Lease | None:
        """Keep a package from being collected while the lease lives; None when it is gone or going.

        ``digest`` is its manifest's. Never raises and never fails a load: see ``preheat.store.leases``.
        """
        from preheat.store import leases

        return leases.take(self._files, self._reader, self.layout.object(digest))

    def pieces(self, ref: ObjectRef) -> Iterator[bytes]:
        """The bytes of an object in pieces, for objects that need not be in memory at once.

        They are verified as they pass: what was handed out counts only when the iteration has ended.
        Raises ``CorruptedError`` for an object that is missing, or at its end when it is not the one that
        was asked for; ``UntrustedStoreError``.
        """
        from preheat.store.arrival import pieces

        path = self.layout.object(ref.sha256)
        opened = self._reader.open(path)
        if opened is None:
            raise CorruptedError(f"{path} ({ref.name}) is not in the store.")
        return pieces(self._files, path, opened, ref)

    def refs(self, target: str | None = None) -> Iterator[Ref]:
        if not self._is_there():
            return
        if target is not None:
            directories = [self.layout.target(target)]
        else:
            names = self._reader.names(self.layout.refs)
            directories = [self.layout.refs / name for name in names]
        for directory in directories:
            yield from self._refs_in(directory)

    def manifest_digests(self) -> frozenset[Digest]:
        """The manifests that readable refs name."""
        return frozenset(ref.manifest for ref in self.refs())

    def object_digests(self) -> Iterator[Digest]:
        """Every object on disk, manifests among them, damaged ones too."""
        for prefix in self._reader.names(self.layout.objects):
            yield from filter(is_digest, self._reader.names(self.layout.objects / prefix))

    def object_problem(self, ref: ObjectRef) -> str:
        """What a look at an object's name tells, without reading it; empty where nothing is wrong."""
        try:
            status = self._files.lstat(self.layout.object(ref.sha256))
        except OSError:
            return "is not in the store"
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        found = status.st_size
        return "" if found == ref.size else f"has {found} bytes instead of {ref.size}"

    def answers(self) -> bool:
        """Whether the store is there and can be read. Blocks for as long as the file system does."""
        from preheat.store import founding

        return founding.is_founded(self._reader, self.layout)

    # writing

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
            self._writer.sync(path.parent)
            self._writer.sync(path.parent.parent)
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

    def signatures(self, manifest: Digest) -> bytes | None:
        """The signatures of a manifest, to be carried along; None where there are none that can be read."""
        from preheat.store.signatures import MAX_SIGNATURES_BYTES

        try:
            return self._reader.read(self.layout.signatures(manifest), MAX_SIGNATURES_BYTES)
        except CorruptedError:
            return None

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

    def _is_there(self) -> bool:
        self._founded = self._founded or founding.is_founded(self._reader, self.layout)
        return self._founded

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

    def _find_manifest(self, digest: Digest) -> Manifest | None:
        path = self.layout.object(digest)
        data = self._reader.read(path, MAX_MANIFEST_BYTES)
        return None if data is None else records.parse_manifest(data, digest, str(path))

    def _mapped(self, descriptor: int, ref: ObjectRef) -> mmap.mmap | None:
        """The object's verified bytes in shared memory; None where they are to be read instead."""
        if ref.size < mapping.LEAST_BYTES:
            return None
        try:
            if mapping.may_map(self._judge, self._files.fstat(descriptor)):
                return mapping.map_verified(self._files, descriptor, ref.size, ref.sha256)
        except (OSError, ValueError):
            pass  # reading says what is wrong, if anything is
        return None

    def _refs_in(self, directory: Path) -> Iterator[Ref]:
        for name in self._reader.names(directory):
            path = directory / name
            try:
                data = self._reader.read(path, MAX_REF_BYTES)
                if data is None:
                    continue
                ref = decode_ref(data, where=str(path))
                records.parse_ref(data, ref.target, ref.environment, str(path))
            except (CorruptedError, UntrustedStoreError):
                continue
            if self.layout.ref(ref.target, ref.environment) == path:
                yield ref

    def _previous(self, manifest: Manifest) -> Ref | None:
        try:
            return self.read_ref(manifest.target, environment_digest(manifest.environment))
        except (CorruptedError, UntrustedStoreError):
            return None  # it is about to be replaced

    def _has(self, needed: ObjectRef) -> bool:
        """Whether the object is there; then it is marked as used, and no collection takes it away now."""
        opened = self._reader.open(self.layout.object(needed.sha256))
        if opened is None:
            return False
        try:
            self._files.touch(opened[0])
        except PermissionError:
            pass  # another account's
        finally:
            self._files.close(opened[0])
        return opened[1] == needed.size

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
                opened = self._reader.open(path)
            except StoreError:
                return False
            if opened is None:
                return False
            try:
                self._files.touch(opened[0])
            except PermissionError:
                return False  # another account's
            finally:
                self._files.close(opened[0])
        return True

    def _quarantine(self, path: Path, reason: str) -> Path | None:
        self._ready_to_write()
        from preheat.store import upkeep

        return upkeep.quarantine(self._writer, self.layout, path, reason)
