"""Work that is carried to its end even when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_Result = TypeVar("_Result")


async def uncancelled(work: Coroutine[object, object, _Result]) -> _Result:
    """Finish ``work`` first; a cancellation that arrived meanwhile is raised afterwards.

    Not promised: that the wait is short. Use it for publishing, for reaping and for closing files,
    nothing else.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if not task.cancelled():
                cancelled = error
        except BaseException:  # noqa: S110 - raised by the last line, unless cancelled
            pass
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it a second time
        raise cancelled
    return task.result()
