"""Listening sockets: a path in the file system that is taken whole or not at all, and a loopback port."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import grp
import os
import secrets
import socket
import stat
from typing import TYPE_CHECKING

from preheatd.control.refusals import ListenError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# sizeof(sockaddr_un.sun_path), with the NUL at its end.
MAX_PATH_BYTES = 107
MODE = 0o660
BACKLOG = 64


@dataclasses.dataclass(frozen=True)
class UnixListener:
    """A socket that listens at a path; ``identity`` tells it from one that others put there."""

    socket: socket.socket
    path: Path
    identity: tuple[int, int]

    def close(self) -> None:
        """Listen no more, and take the path away if it is still this socket's. Blocks."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if _identity(self.path) == self.identity:
                self.path.unlink()


def listen_at(path: Path, group: str = "") -> UnixListener:
    """Listen at ``path``, with the mode 0660 and the group from the first moment. Blocks.

    A socket file that nobody listens at is replaced. Raises ``ListenError`` for a path that is too
    long, or taken by a live process or by something else than a socket.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}")
    for one in (path, temporary):
        if len(os.fsencode(one)) > MAX_PATH_BYTES:
            raise ListenError(
                f"The socket path {path} has {len(os.fsencode(one))} bytes; {MAX_PATH_BYTES} are the "
                "most that Linux allows.",
                remedy="Name a shorter one in `control.socket`.",
            )
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _removed_at_the_end(temporary):
            made.bind(str(temporary))
            _give(temporary, group)
            made.listen(BACKLOG)
            _take(temporary, path)
        return UnixListener(made, path, _identity(path))
    except OSError as error:
        made.close()
        raise ListenError(f"Cannot listen at {path}: {error.strerror}.") from error
    except BaseException:
        made.close()
        raise


def listen_on(host: str, port: int) -> socket.socket:
    """Listen on a loopback address. Raises ``ListenError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise ListenError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    return made


@contextlib.contextmanager
def _removed_at_the_end(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _give(path: Path, group: str) -> None:
    # Nobody connects meanwhile: it does not listen yet.
    if group:
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError:
            raise ListenError(f"There is no group `{group}`, as `control.group` says.") from None
        try:
            os.chown(path, -1, number)
        except PermissionError:
            raise ListenError(
                f"The daemon may not give its socket to the group `{group}`.",
                remedy="Make the daemon's account a member of it.",
            ) from None
    path.chmod(MODE)


def _take(temporary: Path, path: Path) -> None:
    """Give the socket its name. A link, because it fails where there is something already."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        _check_stale(path)
        temporary.replace(path)


def _check_stale(path: Path) -> None:
    """Raises ``ListenError`` unless ``path`` is a socket that nobody listens at."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ListenError(
            f"The socket path {path} is taken by something that is no socket.",
            remedy="Remove it, or name another path in `control.socket`.",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return
        except OSError as error:
            # A full backlog, for example: somebody is there.
            if error.errno == errno.ENOENT:
                return
    raise ListenError(
        f"Another process listens at {path} already.",
        remedy="End that one first, or name another path in `control.socket`.",
    )


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
