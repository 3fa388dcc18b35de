"""How much room a store takes: measured in a thread, now and then, never while somebody waits."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from preheatd.clock import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FRESH_SECONDS = 60.0


class StoreSize(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at ``at`` (UTC, ISO 8601): files below the store, and room that is left there."""

    bytes: int
    files: int
    free_bytes: int
    at: str


def measure(path: Path) -> StoreSize:
    """Walk through a directory. What goes away meanwhile does not count. Blocks."""
    total = files = 0
    waiting = [str(path)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                        files += 1
        except OSError:
            continue
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        free = 0
    return StoreSize(bytes=total, files=files, free_bytes=free, at=utc_now())


class StoreMeter:
    """The size that was measured last. Asking for it starts another measurement when that is old."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._size: StoreSize | None = None
        self._measured_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def doubt(self) -> None:
        """Something was published: the next question starts a measurement."""
        self._measured_at = float("-inf")

    def size(self) -> StoreSize | None:
        """What is known; None before the first measurement has ended."""
        idle = self._task is None or self._task.done()
        if idle and self._clock() - self._measured_at >= FRESH_SECONDS:
            self._measured_at = self._clock()
            self._task = asyncio.create_task(self._measure(), name="store size")
        return self._size

    async def close(self) -> None:
        """Begin no measurement more, and forget the one that runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        self._size = await asyncio.to_thread(measure, self._path)
