"""What can be asked at which address: thin handlers, each one question to ``Operations``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import msgspec
from aiohttp import web

from preheat.errors import ConfigurationError
from preheatd import answers
from preheatd.control.page import HEADERS, PAGE
from preheatd.control.refusals import RequestError, UnknownTargetError
from preheatd.plan import Plan

if TYPE_CHECKING:
    from preheatd.control.stream import Follower
    from preheatd.operations import Operations

MAX_BODY_BYTES = 64 * 1024
MAX_HISTORY = 1000
MAX_WAIT_SECONDS = 3600.0
DEFAULT_WAIT_SECONDS = 600.0
HEARTBEAT_SECONDS = 15.0
SEND_SECONDS = 30.0
_HEARTBEAT = b": alive\n\n"
_RETRY = b"retry: 2000\n\n"

_Body = TypeVar("_Body", bound=msgspec.Struct)


class KickBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/kick``."""

    targets: list[str] = []
    rebuild: bool = False


class PauseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/pause``: why, for a person."""

    detail: str = ""


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request that has nothing to say."""


@dataclasses.dataclass(frozen=True)
class Address:
    """What can be asked where; ``handler`` is a method of ``Routes``."""

    method: str
    path: str
    handler: str


ADDRESSES = (
    Address("GET", "/", "page"),
    Address("GET", "/metrics", "metrics"),
    Address("GET", "/v1/status", "status"),
    Address("GET", "/v1/plan", "plan"),
    Address("GET", "/v1/explain/{target}", "explain"),
    Address("GET", "/v1/history", "history"),
    Address("GET", "/v1/events", "events"),
    Address("GET", "/v1/wait", "wait"),
    Address("POST", "/v1/wait", "wait"),
    Address("POST", "/v1/kick", "kick"),
    Address("POST", "/v1/pause", "pause"),
    Address("POST", "/v1/resume", "resume"),
    Address("POST", "/v1/reload", "reload"),
)


class Routes:
    """The handlers."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def table(self) -> list[web.RouteDef]:
        """Each address with its handler."""
        return [web.route(one.method, one.path, getattr(self, one.handler)) for one in ADDRESSES]

    async def page(self, request: web.Request) -> web.Response:
        """The status page."""
        return web.Response(body=PAGE, headers=HEADERS, content_type="text/html", charset="utf-8")

    async def metrics(self, request: web.Request) -> web.Response:
        """For Prometheus."""
        body = await asyncio.to_thread(self._operations.metrics)
        from prometheus_client import CONTENT_TYPE_LATEST  # most daemons are never asked

        # Its type has a version, which ``content_type`` does not take.
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status(self, request: web.Request) -> web.Response:
        """Everything in short, from memory."""
        return json_response(await self._operations.status())

    async def plan(self, request: web.Request) -> web.Response:
        """A new plan."""
        return json_response(await self._operations.plan(self._targets(request)))

    async def explain(self, request: web.Request) -> web.Response:
        """One target."""
        name = request.match_info["target"]
        self._check((name,))
        return json_response(await self._operations.explain(name))

    async def history(self, request: web.Request) -> web.Response:
        """The last things that happened."""
        count = int(_number(request, "count", 50, 1, MAX_HISTORY))
        entries = await self._operations.history(count)
        return json_response({"history": msgspec.to_builtins(entries)})

    async def wait(self, request: web.Request) -> web.Response:
        """An answer when targets are fresh, or cannot become so, or it takes too long."""
        names = self._targets(request)
        seconds = _number(request, "timeout", DEFAULT_WAIT_SECONDS, 0, MAX_WAIT_SECONDS)
        decisions = await self._operations.wait(names, seconds)
        answer = answers.plan_answer(Plan(decisions=decisions), "daemon")
        return json_response(answer)

    async def kick(self, request: web.Request) -> web.Response:
        """Try targets now."""
        body = await _body(request, KickBody)
        self._check(body.targets)
        decisions = await self._operations.kick(body.targets, rebuild=body.rebuild)
        return json_response(
            {
                "targets": [answers.decision_answer(one) for one in decisions],
                "paused": msgspec.to_builtins(self._operations.pauses.current),
            }
        )

    async def pause(self, request: web.Request) -> web.Response:
        """Begin no builds."""
        body = await _body(request, PauseBody)
        detail = " ".join(body.detail.split())[:200]
        return json_response({"paused": msgspec.to_builtins(self._operations.pause(detail))})

    async def resume(self, request: web.Request) -> web.Response:
        """Begin builds again."""
        await _body(request, Nothing)
        return json_response({"paused": msgspec.to_builtins(self._operations.resume())})

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration again."""
        await _body(request, Nothing)
        return json_response(await self._operations.reload())

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Everything that happens from now on, as server-sent events."""
        follower = self._operations.stream.follow(
            request.headers.get("Last-Event-ID", ""), lambda: _abort(request)
        )
        if follower is None:
            raise RequestError(
                "Too many follow the events already.",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                remedy="End some of them, or ask for /v1/status now and then.",
            )
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
            }
        )
        # Whoever goes away, or does not read, is no trouble of the daemon's.
        with follower, contextlib.suppress(ConnectionError):
            await response.prepare(request)
            try:
                await _send_events(follower, response)
            except TimeoutError:
                _abort(request)
        return response

    def _targets(self, request: web.Request) -> list[str]:
        written = ",".join(request.query.getall("targets", []))
        names = [name for name in written.split(",") if name]
        self._check(names)
        return names

    def _check(self, names: list[str] | tuple[str, ...]) -> None:
        try:
            self._operations.check_names(names)
        except ConfigurationError as error:
            raise UnknownTargetError(error.message, remedy=error.remedy) from None


def json_response(answer: object, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """An answer; nobody keeps it, and no browser takes it for something else."""
    return web.Response(
        body=msgspec.json.encode(answer) + b"\n",
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )


async def _body(request: web.Request, kind: type[_Body]) -> _Body:
    """The body; none counts as an empty object. Raises ``RequestError``."""
    data = await request.read()
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body cannot be used: {error}.") from error


def _number(request: web.Request, name: str, default: float, least: float, most: float) -> float:
    written = request.query.get(name)
    try:
        number = default if written is None else float(written)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise RequestError(
            f"`{name}` must be a number from {least:g} to {most:g}, not {written!r}."
        )
    return number


async def _send_events(follower: Follower, response: web.StreamResponse) -> None:
    """Until nothing comes any more. Raises ``TimeoutError`` for one that does not read."""
    data = _RETRY
    while follower.is_open:
        async with asyncio.timeout(SEND_SECONDS):
            await response.write(data)
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                data = await follower.next()
        except TimeoutError:
            data = _HEARTBEAT


def _abort(request: web.Request) -> None:
    # Not closed in good order: that would wait for the client to read.
    if request.transport is not None:
        request.transport.abort()
