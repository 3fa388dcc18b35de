"""Waits until a burst of changes is over, as ``settle`` decides."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from preheatd import settle

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.watch import Watcher


async def until_settled(watcher: Watcher, project: Path) -> None:
    """Return when the burst that ``watcher`` heard is over."""
    while True:
        locked = await asyncio.to_thread(_is_locked, project)
        wait = settle.seconds_to_wait(watcher.burst(), time.monotonic(), locked=locked)
        if wait <= 0:
            return
        await asyncio.sleep(wait)


def _is_locked(project: Path) -> bool:
    """Whether version control is rewriting files, in the project or a directory above it."""
    return any(
        (place / name).exists()
        for place in (project, *project.parents)
        for name in settle.LOCK_FILES
    )
