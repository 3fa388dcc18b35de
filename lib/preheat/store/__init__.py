"""Refs, manifests and objects on disk or in memory.

Importing this stays light: no torch, no asyncio, no lock library, and what only writers need comes when
it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.store.disk import DiskStore
from preheat.store.location import find_store, find_stores

if TYPE_CHECKING:
    from preheat.store.layered import LayeredStore
    from preheat.store.locks import build_lock
    from preheat.store.memory import MemoryStore
    from preheat.store.protocol import OpenObject, Store
    from preheat.store.transfer import copy_package

__all__ = [
    "DiskStore",
    "LayeredStore",
    "MemoryStore",
    "OpenObject",
    "Store",
    "build_lock",
    "copy_package",
    "find_store",
    "find_stores",
]

_LATER = {
    "LayeredStore": "preheat.store.layered",
    "MemoryStore": "preheat.store.memory",
    "OpenObject": "preheat.store.protocol",
    "Store": "preheat.store.protocol",
    "build_lock": "preheat.store.locks",
    "copy_package": "preheat.store.transfer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)
