"""Both kinds of store behind one handle, so that the same test can damage either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from preheat.forms import FormOpener
from preheat.manifest import Form, ObjectRef
from preheat.store import DiskStore, MemoryStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from preheat.manifest import Digest, Ref

KINDS = ("disk", "memory")


class Held(Protocol):
    """A store, and what can befall it."""

    @property
    def store(self) -> Store: ...
    def alter_object(self, digest: Digest, data: bytes) -> None: ...
    def alter_ref(self, target: str, environment: Digest, data: bytes) -> None: ...
    def remove_object(self, digest: Digest) -> None: ...
    def overtaken(self, between: Callable[[], None]) -> Store:
        """The same store for a reader; ``between`` runs after it has read a ref for the first time."""

    def left_over(self) -> list[Path]: ...


class _Overtaken:
    looks = 0

    def __init__(self, read: Callable[[str, Digest], Ref | None], between: Callable[[], None]):
        self._read = read
        self._between = between

    def __call__(self, target: str, environment: Digest) -> Ref | None:
        ref = self._read(target, environment)
        self.looks += 1
        if self.looks == 1:
            self._between()
        return ref


class HeldOnDisk:
    """A store in a directory."""

    def __init__(self, root: Path) -> None:
        self.store = DiskStore(root, create=True)

    def alter_object(self, digest: Digest, data: bytes) -> None:
        _rewrite(self.store.layout.object(digest), data)

    def alter_ref(self, target: str, environment: Digest, data: bytes) -> None:
        _rewrite(self.store.layout.ref(target, environment), data)

    def remove_object(self, digest: Digest) -> None:
        self.store.layout.object(digest).unlink()

    def overtaken(self, between: Callable[[], None]) -> Store:
        reader = DiskStore(self.store.layout.root)
        reader.read_ref = _Overtaken(reader.read_ref, between)  # type: ignore[method-assign]
        return reader

    def left_over(self) -> list[Path]:
        return list(self.store.layout.temporary.iterdir())


class HeldInMemory:
    """A store in memory, whose bytes are changed behind its back."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def alter_object(self, digest: Digest, data: bytes) -> None:
        assert digest in self.store._objects
        self.store._objects[digest] = data

    def alter_ref(self, target: str, environment: Digest, data: bytes) -> None:
        assert (target, environment) in self.store._refs
        self.store._refs[target, environment] = data

    def remove_object(self, digest: Digest) -> None:
        del self.store._objects[digest]

    def overtaken(self, between: Callable[[], None]) -> Store:
        reader = MemoryStore()
        reader._objects, reader._refs = self.store._objects, self.store._refs
        reader.read_ref = _Overtaken(reader.read_ref, between)  # type: ignore[method-assign]
        return reader

    def left_over(self) -> list[Path]:
        return []


def held(kind: str, directory: Path) -> Held:
    """An empty store of a kind; one on disk is ``directory``."""
    return HeldOnDisk(directory) if kind == "disk" else HeldInMemory()


def opener_of(store: Store, contents: Mapping[str, bytes]) -> FormOpener:
    """Opens these contents by name, from a store that they are put into."""
    objects = []
    for name, content in contents.items():
        digest, size = store.put_object(content)
        objects.append(ObjectRef(name=name, sha256=digest, size=size))
    return FormOpener(store, Form(kind="lean", format=0, objects=tuple(objects)))


def _rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
