"""Builds of this node, asked for one at a time while others are under way."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from preheatd.dispatch import Dispatcher
from preheatd.politeness.gate import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from preheatd import events
    from preheatd.outcome import Outcome
    from preheatd.project import Project
    from preheatd.remembering import Order


class Builds:
    """Builds orders as they come; what was superseded by an edit is built again."""

    def __init__(self, project: Project, emit: events.Emit) -> None:
        self._jobs = project.config.jobs
        self._booked = 0
        self._orders: dict[str, tuple[Order, asyncio.Future[Outcome]]] = {}
        self._dispatcher = Dispatcher(
            project.build,
            project.state,
            jobs=project.config.jobs,
            emit=emit,
            finished=self._finished,
            gate=Gate(project.config.politeness.when_asked(), emit, limits=project.limits),
        )

    def may_build(self) -> bool:
        """Whether fewer builds than may run are spoken for."""
        return self._booked < self._jobs

    @contextlib.contextmanager
    def booked(self) -> Iterator[None]:
        """Inside, one build is spoken for."""
        self._booked += 1
        try:
            yield
        finally:
            self._booked -= 1

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Inside, what is asked for is built. Leaving ends builds that run."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._dispatcher.run())
            try:
                yield
            finally:
                task.cancel()

    async def build(self, order: Order) -> Outcome:
        """Build this; only inside ``working``."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._orders[order.name] = order, future
        self._dispatcher.add(order)
        return await future

    def _finished(self, outcome: Outcome) -> None:
        order, future = self._orders.get(outcome.target, (None, None))
        if order is None or future is None or future.done():
            return
        if outcome.result in ("superseded", "withdrawn"):
            self._dispatcher.add(order)
        else:
            future.set_result(outcome)
