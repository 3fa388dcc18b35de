"""Calls of a remote that may hang: each in a thread of its own, with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

from preheat.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from preheatd.remotes.remote import Remote

_T = TypeVar("_T")


async def limited(name: str, seconds: float, call: Callable[..., _T], *arguments: object) -> _T:
    """What ``call`` returns or raises; ``RemoteError`` about ``name`` when that takes longer.

    A thread cannot be stopped: one that hangs is left behind, and does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: _T | None = None
        failed: BaseException | None = None
        try:
            result = call(*arguments)
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, daemon=True, name="remote").start()
    try:
        async with asyncio.timeout(seconds):
            return await future
    except TimeoutError:
        raise RemoteError(
            f"{name} did not answer within {seconds:g} s.",
            remedy="Run the command again to go on from there, or raise --timeout.",
        ) from None


async def at_once(jobs: int, work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Do all of it, at most ``jobs`` at a time. The first failure ends the rest and is raised."""
    waiting = iter(work)

    async def turn() -> None:
        for one in waiting:
            await one()

    tasks = [asyncio.ensure_future(turn()) for _ in range(jobs)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def opened(url: str, seconds: float) -> Remote:
    """The remote at a URL; some ask their server for it. Raises ``ConfigurationError``, ``RemoteError``."""
    from preheatd.remotes.remote import Remote, without_secret

    return await limited(without_secret(url), seconds, Remote, url)
