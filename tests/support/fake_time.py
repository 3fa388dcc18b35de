"""An event loop whose clock is ours: nobody waits, and a day passes in a second.

``run`` gives a loop a clock of its own. ``Conductor`` gives several processes one clock: each says when it
has to wake next, and all of them are told the earliest of these times, so that they act at the same moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from multiprocessing.connection import Connection

_T = TypeVar("_T")


class _Jumping(selectors.SelectSelector):
    """Instead of waiting, the time is what it would be afterwards."""

    def __init__(self, wait_until: Callable[[float], float]) -> None:
        super().__init__()
        self.now = 0.0
        self._wait_until = wait_until

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("Every task waits for another one.")
        if timeout > 0:
            self.now = self._wait_until(self.now + timeout)
        return super().select(0)


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """``wait_until``: is told when something is due next and answers what time it is then."""

    def __init__(self, wait_until: Callable[[float], float] = lambda due: due) -> None:
        self._jumping = _Jumping(wait_until)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(
    work: Coroutine[object, object, _T], wait_until: Callable[[float], float] = lambda due: due
) -> _T:
    """Like ``asyncio.run``, in no time."""
    with asyncio.Runner(loop_factory=lambda: FakeTimeLoop(wait_until)) as runner:
        return runner.run(work)


def conduct(
    processes: Iterable[Connection],
    passed: Callable[[float], None] = lambda now: None,
    *,
    together_seconds: float = 0.05,
) -> float:
    """Be the clock of processes that use ``conducted``, until all of them have hung up; the last time.

    Those that are due within ``together_seconds`` run at the same moment, really. ``passed`` hears each time
    before the processes do.
    """
    due = {one: when for one in processes if (when := _due(one)) is not None}
    now = 0.0
    while due:
        now = min(due.values())
        passed(now)
        awake = [one for one, when in due.items() if when <= now + together_seconds]
        for one in awake:
            with contextlib.suppress(OSError):  # its end is noticed below
                one.send(due[one])
        for one in awake:
            when = _due(one)
            if when is None:
                del due[one]
            else:
                due[one] = when
    return now


def _due(process: Connection) -> float | None:
    try:
        when: float = process.recv()
    except (EOFError, OSError):
        return None
    return when


def conducted(connection: Connection) -> Callable[[float], float]:
    """For ``run`` in a process whose clock is at the other end."""

    def wait_until(due: float) -> float:
        connection.send(due)
        now: float = connection.recv()
        return now

    return wait_until
