"""Calls of a remote that may hang: in threads that may be left behind, with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from preheat.errors import RemoteError
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from preheatd.remotes.remote import Remote

_T = TypeVar("_T")


async def limited(name: str, seconds: float, call: Callable[..., _T], *arguments: object) -> _T:
    """What ``call`` returns or raises; ``RemoteError`` about ``name`` when that takes longer."""
    future = _in_thread(lambda: call(*arguments))
    try:
        async with asyncio.timeout(seconds):
            return await future
    except TimeoutError:
        raise _no_answer(name, seconds) from None


class Turns:
    """What one thread does here and what it asks a remote, by turns.

    Only while it asks may it be given up, and then nothing of what it does here happens any more.
    """

    def __init__(self) -> None:
        self._here = threading.Lock()
        self._asked_at: float | None = None
        self._given_up = False
        self._undo: Callable[[], None] = lambda: None

    def ask(self, call: Callable[..., _T], *arguments: object) -> _T:
        """What the remote answers or raises. The time limit is about each of these calls."""
        self._asked_at = time.monotonic()
        self._here.release()
        try:
            return call(*arguments)
        finally:
            self._here.acquire()
            self._asked_at = None
            self.check_wanted()

    def if_given_up(self, undo: Callable[[], None]) -> None:
        """Who gives it up calls ``undo``, once."""
        self._undo = undo

    def seconds_asked(self) -> float:
        """For how long the remote has not answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def run(self, work: Callable[[Turns], _T]) -> _T:
        """What ``work`` returns or raises."""
        with self._here:
            self.check_wanted()
            return work(self)

    def give_up(self) -> None:
        """Waits until what is done here is done, as far as the next question or check."""
        self._given_up = True
        with self._here:
            self._undo()

    def check_wanted(self) -> None:
        """Ends the work, by an exception, when nobody waits for it any more."""
        if self._given_up:
            raise _GivenUpError


class _GivenUpError(Exception):
    """Ends a thread that nobody waits for any more."""


async def in_turns(name: str, seconds: float, work: Callable[[Turns], _T]) -> _T:
    """What ``work`` returns or raises, all of it in one thread; it asks the remote through ``Turns``.

    Handing each piece of an object from thread to thread would take longer than hashing it. Raises
    ``RemoteError`` about ``name`` when one question takes longer than ``seconds``. After any exception, a
    cancellation among them, ``work`` does nothing here any more.
    """
    turns = Turns()
    future = _in_thread(lambda: turns.run(work))
    try:
        while not future.done():
            await asyncio.wait((future,), timeout=max(0.0, seconds - turns.seconds_asked()))
            if not future.done() and turns.seconds_asked() >= seconds:
                raise _no_answer(name, seconds)
        return future.result()
    finally:
        if not future.done():
            await uncancelled(asyncio.to_thread(turns.give_up))
            future.cancel()


def _no_answer(name: str, seconds: float) -> RemoteError:
    return RemoteError(
        f"{name} did not answer within {seconds:g} s.",
        remedy="Run the command again to go on from there, or raise --timeout.",
    )


def _in_thread(call: Callable[[], _T]) -> asyncio.Future[_T]:
    """What ``call`` returns or raises.

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
            result = call()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, daemon=True, name="remote").start()
    return future


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
