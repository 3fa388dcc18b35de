"""Who may ask over TCP: whoever knows the token, and no web page of somebody else. Pure, but for reading it.

Every account of a machine can connect to a loopback port, and so can every web page in a browser there.
A page cannot know the token; that ``Host`` is a loopback name keeps away pages that made their own name
lead to this machine (DNS rebinding).
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import secrets
import stat
from http import HTTPStatus
from typing import TYPE_CHECKING

from preheatd.control.refusals import ForbiddenError, ListenError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHORTEST_TOKEN = 16
_LARGEST_TOKEN_FILE = 4096
_READING = ("GET", "HEAD")


@dataclasses.dataclass(frozen=True)
class Guard:
    """Judges requests to one port.

    The browser's cookie is made of the token and of ``life``, so it ends with the daemon; it is good for
    reading alone. Cookies of one host are sent to every port of it: hence it is not the token itself.
    """

    token: str
    port: int
    life: bytes = dataclasses.field(default_factory=lambda: secrets.token_bytes(32))

    @property
    def cookie_name(self) -> str:
        """One for each port, because browsers do not tell ports apart."""
        return f"preheat-{self.port}"

    @property
    def cookie(self) -> str:
        """What a browser shows instead of the token."""
        return hmac.new(self.life, self.token.encode(), hashlib.sha256).hexdigest()

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raises ``ForbiddenError`` for a request that was made for another site, or by one."""
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if self.port == 80:
            hosts |= {"127.0.0.1", "localhost", "[::1]"}
        host = headers.get("Host", "").lower()
        if host not in hosts:
            raise ForbiddenError(
                f"This daemon is not the host {host[:200]!r}.",
                status=HTTPStatus.MISDIRECTED_REQUEST,
                remedy=f"Ask for 127.0.0.1:{self.port}.",
            )
        origin = headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{one}" for one in hosts}:
            raise ForbiddenError(
                f"A page of {origin[:200]!r} may not ask this daemon.", status=HTTPStatus.FORBIDDEN
            )

    def check_caller(
        self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> None:
        """Raises ``ForbiddenError`` for a caller who does not show the token, or the cookie to read."""
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return
        cookie = cookies.get(self.cookie_name, "")
        if method in _READING and _same(cookie, self.cookie):
            return
        raise ForbiddenError(
            "The token is missing or wrong.",
            status=HTTPStatus.UNAUTHORIZED,
            remedy="Send `Authorization: Bearer TOKEN`, with the word in `control.token_file`; in a "
            "browser open /?token=TOKEN.",
        )

    def is_token(self, given: str) -> bool:
        """Whether somebody knows the token; takes equally long either way."""
        return _same(given, self.token)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def read_token(path: Path) -> str:
    """The token in a file that nobody else can read or write. Blocks. Raises ``ListenError``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _check_token_file(path, os.fstat(descriptor))
            text = os.read(descriptor, _LARGEST_TOKEN_FILE + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ListenError(f"The token file {path} cannot be read: {error.strerror}.") from error
    token = text.decode("ascii", "replace").strip()
    if not SHORTEST_TOKEN <= len(token) <= _LARGEST_TOKEN_FILE or not (
        token.isascii() and token.isprintable() and " " not in token
    ):
        raise ListenError(
            f"The token file {path} does not hold one word of {SHORTEST_TOKEN} or more ASCII characters.",
            remedy=f"Make one: `(umask 077; openssl rand -hex 32 > {path})`.",
        )
    return token


def _check_token_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ListenError(f"The token file {path} is no regular file.")
    if found.st_uid not in (os.geteuid(), 0):
        raise ListenError(f"The token file {path} belongs to another account: {found.st_uid}.")
    # Readable for a group: systemd shows credentials so, and a group may be given the token on purpose.
    if found.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise ListenError(
            f"The token file {path} has the mode {stat.S_IMODE(found.st_mode):04o}: others could read "
            "or change it.",
            remedy=f"chmod 0600 {path}",
        )
