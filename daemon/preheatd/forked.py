"""A child of a zygote, and the connection on which it is asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat import forking
from preheat.forking import Ended, Forked, ForkRequest, Ready, Unfit
from preheatd.process import LineSplitter

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORK_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_RECEIVED_BYTES = 1024 * 1024


class ZygoteUnfit(Exception):
    """There is no child to be had of this zygote; its words say why."""


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
        """Wait for the end. A zygote that hangs cannot tell of it: now and then one looks for oneself."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    return await asyncio.shield(self._ended)
            except TimeoutError:
                if not await asyncio.to_thread(_runs, self.pid):
                    self.ended(-signal.SIGKILL)

    def ended(self, status: int) -> None:
        """The zygote says so, or has ended itself."""
        if not self._ended.done():
            self._ended.set_result(status)


def _runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


class Line:
    """The connection to one of a zygote's two processes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._splitter = LineSplitter(_RECEIVED_BYTES)
        self._forked: dict[int, asyncio.Future[int]] = {}
        self._children: dict[int, ForkedProcess] = {}
        self._early: dict[int, int] = {}
        self._number = 0
        self.answered = asyncio.Event()
        self.hopeless = False
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
            # One that ends before it was ready would do so again.
            self.hopeless = self.hopeless or not self.answered.is_set()
            self.close()

    def close(self) -> None:
        """Hang up, which ends that process and its children."""
        self.why_not = self.why_not or "the zygote ended"
        self.answered.set()
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
                self.answered.set()
            case Unfit():
                self.why_not = answer.why
                self.hopeless = not self.answered.is_set()
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
            self.why_not = f"the zygote does not answer: {error or 'in time'}"
            raise ZygoteUnfit(self.why_not) from error
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
