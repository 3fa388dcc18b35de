"""The daemon's side of zygotes: which there are, what is asked of them, and when they end.

A zygote saves the seconds that every fresh process spends on importing torch and its compiler. It is an
offer: whatever is wrong with it, the build goes on in fresh processes. See ``preheat.zygote``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
from typing import TYPE_CHECKING

import msgspec

from preheat import forking
from preheat.forking import Ended, Forked, ForkRequest, Kind, Ready, Setup, Unfit
from preheatd.process import LineSplitter, end_group

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

START_SECONDS = 60.0
IDLE_SECONDS = 900.0
# Each takes 400 MB.
MOST_AT_ONCE = 2
_FORK_SECONDS = 10.0
_RECEIVED_BYTES = 1024 * 1024
_ARGUMENTS = ("-m", "preheat.zygote")


class ZygoteUnfit(Exception):
    """There is no child to be had of this zygote; its words say why."""


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


class ForkedProcess:
    """A child of a zygote, listened to as ``asyncio.subprocess.Process`` is."""

    def __init__(
        self, pid: int, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """The exit status; negative: minus the number of the signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for the end."""
        return await asyncio.shield(self._ended)

    def ended(self, status: int) -> None:
        """The zygote says so, or has ended itself."""
        if not self._ended.done():
            self._ended.set_result(status)


class _Line:
    """The connection to one of a zygote's two processes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._splitter = LineSplitter(_RECEIVED_BYTES)
        self._forked: dict[int, asyncio.Future[int]] = {}
        self._children: dict[int, ForkedProcess] = {}
        self._early: dict[int, int] = {}
        self._number = 0
        self.ready = asyncio.Event()
        self.modules: frozenset[str] = frozenset()
        self.why_not = ""

    async def listen(self) -> None:
        """Hear answers until the zygote ends."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._connection, _RECEIVED_BYTES):
                for line in self._splitter.feed(data):
                    self._hear(forking.read_answer(line))
        except (OSError, msgspec.MsgspecError) as error:
            self.why_not = self.why_not or f"the zygote cannot be understood: {error}"
        finally:
            self.close()

    def close(self) -> None:
        """Hang up, which ends that process and its children."""
        self.why_not = self.why_not or "the zygote ended"
        self.ready.set()
        self._connection.close()
        for asked in self._forked.values():
            if not asked.done():
                asked.set_exception(ZygoteUnfit(self.why_not))
                asked.exception()  # seen, also when nobody waits any more
        for child in self._children.values():
            child.ended(-signal.SIGKILL)
        self._children.clear()

    def _hear(self, answer: forking.Answer) -> None:
        match answer:
            case Ready():
                self.modules = frozenset(answer.modules)
                self.ready.set()
            case Unfit():
                self.why_not = answer.why
            case Forked():
                asked = self._forked.pop(answer.number, None)
                if asked is not None and not asked.done():
                    asked.set_result(answer.pid)
            case Ended():
                child = self._children.pop(answer.number, None)
                if child is None:
                    self._early[answer.number] = answer.status
                else:
                    child.ended(answer.status)

    async def fork(self, module: str, job: str, variables: Mapping[str, str]) -> ForkedProcess:
        """Raises ``ZygoteUnfit``."""
        if self.why_not:
            raise ZygoteUnfit(self.why_not)
        self._number += 1
        number = self._number
        request = ForkRequest(number=number, module=module, job=job, variables=dict(variables))  # type: ignore[arg-type]
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forked[number] = asked
        out, err = _Pipe(), _Pipe()
        try:
            socket.send_fds(self._connection, [forking.encode(request)], [out.write, err.write])
            async with asyncio.timeout(_FORK_SECONDS):
                pid = await asked
        except (OSError, TimeoutError) as error:
            out.close()
            err.close()
            raise ZygoteUnfit(f"the zygote does not answer: {error}") from error
        except BaseException:
            out.close()
            err.close()
            raise
        child = ForkedProcess(pid, await out.reader(), await err.reader())
        self._children[number] = child
        if number in self._early:
            self._children.pop(number).ended(self._early.pop(number))
        return child


class _Pipe:
    """A pipe whose writing end goes to a child."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()

    async def reader(self) -> asyncio.StreamReader:
        os.close(self.write)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._read, "rb", 0)
        )
        return reader

    def close(self) -> None:
        os.close(self._read)
        os.close(self.write)


class Zygote:
    """One pair of processes that fork."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lines: dict[Kind, _Line] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._why_not = ""

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
        for kind, (ours, _) in pairs.items():
            line = self._lines[kind] = _Line(ours)
            self._tasks.append(asyncio.create_task(line.listen(), name=f"zygote {kind}"))

    async def modules(self, kind: Kind) -> frozenset[str]:
        """What it has imported; waits until it is ready. Raises ``ZygoteUnfit``."""
        line = self._lines[kind]
        try:
            async with asyncio.timeout(START_SECONDS):
                await line.ready.wait()
        except TimeoutError:
            self._why_not = f"the zygote was not ready within {START_SECONDS:g} s"
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
    """The zygotes of one daemon: at most ``most`` at once, each ended after ``idle_seconds`` without use."""

    def __init__(
        self, logs: Path, *, most: int = MOST_AT_ONCE, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._logs = logs
        self._most = most
        self._idle_seconds = idle_seconds
        self._zygotes: dict[Root, Zygote] = {}  # the one used last is last
        self._timers: dict[Root, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        """Whether another one would take the place of one that is there."""
        return len(self._zygotes) >= self._most

    async def get(self, root: Root) -> Zygote | None:
        """The zygote of ``root``, started if need be; None where none is to be had."""
        zygote = self._zygotes.pop(root, None)
        if zygote is not None and zygote.why_not:
            self._end(zygote)
            zygote = None
        if zygote is None:
            zygote = Zygote(root)
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


def libraries_to_import(modules: tuple[str, ...], base: frozenset[str]) -> tuple[str, ...]:
    """Of the modules that a proof imported, in their order: those of libraries that a zygote lacks."""
    return tuple(name for name in modules if name not in base)


def same_modules(child: tuple[str, ...], fresh: tuple[str, ...], zygote: frozenset[str]) -> bool:
    """Whether a forked proof imported what the last really fresh one did, as far as can be told."""
    return set(child) - zygote == set(fresh) - zygote


def with_timeout(seconds: float | None) -> contextlib.AbstractAsyncContextManager[object]:
    """``asyncio.timeout``, or nothing."""
    return asyncio.timeout(seconds) if seconds is not None else contextlib.nullcontext()
