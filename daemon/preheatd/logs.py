"""A build's log file: everything at first, then the head and the tail of what came."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

import aiofiles

from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from pathlib import Path

    from aiofiles.threadpool.binary import AsyncBufferedIOBase

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 192 * 1024


class BoundedLog:
    """Writes a file that never holds more than ``head + 2 * tail`` bytes, and in the end the first
    ``head`` and at least the last ``tail`` bytes of what was written.

    Not promised: that a line at the cut between both is whole, or that anything is kept when the
    disk is full. A log that cannot be written never fails a build.
    """

    def __init__(self, path: Path, *, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._path = path
        self._head = head
        self._tail = tail
        self._size = 0
        self._dropped = 0
        self._recent = bytearray()
        self._file: AsyncBufferedIOBase | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await uncancelled(self._open())
        except BaseException:
            # Nobody will leave what was never entered.
            await uncancelled(self._close())
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await uncancelled(self._close())

    async def _open(self) -> None:
        with contextlib.suppress(OSError):
            self._file = await aiofiles.open(self._path, "wb")

    async def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                await file.close()

    async def write(self, data: bytes) -> None:
        """Append, and drop from the middle when the file has grown too long."""
        if self._file is None:
            return
        # Both streams of a process are copied at the same time; compacting takes several steps.
        async with self._turn:
            with contextlib.suppress(OSError):
                await self._append(self._file, data)

    async def _append(self, file: AsyncBufferedIOBase, data: bytes) -> None:
        room = max(0, self._head - self._size)
        self._size += min(room, len(data))
        self._recent += data[room:]
        await file.write(data)
        if len(self._recent) > 2 * self._tail:
            await self._compact(file)
        await file.flush()

    async def note(self, text: str) -> None:
        """Append a line of preheat's own."""
        await self.write(f"[preheat] {text}\n".encode())

    async def _compact(self, file: AsyncBufferedIOBase) -> None:
        self._dropped += len(self._recent) - self._tail
        del self._recent[: -self._tail]
        await file.flush()
        await file.seek(self._head)
        await file.truncate(self._head)
        await file.write(f"\n[preheat] {self._dropped} bytes left out here\n".encode())
        await file.write(bytes(self._recent))
