"""The limit of memory for one build: what its processes use is watched, and they are ended above it.

A limit that the kernel keeps for a process would count address space, of which CUDA reserves far more
than it uses. What counts here is memory in use by all processes of a build together; of memory that
several share (the code of libraries, above all) each process counts its part once. Memory of a GPU
does not count.

Not promised: that a build which allocates faster than it is looked at stays below the limit. Against
that helps the limit of a service manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from typing import TYPE_CHECKING

import psutil

from preheatd.process import run_process, start_fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preheat.job import Event
    from preheatd.logs import BoundedLog
    from preheatd.process import Command, Start

LOOK_SECONDS = 0.5
# A machine with very many processes is not kept busy by looking at them.
_MOST_OF_THE_TIME = 0.05


class MemoryExceeded(Exception):
    """Processes used more memory than they may; ``used`` in bytes."""

    def __init__(self, used: int) -> None:
        super().__init__(used)
        self.used = used


async def run_within(
    limit: int | None,
    command: Command,
    log: BoundedLog,
    on_event: Callable[[Event], None],
    start: Start = start_fresh,
) -> int:
    """As ``run_process``, with a limit in bytes for all processes of the command together.

    Raises ``MemoryExceeded`` when they used more; they have been ended then.
    """
    if limit is None:
        return await run_process(command, log, on_event, start)
    watch = _Watch(limit)
    watched = dataclasses.replace(command, on_started=watch.begins(command.on_started))
    watching = asyncio.create_task(watch.keep(), name="memory of a build")
    try:
        status = await run_process(watched, log, on_event, start)
    finally:
        watching.cancel()
    if watch.exceeded:
        raise MemoryExceeded(watch.exceeded)
    return status


class _Watch:
    """Looks at one process group; ``exceeded`` is what it used when it was ended, else 0."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._started = asyncio.Event()
        self._group = 0
        self.exceeded = 0

    def begins(self, and_then: Callable[[int], None]) -> Callable[[int], None]:
        """What to call with the number of the group when it was started."""

        def on_started(group: int) -> None:
            self._group = group
            self._started.set()
            and_then(group)

        return on_started

    async def keep(self) -> None:
        """Look again and again, until the limit is exceeded."""
        await self._started.wait()
        while not self.exceeded:
            began = time.monotonic()
            await asyncio.to_thread(self._look)
            took = time.monotonic() - began
            await asyncio.sleep(max(LOOK_SECONDS, took / _MOST_OF_THE_TIME))

    def _look(self) -> None:
        members = tuple(processes_of(self._group))
        used = memory_of(members, self._limit)
        if used > self._limit:
            # Said first: whoever waits for the process may see its end before this returns.
            self.exceeded = used
            # At once and all of them: it may grow quickly.
            for member in members:
                with contextlib.suppress(psutil.Error):
                    member.kill()


def processes_of(group: int) -> Iterator[psutil.Process]:
    """The processes of a group and all that they started, also in groups of their own."""
    found = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group:
                found[pid] = psutil.Process(pid)
    with contextlib.suppress(psutil.Error):
        if group in found:
            found |= {child.pid: child for child in found[group].children(recursive=True)}
    yield from found.values()


def memory_of(processes: tuple[psutil.Process, ...], limit: int) -> int:
    """The bytes in use by all of them; above ``limit`` only if that is so without counting twice.

    The exact number takes the kernel a while, so it is asked for only where it decides.
    """
    at_most = sum(map(_resident, processes))
    return at_most if at_most <= limit else sum(map(_proportional, processes))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except (psutil.Error, OSError):
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, OSError):
        return _resident(process)
