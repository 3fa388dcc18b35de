"""One build or proof process: started in a session of its own, listened to, ended for certain.

The process writes events to its standard output and everything else to its standard error. A line
that is no event is logged and skipped, so a chatty library cannot break a build. Whatever happens, no
process of its group is left when ``run_process`` returns or raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from preheat.job import decode_event
from preheat.manifest import MAX_MANIFEST_BYTES
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from preheat.job import Event
    from preheatd.logs import BoundedLog

TERMINATE_GRACE_SECONDS = 2.0
DRAIN_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_CHUNK_BYTES = 64 * 1024
# A built event holds a whole manifest, and JSON may escape it.
_MAX_LINE_BYTES = 2 * MAX_MANIFEST_BYTES
_LOGGED_LINE_BYTES = 1000


@dataclasses.dataclass(frozen=True)
class Command:
    """What to start. ``on_started`` is told the number of the process, which is that of its group."""

    arguments: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    on_started: Callable[[int], None] = lambda pid: None


class LineSplitter:
    """Cuts a stream of bytes into lines; an overlong line comes out as its beginning, once."""

    def __init__(self, limit: int = _MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their ends."""
        *complete, rest = data.split(b"\n")
        lines = [line for part in complete if (line := self._end_line(part)) is not None]
        self._rest += rest
        if len(self._rest) > self._limit:
            if not self._skipping:
                lines.append(bytes(self._rest[:_LOGGED_LINE_BYTES]))
            self._skipping = True
            self._rest.clear()
        return lines

    def finish(self) -> list[bytes]:
        """The last line, when it had no end."""
        line = self._end_line(b"")
        return [line] if line else []

    def _end_line(self, part: bytes) -> bytes | None:
        line = bytes(self._rest) + part
        skipped, self._skipping = self._skipping, False
        self._rest.clear()
        return None if skipped else line


class Process(Protocol):
    """A process that leads a group of its own, as ``asyncio.subprocess.Process`` shows it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...


class ListenedTo(Process, Protocol):
    """One whose output is read."""

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...


Start = Callable[[Command], Awaitable[ListenedTo]]


async def start_fresh(command: Command) -> ListenedTo:
    """A new interpreter. Raises ``OSError`` when the program cannot be started."""
    return await asyncio.create_subprocess_exec(
        *command.arguments,
        cwd=command.cwd,
        env=dict(command.environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def run_process(
    command: Command,
    log: BoundedLog,
    on_event: Callable[[Event], None],
    start: Start = start_fresh,
) -> int:
    """Run to the end and return the exit status; negative: minus the number of the signal.

    Cancelling ends the whole group, first politely, and waits for that. Raises what ``start`` does.
    """
    process = await start(command)
    readers: asyncio.Future[tuple[None, None]] | None = None
    try:
        command.on_started(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        readers = asyncio.gather(
            _read_events(process.stdout, log, on_event), _copy(process.stderr, log)
        )
        return await _ended(process)
    finally:
        await uncancelled(_finish(process, readers))


async def _ended(process: Process) -> int:
    """The exit status as soon as the process itself has ended.

    Some versions of asyncio wait until its pipes are closed as well; whatever it left running holds those.
    """
    waiting = asyncio.ensure_future(process.wait())
    try:
        while not waiting.done() and process.returncode is None:
            await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
        return waiting.result() if process.returncode is None else process.returncode
    finally:
        waiting.cancel()


async def _finish(process: Process, readers: asyncio.Future[tuple[None, None]] | None) -> None:
    await end_group(process)
    if readers is None:
        return
    # A grandchild that made its own session may hold the pipes open for as long as it likes.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(readers, DRAIN_SECONDS)


async def end_group(process: Process, grace: float = TERMINATE_GRACE_SECONDS) -> None:
    """End a process and everything in its group; returns when the process is reaped."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace)
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _read_events(
    stream: asyncio.StreamReader, log: BoundedLog, on_event: Callable[[Event], None]
) -> None:
    splitter = LineSplitter()
    while data := await stream.read(_CHUNK_BYTES):
        for line in splitter.feed(data):
            await _handle_line(line, log, on_event)
    for line in splitter.finish():
        await _handle_line(line, log, on_event)


async def _handle_line(line: bytes, log: BoundedLog, on_event: Callable[[Event], None]) -> None:
    if not line.strip():
        return
    try:
        event = decode_event(line)
    except msgspec.MsgspecError:
        await log.write(line[:_LOGGED_LINE_BYTES] + b"\n")
        return
    on_event(event)


async def _copy(stream: asyncio.StreamReader, log: BoundedLog) -> None:
    while data := await stream.read(_CHUNK_BYTES):
        await log.write(data)


def describe_status(status: int) -> str:
    """How a process ended, for a person."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory, perhaps)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
