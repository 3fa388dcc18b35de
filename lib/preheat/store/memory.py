"""The store in memory: for tests, and for a process that keeps its packages to itself."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from preheat.errors import CorruptedError
from preheat.manifest import (
    Digest,
    Manifest,
    ObjectRef,
    Ref,
    encode,
    environment_digest,
    sha256,
)
from preheat.store import records
from preheat.store.files import Files
from preheat.store.incoming import Incoming
from preheat.store.reading import VerifiedObject

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheat.store.protocol import OpenObject


class MemoryStore:
    """A ``Store`` that lives as long as the object.

    Refs and manifests go through the same JSON as on disk. Safe for threads; not shared between
    processes. There is nobody to mistrust, so ``UntrustedStoreError`` is never raised.
    """

    def __init__(self, *, now: Callable[[], datetime.datetime] = records.utc_now) -> None:
        self._now = now
        self._files = Files()
        self._lock = threading.Lock()
        self._objects: dict[Digest, bytes] = {}
        self._refs: dict[tuple[str, Digest], bytes] = {}

    @property
    def location(self) -> str:
        return "memory"

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._refs)} refs, {len(self._objects)} objects)"

    def read_ref(self, target: str, environment: Digest) -> Ref | None:
        data = self._refs.get((target, environment))
        return None if data is None else records.parse_ref(data, target, environment, "ref")

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

    def open_object(self, ref: ObjectRef) -> OpenObject:
        """See ``Store``. The path is that of an anonymous file in memory: a copy of the bytes."""
        data = self._objects.get(ref.sha256)
        if data is None:
            raise CorruptedError(f"The object {ref.sha256} ({ref.name}) is not in the store.")
        where = f"The object {ref.sha256} ({ref.name})"
        records.check_declared_size(ref, len(data), where)
        records.check_digest(data, ref.sha256, where)
        descriptor = os.memfd_create("preheat", os.MFD_CLOEXEC)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._files.write(descriptor, rest) :]
        except BaseException:
            self._files.close(descriptor)
            raise
        return VerifiedObject(self._files, descriptor, data)

    def refs(self, target: str | None = None) -> Iterator[Ref]:
        for name, environment in sorted(self._refs):
            if target in (None, name) and (ref := self._readable_ref(name, environment)):
                yield ref

    def put_object(self, data: bytes | Path) -> tuple[Digest, int]:
        content = data if isinstance(data, bytes) else b"".join(Incoming(self._files, data))
        digest = sha256(content)
        # What was damaged is replaced.
        self._objects[digest] = content
        return digest, len(content)

    def publish(self, manifest: Manifest) -> Ref:
        """See ``Store``. Generations of one name are all different here."""
        content = records.encode_checked(manifest)
        for needed in manifest.objects():
            if len(self._objects.get(needed.sha256, b"")) != needed.size:
                raise records.missing_object(manifest, needed)
        digest, _ = self.put_object(content)
        name = (manifest.target, environment_digest(manifest.environment))
        with self._lock:
            ref = records.next_ref(manifest, digest, self._readable_ref(*name), self._now())
            self._refs[name] = encode(ref)
        return ref

    def _readable_ref(self, target: str, environment: Digest) -> Ref | None:
        try:
            return self.read_ref(target, environment)
        except CorruptedError:
            return None

    def _find_manifest(self, digest: Digest) -> Manifest | None:
        data = self._objects.get(digest)
        return None if data is None else records.parse_manifest(data, digest, digest)
