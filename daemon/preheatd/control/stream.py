"""Events for those who follow the daemon: numbered, replayed for a while, bounded for each follower.

A follower that does not read loses its place instead of memory or time of the daemon: when more waits
for it than is allowed, it is dropped, and told nothing more.
"""

from __future__ import annotations

import asyncio
import collections
import secrets
from typing import TYPE_CHECKING, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheatd.events import Event

KEPT_EVENTS = 512
BACKLOG_EVENTS = 1024
BACKLOG_BYTES = 1024 * 1024
MAX_FOLLOWERS = 32


class Follower:
    """One who follows: a queue of encoded events, and what to call when it is dropped.

    A context manager; at the end it follows no more.
    """

    def __init__(self, stream: Stream, dropped: Callable[[], None]) -> None:
        self._stream = stream
        self._dropped = dropped
        self._queue: collections.deque[bytes] = collections.deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self.is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.remove(self)

    async def next(self) -> bytes:
        """All that waits, at least one event; empty when nothing will come any more."""
        while self.is_open and not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        taken = b"".join(self._queue)
        self._queue.clear()
        self._bytes = 0
        return taken if self.is_open else b""

    def put(self, data: bytes) -> None:
        """One event more; too many drop the follower."""
        self._bytes += len(data)
        self._queue.append(data)
        if len(self._queue) > BACKLOG_EVENTS or self._bytes > BACKLOG_BYTES:
            self.close()
            self._dropped()
        self._arrived.set()

    def close(self) -> None:
        """Nothing more will come, and what waits is forgotten."""
        self.is_open = False
        self._queue.clear()
        self._bytes = 0
        self._arrived.set()


class Stream:
    """Hands events to followers, as server-sent events (``text/event-stream``).

    Everything happens in the event loop. The last ``KEPT_EVENTS`` events, and at most
    ``BACKLOG_BYTES`` of them, can be replayed to one that was away for a while.
    """

    def __init__(self) -> None:
        # Numbers of another life of the daemon mean nothing in this one.
        self._life = secrets.token_hex(4)
        self._number = 0
        self._kept: collections.deque[tuple[int, bytes]] = collections.deque()
        self._kept_bytes = 0
        self._followers: set[Follower] = set()

    @property
    def followers(self) -> int:
        """How many follow now."""
        return len(self._followers)

    def publish(self, event: Event) -> None:
        """Hand an event to all that follow."""
        self._number += 1
        text = msgspec.json.encode(event)
        data = b"id: %s-%d\ndata: %s\n\n" % (self._life.encode(), self._number, text)
        self._keep(data)
        for follower in tuple(self._followers):
            follower.put(data)
            if not follower.is_open:
                self._followers.discard(follower)

    def follow(self, after: str, dropped: Callable[[], None]) -> Follower | None:
        """Follow from now on, or from behind the event ``after``; None when too many do already.

        Where events are missing in between, the first one is of the type ``gap``.
        """
        if len(self._followers) >= MAX_FOLLOWERS:
            return None
        follower = Follower(self, dropped)
        for data in self._missed(after):
            follower.put(data)
        self._followers.add(follower)
        return follower

    def remove(self, follower: Follower) -> None:
        """This one follows no more."""
        self._followers.discard(follower)

    def close(self) -> None:
        """Nobody follows any more."""
        for follower in self._followers:
            follower.close()
        self._followers.clear()

    def _keep(self, data: bytes) -> None:
        self._kept.append((self._number, data))
        self._kept_bytes += len(data)
        while len(self._kept) > KEPT_EVENTS or self._kept_bytes > BACKLOG_BYTES // 2:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _missed(self, after: str) -> list[bytes]:
        if not after:
            return []
        life, _, number = after.rpartition("-")
        seen = int(number) if number.isascii() and number.isdecimal() and len(number) < 20 else -1
        oldest = self._number - len(self._kept)
        if life != self._life or not oldest <= seen <= self._number:
            return [b"event: gap\ndata: {}\n\n"]
        return [data for at, data in self._kept if at > seen]
