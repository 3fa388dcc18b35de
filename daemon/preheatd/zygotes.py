"""The daemon's side of zygotes: which there are, what is asked of them, and when they end.

A zygote saves the seconds that every fresh process spends on importing torch and its compiler. It is an
offer: whatever is wrong with it, the build goes on in fresh processes. See ``preheat.zygote``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from preheat import forking
from preheat.forking import Kind, Setup
from preheatd.forked import ForkedProcess, Line, ZygoteUnfit
from preheatd.process import end_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# A build waits so long for one that is being started, then goes on without.
WAIT_SECONDS = 30.0
START_SECONDS = 300.0
IDLE_SECONDS = 900.0
# Each takes 400 MB.
MOST_AT_ONCE = 2
_ARGUMENTS = ("-m", "preheat.zygote")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Root:
    """What a zygote is started from; another one is needed when any of it differs.

    ``stamp`` stands for interpreter, installed libraries and drivers, ``libraries`` are modules to import.
    """

    python: str
    cwd: Path
    variables: tuple[tuple[str, str], ...]
    stamp: str
    libraries: tuple[str, ...] = ()


class Zygote:
    """One pair of processes that fork. ``on_started`` is told the number of their group."""

    def __init__(self, root: Root, on_started: Callable[[int], None] = lambda pid: None) -> None:
        self.root = root
        self._on_started = on_started
        self._lines: dict[Kind, Line] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._why_not = ""
        self._started = time.monotonic()

    @property
    def is_hopeless(self) -> bool:
        """Whether another one of the same root would be as unfit, from the beginning."""
        return any(line.hopeless for line in self._lines.values())

    @property
    def why_not(self) -> str:
        """Why it cannot be used; empty while it can."""
        return self._why_not or next(
            (line.why_not for line in self._lines.values() if line.why_not), ""
        )

    @property
    def pid(self) -> int | None:
        """Of the first process."""
        return self._process.pid if self._process else None

    async def start(self, log: Path) -> None:
        """Start the process; it is not ready yet on return. Raises ``OSError``."""
        pairs = {kind: socket.socketpair() for kind in forking.KINDS}
        theirs = {kind: pair[1].fileno() for kind, pair in pairs.items()}
        setup = Setup(**theirs, libraries=self.root.libraries)
        try:
            with await asyncio.to_thread(log.open, "wb") as file:
                self._process = await asyncio.create_subprocess_exec(
                    self.root.python,
                    *_ARGUMENTS,
                    msgspec.json.encode(setup).decode(),
                    cwd=self.root.cwd,
                    env=dict(self.root.variables),
                    pass_fds=tuple(theirs.values()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        except BaseException:
            for pair in pairs.values():
                pair[0].close()
            raise
        finally:
            for pair in pairs.values():
                pair[1].close()
        self._on_started(self._process.pid)
        for kind, (ours, _) in pairs.items():
            line = self._lines[kind] = Line(ours)
            self._tasks.append(asyncio.create_task(line.listen(), name=f"zygote {kind}"))

    async def modules(self, kind: Kind) -> frozenset[str]:
        """What it has imported; waits for a while until it is ready. Raises ``ZygoteUnfit``."""
        line = self._lines[kind]
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await line.answered.wait()
        except TimeoutError:
            if time.monotonic() > self._started + START_SECONDS:
                self.give_up(f"the zygote was not ready within {START_SECONDS:g} s")
            raise ZygoteUnfit("the zygote is not ready yet") from None
        if self.why_not:
            raise ZygoteUnfit(self.why_not)
        return line.modules

    async def fork(
        self, kind: Kind, module: str, job: str, variables: Mapping[str, str]
    ) -> ForkedProcess:
        """A child that runs ``module``; waits until the zygote is ready. Raises ``ZygoteUnfit``."""
        await self.modules(kind)
        return await self._lines[kind].fork(module, job, variables)

    def give_up(self, why: str) -> None:
        """No more children of this one."""
        self._why_not = self._why_not or why

    async def close(self) -> None:
        """End both processes and their children, and wait for that."""
        self.give_up("the zygote was ended")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self._lines.values():
            line.close()
        if self._process is not None:
            await end_group(self._process)


class Zygotes:
    """The zygotes of one daemon: at most ``most`` at once, each ended after ``idle_seconds`` without use.

    ``on_started`` is told the number of each one's process group.
    """

    def __init__(
        self,
        logs: Path,
        *,
        most: int = MOST_AT_ONCE,
        idle_seconds: float = IDLE_SECONDS,
        on_started: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._logs = logs
        self._on_started = on_started
        self._most = most
        self._idle_seconds = idle_seconds
        self._zygotes: dict[Root, Zygote] = {}  # the one used last is last
        self._timers: dict[Root, asyncio.TimerHandle] = {}
        self._hopeless: set[Root] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether another one would take the place of one that is there."""
        return len(self._zygotes) >= self._most

    async def get(self, root: Root) -> Zygote | None:
        """The zygote of ``root``, started if need be; None where none is to be had."""
        async with self._turn:  # two who ask while it is being started get the same one
            return await self._get(root)

    async def _get(self, root: Root) -> Zygote | None:
        zygote = self._zygotes.pop(root, None)
        if zygote is not None and zygote.why_not:
            if zygote.is_hopeless:
                self._hopeless.add(root)
            self._end(zygote)
            zygote = None
        if root in self._hopeless:
            return None
        if zygote is None:
            zygote = Zygote(root, self._on_started)
            try:
                await zygote.start(self._logs / "zygote.log")
            except OSError:
                return None
        self._zygotes[root] = zygote
        self._renew(root)
        while len(self._zygotes) > self._most:
            self.drop(next(iter(self._zygotes)))
        return zygote

    def drop(self, root: Root) -> None:
        """End this one, if it is there."""
        if timer := self._timers.pop(root, None):
            timer.cancel()
        if zygote := self._zygotes.pop(root, None):
            self._end(zygote)

    async def close(self) -> None:
        """End all of them."""
        for root in list(self._zygotes):
            self.drop(root)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _renew(self, root: Root) -> None:
        if timer := self._timers.pop(root, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[root] = loop.call_later(self._idle_seconds, self.drop, root)

    def _end(self, zygote: Zygote) -> None:
        task = asyncio.ensure_future(zygote.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
