"""A store of one's own, and read-only layers below it: a shared directory, a store baked into an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from preheat.errors import CorruptedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from preheat.manifest import Digest, Manifest, ObjectRef, Ref
    from preheat.store.protocol import OpenObject, Store

_T = TypeVar("_T")


class LayeredStore:
    """A ``Store`` that reads ``top`` and then ``layers``, in this order, and writes ``top`` alone.

    The first that has a thing gives it. A layer that cannot be read, because its mount is gone or it is not
    to be trusted, is passed over; ``top`` is not. ``preheat.load`` does more: it tries the package of each
    of ``stores`` until one fits, so that a stale package in front does not hide a fresh one behind.

    Not promised: anything about a mount that hangs instead of failing, nor about code that was mapped from a
    network file system which goes away while it runs.
    """

    def __init__(self, top: Store, layers: Sequence[Store]) -> None:
        self._top = top
        self._layers = tuple(layers)

    @property
    def stores(self) -> tuple[Store, ...]:
        """All of them, the one that is written first."""
        return self._top, *self._layers

    @property
    def location(self) -> str:
        return ":".join(store.location for store in self.stores)

    def __repr__(self) -> str:
        return f"LayeredStore({', '.join(repr(store) for store in self.stores)})"

    def read_ref(self, target: str, environment: Digest) -> Ref | None:
        found = (
            self._ask(one, lambda store: store.read_ref(target, environment)) for one in self.stores
        )
        return next((ref for ref in found if ref is not None), None)

    def read_package(self, target: str, environment: Digest) -> tuple[Ref, Manifest] | None:
        found = (
            self._ask(one, lambda store: store.read_package(target, environment))
            for one in self.stores
        )
        return next((package for package in found if package is not None), None)

    def read_manifest(self, digest: Digest) -> Manifest:
        return self._first(lambda store: store.read_manifest(digest))

    def open_object(self, ref: ObjectRef) -> OpenObject:
        return self._first(lambda store: store.open_object(ref))

    def refs(self, target: str | None = None) -> Iterator[Ref]:
        """Each name once, from the first that has it."""
        seen: set[tuple[str, str]] = set()
        for one in self.stores:
            found = self._ask(one, lambda store: list(store.refs(target)))
            for ref in found or ():
                if (ref.target, ref.environment) not in seen:
                    seen.add((ref.target, ref.environment))
                    yield ref

    def put_object(self, data: bytes | Path) -> tuple[Digest, int]:
        return self._top.put_object(data)

    def publish(self, manifest: Manifest) -> Ref:
        """See ``Store``. Objects that only a layer has do not count: ``top`` must be whole by itself."""
        return self._top.publish(manifest)

    def _ask(self, one: Store, question: Callable[[Store], _T]) -> _T | None:
        """The answer; None from a layer that cannot be read."""
        try:
            return question(one)
        except StoreError:
            if one is self._top:
                raise
            return None

    def _first(self, question: Callable[[Store], _T]) -> _T:
        """The answer of the first that has one; else what the top says."""
        missing: StoreError | None = None
        for store in self.stores:
            try:
                return question(store)
            except StoreError as error:
                if store is self._top and not isinstance(error, CorruptedError):
                    raise
                missing = missing or error
        assert missing is not None
        raise missing
