"""Reading a store in a directory. No lock is waited for and nothing is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError, UntrustedStoreError
from preheat.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_REF_BYTES,
    Digest,
    Manifest,
    ObjectRef,
    Ref,
    decode_ref,
)
from preheat.store import founding, mapping, records
from preheat.store.files import Files
from preheat.store.layout import Layout, is_digest
from preheat.store.reading import Reader, VerifiedObject
from preheat.store.trust import Trust, TrustLevel

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    from preheat.store.keys import Signing
    from preheat.store.leases import Lease
    from preheat.store.protocol import OpenObject


class ReadableStore:
    """The half of ``DiskStore`` that reads; see there for what is promised."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        trust: TrustLevel,
        trusted_owners: frozenset[int],
        files: Files | None,
        signing: Signing | None,
    ) -> None:
        self.layout = Layout(Path(root).absolute())
        self.signing = signing
        self._files = Files() if files is None else files
        self._founded = False
        self._judge = Trust.of(trust, trusted_owners)
        self._reader = Reader(self._files, self._judge)

    @property
    def location(self) -> str:
        return str(self.layout.root)

    def __repr__(self) -> str:
        return f"DiskStore({self.location!r})"

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
        return founding.is_founded(self._reader, self.layout)

    def signatures(self, manifest: Digest) -> bytes | None:
        """The signatures of a manifest, to be carried along; None where there are none that can be read."""
        from preheat.store.signatures import MAX_SIGNATURES_BYTES

        try:
            return self._reader.read(self.layout.signatures(manifest), MAX_SIGNATURES_BYTES)
        except CorruptedError:
            return None

    def _is_there(self) -> bool:
        self._founded = self._founded or founding.is_founded(self._reader, self.layout)
        return self._founded

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
