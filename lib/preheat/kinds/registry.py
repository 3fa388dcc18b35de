"""Which module implements a kind, and which kind a backend's graphs are of."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

from preheat.errors import IncompatibleError, RefusedError
from preheat.formats import CUSTOM, unknown_kind
from preheat.verdict import Reason

if TYPE_CHECKING:
    from preheat.kinds.interface import Kind

GROUP: Final = "preheat.kinds"
_MODULES: Final = {
    "inductor": ("preheat.kinds.inductor", "InductorKind"),
    "eager": ("preheat.kinds.traced", "EagerKind"),
    "aot_eager": ("preheat.kinds.traced", "AotEagerKind"),
    "regional": ("preheat.kinds.regional", "RegionalKind"),
    "aoti": ("preheat.kinds.aoti", "AotiKind"),
}
_BACKENDS: Final = {
    "inductor": "inductor",
    "eager": "eager",
    "aot_eager": "aot_eager",
    "regional_inductor": "regional",
}


@functools.cache
def find(name: str) -> Kind:
    """The kind of this name.

    Raises ``IncompatibleError`` with a reason for one that neither this version nor an installed
    distribution's entry point knows.
    """
    if name.startswith(CUSTOM):
        return _custom(name)
    if name not in _MODULES:
        raise IncompatibleError(reasons=[unknown_kind(name)])
    module, attribute = _MODULES[name]
    kind: Kind = getattr(importlib.import_module(module), attribute)()
    return kind


def of_backend(backend: str) -> Kind:
    """The kind of what a ``torch.compile`` backend makes.

    Raises ``RefusedError`` for a backend whose graphs no kind can store.
    """
    if backend in _BACKENDS:
        return find(_BACKENDS[backend])
    if is_custom(backend):
        return find(CUSTOM + backend)
    raise RefusedError(
        f"backend {backend!r} makes no artifact that can be stored",
        remedy=f"A distribution can teach preheat the backend, by an entry point of the group {GROUP!r}.",
    )


def is_custom(backend: str) -> bool:
    """Whether another distribution says how this backend's graphs are stored."""
    return backend not in _BACKENDS and backend in _entry_points()


def module_of(backend: str) -> frozenset[str]:
    """Top-level name of the module that stores a backend's graphs, where another distribution brings it."""
    if not is_custom(backend):
        return frozenset()
    return frozenset({_entry_points()[backend].module.partition(".")[0]})


def _custom(name: str) -> Kind:
    found = _entry_points().get(name.removeprefix(CUSTOM))
    if found is None:
        raise IncompatibleError(reasons=[unknown_kind(name)])
    from preheat.kinds.custom import CustomKind

    try:
        return CustomKind(name, found.load())
    except Exception as error:
        detail = f"its entry point cannot be loaded: {type(error).__name__}: {error}"[:500]
        reason = Reason(kind="unknown_kind", symbol=name, detail=detail)
        raise IncompatibleError(reasons=[reason]) from error


@functools.cache
def _entry_points() -> dict[str, Any]:
    # Only programs with another backend than torch's own pay for looking through what is installed.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}
