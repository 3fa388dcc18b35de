"""Asks a daemon over its unix socket.

Imports aiohttp, which takes a while: only those who have somebody to ask import this.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from preheat.errors import NoDaemonError, PreheatError
from preheatd.control import refusals  # noqa: F401  its errors have kinds too
from preheatd.control.settings import CONFIGURATION_HEADER
from preheatd.kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from preheatd.answers import Json

CONNECT_SECONDS = 3.0
_MAX_EVENT_BYTES = 2 * 1024 * 1024


class NoAnswerError(NoDaemonError):
    """The daemon does not answer.

    Raised when its socket cannot be connected to, when the connection breaks, and when the answer
    takes too long or is none of preheat's.
    """

    default_remedy = "Look at it with `preheat status`, or at its log."


class Client:
    """One daemon: the one that listens at ``socket`` for ``configuration``. An asynchronous context manager.

    Raises the daemon's own errors, and ``NoAnswerError``.
    """

    def __init__(self, socket: Path, configuration: Path) -> None:
        self._socket = socket
        connector = aiohttp.UnixConnector(path=str(socket))
        self._session = aiohttp.ClientSession(
            base_url="http://daemon",
            connector=connector,
            headers={CONFIGURATION_HEADER: urllib.parse.quote(str(configuration))},
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def get(
        self, path: str, parameters: Mapping[str, str] | None = None, *, seconds: float
    ) -> Json:
        """Ask, and wait so many seconds for the answer."""
        return await self._ask("GET", path, seconds, params=parameters or {})

    async def post(self, path: str, body: object = None, *, seconds: float) -> Json:
        """The same for what changes something."""
        return await self._ask("POST", path, seconds, data=msgspec.json.encode(body or {}))

    async def events(self) -> AsyncIterator[bytes]:
        """The daemon's events as JSON, from now on; ends when the daemon does."""
        limit = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
        with self._translated():
            async with self._session.get(
                "/v1/events", timeout=limit, read_bufsize=_MAX_EVENT_BYTES
            ) as response:
                if response.status != 200:
                    raise _error_in(await response.read())
                async for line in response.content:
                    if line.startswith(b"data: "):
                        yield line.removeprefix(b"data: ").rstrip(b"\n")

    async def _ask(self, method: str, path: str, seconds: float, **rest: Any) -> Json:
        limit = aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS)
        with self._translated():
            async with self._session.request(method, path, timeout=limit, **rest) as response:
                data = await response.read()
        if response.status != 200:
            raise _error_in(data)
        try:
            answer: Json = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NoAnswerError(f"What answers at {self._socket} is no daemon: {error}.") from error
        return answer

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return _no_answer(self._socket)


@contextlib.contextmanager
def _no_answer(socket: Path) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise NoAnswerError(f"The daemon at {socket} did not answer in time.") from error
    except (OSError, aiohttp.ClientError) as error:
        raise NoAnswerError(f"The daemon at {socket} does not answer: {error}.") from error


def _error_in(data: bytes) -> PreheatError:
    """The error that an answer holds, as the class that the daemon raised."""
    try:
        found = msgspec.json.decode(data, type=dict[str, dict[str, str]])["error"]
        kind, message, remedy = found["kind"], found["message"], found["remedy"]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        return NoAnswerError("What answers is no daemon of preheat.")
    error: PreheatError = _classes(PreheatError).get(kind, PreheatError)(message, remedy=remedy)
    return error


def _classes(root: type[PreheatError]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in root.__subclasses__():
        found |= {kind_of(one.__new__(one)): one, **_classes(one)}
    return found
