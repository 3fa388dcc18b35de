"""Refs, manifests and objects on disk or in memory.

Importing this stays light: no torch, no asyncio, no lock library.
"""

from preheat.store.disk import DiskStore
from preheat.store.location import find_store
from preheat.store.locks import build_lock
from preheat.store.memory import MemoryStore
from preheat.store.protocol import OpenObject, Store
from preheat.store.transfer import copy_package

__all__ = [
    "DiskStore",
    "MemoryStore",
    "OpenObject",
    "Store",
    "build_lock",
    "copy_package",
    "find_store",
]
