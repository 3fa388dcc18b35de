"""Holding a build lease: renewed while the build runs, and ended with how that came out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

import msgspec

from preheat.errors import RemoteError
from preheatd.flight.lease import MAX_MESSAGE_CHARACTERS
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from preheatd.flight.lease import BuildLease, LeaseState

# So that others see a sign of life in time, even one or two that get lost and what they see late.
RENEWALS_A_LENGTH = 4
_ENDING_SECONDS = 10.0


class Holding:
    """Inside, a task renews the lease; at the end it says how it ended: ``abandoned``, unless told otherwise.

    A renewal that fails is tried again at the time of the next one; nothing is ever raised. Also a build that
    is cancelled ends its lease, so that others need not wait for it to expire.
    """

    def __init__(
        self,
        lease: BuildLease,
        write: Callable[[BuildLease], Coroutine[object, object, None]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._lease = lease
        self._write = write
        self._sleep = sleep
        self._end: dict[str, Any] = {"state": "abandoned"}
        self._task: asyncio.Task[None] | None = None

    def ends(
        self,
        state: LeaseState,
        *,
        manifest: str | None = None,
        message: str = "",
        refused: bool = False,
    ) -> None:
        """How the build came out."""
        self._end = {
            "state": state,
            "manifest": manifest,
            "message": message[:MAX_MESSAGE_CHARACTERS],
            "refused": refused,
        }

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._renew())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._lease = msgspec.structs.replace(self._lease, **self._end)
        with contextlib.suppress(RemoteError, TimeoutError):
            async with asyncio.timeout(_ENDING_SECONDS):
                await self._write(self._lease)

    async def _renew(self) -> None:
        while True:
            await self._sleep(self._lease.patience / RENEWALS_A_LENGTH)
            self._lease = msgspec.structs.replace(self._lease, renewals=self._lease.renewals + 1)
            with contextlib.suppress(RemoteError):
                # To its end: a write that is left behind could come after the last one.
                await uncancelled(self._write(self._lease))
