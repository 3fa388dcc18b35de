"""Following a daemon's events: numbered, replayed, and bounded for each follower."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from preheatd.control import stream
from preheatd.control.stream import Follower, Stream
from preheatd.events import Event


def event(detail: str = "", action: str = "changed") -> Event:
    return Event(action=action, detail=detail)


def follow(made: Stream, after: str = "", dropped: list[str] | None = None) -> Follower:
    calls = [] if dropped is None else dropped
    follower = made.follow(after, lambda: calls.append("dropped"))
    assert follower is not None
    return follower


def parsed(data: bytes) -> list[tuple[str, Event]]:
    """Each event with its number."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        number, text = block.split("\n")
        found.append(
            (
                number.removeprefix("id: "),
                msgspec.json.decode(text.removeprefix("data: "), type=Event),
            )
        )
    return found


async def test_who_follows_hears_each_event_once_and_in_order() -> None:
    made = Stream()
    made.publish(event("before"))
    with follow(made) as first, follow(made) as second:
        sent = [event(str(number)) for number in range(3)]
        for one in sent:
            made.publish(one)
        for follower in (first, second):
            assert [one for _, one in parsed(await follower.next())] == sent
        waiting = asyncio.create_task(first.next())
        await asyncio.sleep(0)
        made.publish(event("later"))
        assert [one.detail for _, one in parsed(await waiting)] == ["later"]
    assert made.followers == 0


async def test_a_line_break_in_an_event_is_no_end_of_it() -> None:
    made = Stream()
    with follow(made) as follower:
        made.publish(event("one\n\ndata: two\r\nid: 3"))
        ((_, heard),) = parsed(await follower.next())
        assert heard.detail == "one\n\ndata: two\r\nid: 3"


async def test_one_that_was_away_gets_what_it_missed() -> None:
    made = Stream()
    with follow(made) as follower:
        for number in range(5):
            made.publish(event(str(number)))
        numbers = [number for number, _ in parsed(await follower.next())]
    with follow(made, numbers[2]) as follower:
        assert [one.detail for _, one in parsed(await follower.next())] == ["3", "4"]
    with follow(made, numbers[4]) as follower:
        made.publish(event("new"))
        assert [one.detail for _, one in parsed(await follower.next())] == ["new"]


@pytest.mark.parametrize(
    "after", ["x", "-", "0-1", "life-1", "{life}-999", "{life}--1", "{life}-x"]
)
async def test_what_cannot_be_replayed_is_a_gap(after: str) -> None:
    made = Stream()
    made.publish(event())
    with follow(made) as follower:
        made.publish(event())
        ((number, _),) = parsed(await follower.next())
    life = number.partition("-")[0]
    with follow(made, after.replace("{life}", life)) as follower:
        assert await follower.next() == b"event: gap\ndata: {}\n\n"


async def test_what_was_forgotten_is_a_gap_and_little_is_kept() -> None:
    made = Stream()
    with follow(made) as follower:
        made.publish(event("first"))
        ((number, _),) = parsed(await follower.next())
    for _ in range(stream.KEPT_EVENTS + 1):
        made.publish(event("x" * 5000))
    with follow(made, number) as follower:
        assert b"event: gap" in await follower.next()
    assert made._kept_bytes <= stream.BACKLOG_BYTES // 2


@pytest.mark.parametrize(
    ("size", "allowed"), [(1, stream.BACKLOG_EVENTS), (stream.BACKLOG_BYTES // 4, 3)]
)
async def test_one_that_does_not_read_is_dropped_and_holds_nothing(size: int, allowed: int) -> None:
    made = Stream()
    dropped: list[str] = []
    with follow(made, dropped=dropped) as slow, follow(made) as quick:
        for number in range(allowed):
            made.publish(event("x" * size))
            if number % 100 == 0:
                await quick.next()
        assert (dropped, slow.is_open, made.followers) == ([], True, 2)
        await quick.next()
        made.publish(event("x" * size))
        assert (dropped, slow.is_open, made.followers) == (["dropped"], False, 1)
        assert await slow.next() == b""
        assert slow._queue == stream.collections.deque()
        assert len(parsed(await quick.next())) == 1
        made.publish(event())
        assert dropped == ["dropped"]


async def test_only_so_many_follow() -> None:
    made = Stream()
    followers = [follow(made) for _ in range(stream.MAX_FOLLOWERS)]
    assert made.follow("", lambda: None) is None
    followers[0].__exit__()
    assert made.follow("", lambda: None) is not None


async def test_the_end_wakes_everybody() -> None:
    made = Stream()
    follower = follow(made)
    waiting = asyncio.create_task(follower.next())
    await asyncio.sleep(0)
    made.close()
    assert await waiting == b""
    assert made.followers == 0
