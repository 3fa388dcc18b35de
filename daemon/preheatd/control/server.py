"""Listens: on a unix socket, on a loopback port where asked for, or on what the service manager opened.

Whatever goes wrong with that is an event and a line of the status; the daemon goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from preheat.errors import PreheatError
from preheatd import answers, events
from preheatd.control import activation, sockets
from preheatd.control.guard import Guard, read_token
from preheatd.control.refusals import ForbiddenError, ListenError, RequestError, status_of
from preheatd.control.routes import MAX_BODY_BYTES, Routes, json_response
from preheatd.control.settings import CONFIGURATION_HEADER, Control, default_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp.typedefs import Handler, Middleware

    from preheatd.config import Config
    from preheatd.operations import Operations

MAX_CONNECTIONS = 128
_SHUTDOWN_SECONDS = 1.0
_logger = logging.getLogger("preheatd.control")


class Server:
    """Where a daemon can be asked; ``preheatd.operations.Listening``.

    ``handed``: sockets that the service manager opened; they take the place of those that the
    configuration names.
    """

    def __init__(
        self,
        operations: Operations,
        emit: events.Emit,
        *,
        handed: tuple[socket.socket, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._operations = operations
        self._emit = emit
        self._handed = handed
        self._environ = os.environ if environ is None else environ
        self._routes = Routes(operations)
        self._wanted: Control | None = None
        self._trouble = False
        self._path = ""
        self._listeners: list[_Listener] = []

    async def apply(self, config: Config) -> str:
        """Listen as this configuration says; what is as it should be stays. The path of the socket."""
        if config.control == self._wanted and not self._trouble:
            return self._path
        await self._close_listeners()
        self._wanted, self._trouble, self._path = config.control, False, ""
        kinds = {one.family == socket.AF_UNIX for one in self._handed}
        for one in self._handed:
            await self._attempt(self._serve_handed(one, config.control))
        if True not in kinds and config.control.listens:
            await self._attempt(self._serve_path(config))
        if False not in kinds and config.control.tcp is not None:
            await self._attempt(self._serve_port(*config.control.tcp, config.control))
        return self._path

    async def close(self) -> None:
        """Listen no more. Who follows or waits is sent away."""
        self._operations.stream.close()
        await self._close_listeners()
        for one in self._handed:
            one.close()

    async def _attempt(self, work: Any) -> None:
        try:
            where = await work
        except (PreheatError, OSError) as error:
            self._trouble = True
            self._emit(events.Event(action=events.CONTROL_FAILED, detail=str(error)))
        else:
            self._emit(events.Event(action=events.CONTROL_LISTENING, detail=where))

    async def _serve_path(self, config: Config) -> str:
        view = self._operations.view
        path = config.control.socket or default_socket(
            view.project.state.path, config.file, self._environ
        )
        listener = await asyncio.to_thread(sockets.listen_at, path, config.control.group)
        await self._serve(listener.socket, None, listener.close)
        self._path = str(path)
        return str(path)

    async def _serve_port(self, host: str, port: int, control: Control) -> str:
        guard = await _guard(control, port)
        made = sockets.listen_on(host, port)
        port = made.getsockname()[1]
        await self._serve(made, dataclasses.replace(guard, port=port), made.close)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def _serve_handed(self, handed: socket.socket, control: Control) -> str:
        activation.check(handed)
        name = handed.getsockname()
        # Its descriptor stays open: it is listened at again when the configuration changes.
        copy = handed.dup()
        try:
            if handed.family == socket.AF_UNIX:
                await self._serve(copy, None, copy.close)
                self._path = str(Path(os.fsdecode(name)))
                return self._path
            await self._serve(copy, await _guard(control, name[1]), copy.close)
            return f"http://{name[0]}:{name[1]}"
        except BaseException:
            copy.close()
            raise

    async def _serve(
        self, listening: socket.socket, guard: Guard | None, close: Callable[[], None]
    ) -> None:
        configuration = str(self._operations.view.project.config.file)
        application = web.Application(
            middlewares=_middlewares(guard, configuration), client_max_size=MAX_BODY_BYTES
        )
        application.add_routes(self._routes.table())
        runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        listener = _Listener(runner, close)
        self._listeners.append(listener)
        await listener.start(listening)

    async def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.stop()


class _Listener:
    """One socket that is served, with a bounded number of connections."""

    def __init__(self, runner: web.AppRunner, close: Callable[[], None]) -> None:
        self._runner = runner
        self._close = close
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.BaseTransport] = set()

    async def start(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        if listening.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(self._protocol, sock=listening)
        else:
            self._server = await loop.create_server(self._protocol, sock=listening)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.to_thread(self._close)
        await self._runner.cleanup()
        for transport in list(self._connections):
            if isinstance(transport, asyncio.Transport):
                transport.abort()

    def _protocol(self) -> _Protocol:
        assert self._runner.server is not None
        return _Protocol(self._runner.server, self._connections)


class _Protocol(web.RequestHandler):
    """Answers also in JSON what is no HTTP at all, and logs no line for it."""

    __slots__ = ("_all",)

    def __init__(self, server: web.Server, connections: set[asyncio.BaseTransport]) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as AppRunner does; it means none
            max_line_size=8190,
            max_headers=64,
        )
        self._all = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._all.add(transport)
        if len(self._all) > MAX_CONNECTIONS and isinstance(transport, asyncio.Transport):
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.transport is not None:
            self._all.discard(self.transport)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not even be parsed."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        detail = " ".join((message or str(exc or "")).split())[:300]
        error = RequestError(f"The request is not HTTP as it should be: {detail}")
        response = json_response(answers.error_answer(error), HTTPStatus(status))
        response.force_close()
        return response


def _middlewares(guard: Guard | None, configuration: str) -> tuple[Middleware, ...]:
    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except PreheatError as error:
            return json_response(answers.error_answer(error), status_of(error))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            refusal = RequestError(_words(error, request))
            response = json_response(answers.error_answer(refusal), HTTPStatus(error.status))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except Exception as error:
            _logger.exception("a question to the daemon met a fault in preheat")
            fault = {
                "kind": "unexpected",
                "message": f"{type(error).__name__}: {error}",
                "remedy": "This is a fault in preheat; please report it with the daemon's log.",
            }
            return json_response({"error": fault}, HTTPStatus.INTERNAL_SERVER_ERROR)

    @web.middleware
    async def right_daemon(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = request.headers.get(CONFIGURATION_HEADER)
        if wanted is not None and urllib.parse.unquote(wanted) != configuration:
            raise ForbiddenError(
                f"This daemon keeps {configuration} warm.", status=HTTPStatus.CONFLICT
            )
        return await handler(request)

    return (errors, *((_guarded(guard),) if guard else ()), right_daemon)


def _guarded(guard: Guard) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        guard.check_host(request.headers)
        token = request.query.get("token")
        if request.path == "/" and token is not None and guard.is_token(token):
            # Out of the address, where histories and screens show it.
            place = "/?poll" if "poll" in request.query else "/"
            response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": place})
            response.set_cookie(guard.cookie_name, guard.cookie, httponly=True, samesite="Strict")
            return response
        guard.check_caller(request.method, request.headers, request.cookies)
        return await handler(request)

    return guarded


def _words(error: web.HTTPException, request: web.Request) -> str:
    match error.status:
        case HTTPStatus.NOT_FOUND:
            return f"There is nothing at {request.path[:200]}."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return f"{request.path[:200]} cannot be asked with {request.method[:20]}."
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return f"The body is larger than {MAX_BODY_BYTES} bytes."
        case _:
            return f"{error.status} {error.reason}."


async def _guard(control: Control, port: int) -> Guard:
    if control.token_file is None:
        raise ListenError(
            "A port is not served without a token.", remedy="Set `control.token_file`."
        )
    return Guard(await asyncio.to_thread(read_token, control.token_file), port)
