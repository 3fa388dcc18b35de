"""A caller of a daemon's control interface that is no part of preheat: plain HTTP over a socket."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LIMIT_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        """The error object, which every refusal has in full."""
        assert self.status >= 400, self
        error: dict[str, str] = self.json()["error"]
        assert set(error) == {"kind", "message", "remedy"}
        assert error["message"]
        return error


def connect(place: Path | int) -> socket.socket:
    """A connection to a unix socket, or to a port of this machine."""
    if isinstance(place, int):
        return socket.create_connection(("127.0.0.1", place), LIMIT_SECONDS)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(LIMIT_SECONDS)
    made.connect(str(place))
    return made


def ask(
    place: Path | int,
    path: str,
    body: object = None,
    *,
    method: str = "",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request: GET without a body, else POST; bytes are sent as they are."""
    host = f"127.0.0.1:{place}" if isinstance(place, int) else "preheat"
    connection = http.client.HTTPConnection(host)
    connection.sock = connect(place)
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        method = method or ("GET" if body is None else "POST")
        connection.request(method, path, body=data, headers={"Host": host, **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def raw(place: Path | int, data: bytes) -> bytes:
    """Send bytes and read until the other side has had enough."""
    with connect(place) as made:
        made.sendall(data)
        received = b""
        while part := made.recv(65536):
            received += part
        return received
