"""Graphs of a backend that another distribution brings.

An entry point of the group ``preheat.kinds``, named as the backend is for ``torch.compile``, leads to an
object (or a module) with ``serialize(compiled) -> bytes`` and ``deserialize(data) -> callable``. ``compiled``
is what the backend returned for one graph; the callable takes the graph's arguments one by one and returns
a tuple or list, as ``compiled`` does.

What ``serialize`` writes must mean the same in another process. Parameters are arguments of the graph, and
must not be in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from preheat.errors import CorruptedError, IncompatibleError, PreheatError, RefusedError
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.kinds.interface import Made, Place


class SerializableBackend(Protocol):
    """What an entry point leads to."""

    def serialize(self, compiled: Any) -> bytes:
        """Any exception refuses the package, with its text as the reason."""

    def deserialize(self, data: bytes) -> Callable[..., Any]:
        """Any exception refuses to load the form, with its text as the reason."""


class CustomKind:
    """One such backend. ``name`` is the backend's with ``custom/`` before it."""

    def __init__(self, name: str, backend: SerializableBackend) -> None:
        for method in ("serialize", "deserialize"):
            if not callable(getattr(backend, method, None)):
                raise TypeError(f"{backend!r} has no method {method!r}")
        self.name = name
        self._backend = backend

    def describe(self) -> str:
        return f"graphs of the backend {self.name.partition('/')[2]!r}"

    def prepare(self, made: Made) -> Any:
        return made.result

    def write(self, prepared: Any) -> bytes:
        try:
            data = self._backend.serialize(prepared)
        except PreheatError:
            raise
        except Exception as error:
            raise RefusedError(
                f"{self.describe()} cannot be serialized: {type(error).__name__}: {error}"[:1000]
            ) from error
        if not isinstance(data, bytes):
            raise RefusedError(
                f"{self.describe()} are serialized to {type(data).__name__}, not bytes"
            )
        return data

    def load(self, data: bytes, place: Place) -> CustomCode:
        return CustomCode(self, data)

    def deserialize(self, data: bytes) -> Callable[..., Any]:
        """The graph in these bytes. Raises ``IncompatibleError`` with the backend's reason."""
        try:
            call = self._backend.deserialize(data)
        except Exception as error:
            detail = f"it cannot be loaded: {type(error).__name__}: {error}"[:500]
            reason = Reason(kind="load_failed", symbol=self.name, detail=detail)
            raise IncompatibleError(reasons=[reason]) from error
        if not callable(call):
            raise CorruptedError(f"{self.describe()} are loaded as a {type(call).__name__}.")
        return call


class CustomCode:
    """One graph of such a backend."""

    def __init__(self, kind: CustomKind, data: bytes) -> None:
        self._kind = kind
        self._data = data
        self._call: Any = None

    def post_load(self) -> None:
        self._call = self._kind.deserialize(self._data)
        self._data = b""

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def release(self) -> None:
        """The backend learns nothing of it: what it loaded goes with the last reference."""
