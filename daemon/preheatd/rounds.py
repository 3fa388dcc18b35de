"""The daemon's rounds of looking and planning, for those who need facts newer than their question."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Rounds:
    """Counts rounds and wakes those who wait for one. ``wake`` asks for a round soon."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._begun = 0
        self._waiting: dict[asyncio.Future[None], int] = {}

    def begin(self) -> None:
        """A round begins: what it finds out is newer than everything asked before."""
        self._begun += 1

    def end(self, trouble: Exception | None = None) -> None:
        """The round that began last has ended; ``trouble`` says why it came to nothing."""
        for future, wanted in list(self._waiting.items()):
            if wanted <= self._begun and not future.done():
                if trouble is None:
                    future.set_result(None)
                else:
                    future.set_exception(trouble)

    async def after_now(self, *, ask: bool = True) -> None:
        """Wait until a round has ended that began after this call; without ``ask`` it may take a while.

        Raises what the round failed with.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = self._begun + 1
        if ask:
            self._wake()
        try:
            await future
        finally:
            del self._waiting[future]
