"""What a store can do; the disk store and the memory store both do exactly this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from pathlib import Path

    from preheat.manifest import Digest, Manifest, ObjectRef, Ref


@runtime_checkable
class OpenObject(Protocol):
    """An object that was opened and whose bytes were verified.

    ``path()`` is a path to exactly those bytes, good for loading a shared library, valid until
    ``close()`` or until the object is dropped. It leads through ``/proc/self/fd`` to the verified
    descriptor and is spelled differently for every object, because the dynamic linker takes equal
    spellings for the same library. ``read()`` gives the bytes that were verified, until ``close()``.
    ``writable()`` gives them to keep and to change, without a copy where the store can do that.
    """

    def read(self) -> bytes: ...
    def writable(self) -> bytearray | mmap.mmap: ...
    def path(self) -> str: ...
    def close(self) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Refs, manifests and objects. Reading takes no lock and writes nothing.

    Besides the errors that are named, each method may raise ``StoreError`` for what cannot be read or
    written at all; none raises ``OSError``.
    """

    @property
    def location(self) -> str:
        """For messages: where the store is."""

    def read_ref(self, target: str, environment: Digest) -> Ref | None:
        """The current ref, or None. Raises ``CorruptedError``, ``UntrustedStoreError``."""

    def read_manifest(self, digest: Digest) -> Manifest:
        """Raises ``CorruptedError`` when it is missing or damaged."""

    def read_package(self, target: str, environment: Digest) -> tuple[Ref, Manifest] | None:
        """Ref and manifest together; when the manifest vanished between, the ref is read once more."""

    def open_object(self, ref: ObjectRef) -> OpenObject:
        """Open and verify size and sha256. Raises ``CorruptedError``, ``UntrustedStoreError``."""

    def refs(self, target: str | None = None) -> Iterator[Ref]:
        """All readable refs (of one target); damaged ones are left out."""

    def put_object(self, data: bytes | Path) -> tuple[Digest, int]:
        """Store bytes, or a file's bytes, and say digest and size. Idempotent, durable on return."""

    def publish(self, manifest: Manifest) -> Ref:
        """Store the manifest and point the ref of its target and environment to it: one rename.

        Every object that it names must be there already (else ``StoreError``). Concurrent
        publishers of one name: the last one wins, each reader sees one of them whole.
        """


class ObjectOpener(Protocol):
    """Opens the objects of one form by their names inside of the package."""

    def names(self) -> tuple[str, ...]: ...
    def open(self, name: str) -> OpenObject: ...
