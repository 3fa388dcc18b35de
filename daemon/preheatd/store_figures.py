"""How large a store is, without walking through all of it each time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from typing import TYPE_CHECKING

from preheat.store.layout import is_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.store.layout import Layout

# File systems stamp directories with coarse clocks: a change right after the look could leave the time
# as it was.
_SETTLE_NS = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class Size:
    """So many objects, manifests among them, with so many bytes."""

    objects: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class _Looked:
    mtime_ns: int
    settled: bool
    size: Size


class StoreFigures:
    """Counts the objects of one store; a part of it is read again only when something came or went.

    Objects never change, so the time of their directory tells. Blocks; safe for threads. Not promised:
    that an object which comes meanwhile is counted.
    """

    def __init__(self, layout: Layout, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._objects = layout.objects
        self._now_ns = now_ns
        self._parts: dict[str, _Looked] = {}
        self._turn = threading.Lock()

    def look(self) -> Size:
        """How large it is now. What cannot be read counts as nothing."""
        with self._turn:
            parts: dict[str, _Looked] = {}
            with contextlib.suppress(OSError), os.scandir(self._objects) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        parts[entry.name] = self._part(entry)
            self._parts = parts
            sizes = [part.size for part in parts.values()]
        return Size(sum(one.objects for one in sizes), sum(one.bytes for one in sizes))

    def _part(self, entry: os.DirEntry[str]) -> _Looked:
        mtime_ns = entry.stat(follow_symlinks=False).st_mtime_ns
        known = self._parts.get(entry.name)
        if known is not None and known.settled and known.mtime_ns == mtime_ns:
            return known
        settled = abs(self._now_ns() - mtime_ns) > _SETTLE_NS
        return _Looked(mtime_ns, settled, _size(entry.path))


def _size(directory: str) -> Size:
    with os.scandir(directory) as entries:
        sizes = [
            entry.stat(follow_symlinks=False).st_size for entry in entries if is_digest(entry.name)
        ]
    return Size(len(sizes), sum(sizes))
