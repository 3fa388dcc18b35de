"""Sockets that the service manager opened and handed over: systemd's ``sd_listen_fds(3)``.

They begin at descriptor 3; ``LISTEN_PID`` says for whom they are, ``LISTEN_FDS`` how many there are.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from preheatd.control.refusals import ListenError
from preheatd.control.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

FIRST_DESCRIPTOR = 3
MOST = 16
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def count(environ: Mapping[str, str], pid: int) -> int:
    """How many descriptors are meant for this process; 0 for what makes no sense. Pure."""
    try:
        if int(environ.get("LISTEN_PID", "")) != pid:
            return 0
        return min(max(int(environ.get("LISTEN_FDS", "")), 0), MOST)
    except ValueError:
        return 0


def inherited(environ: MutableMapping[str, str]) -> tuple[socket.socket, ...]:
    """The sockets that were handed over. Call it once, first: children inherit neither them nor the word.

    A descriptor that is no socket is left out.
    """
    number = count(environ, os.getpid())
    for name in _VARIABLES:
        environ.pop(name, None)
    found = []
    for descriptor in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + number):
        try:
            os.set_inheritable(descriptor, False)
            found.append(socket.socket(fileno=descriptor))
        except OSError:
            continue
    return tuple(found)


def check(handed: socket.socket) -> None:
    """Raises ``ListenError`` for a socket that the daemon must not, or cannot, serve."""
    name = handed.getsockname()
    if handed.type != socket.SOCK_STREAM or not handed.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    ):
        raise ListenError(
            f"The service manager handed over {name!r}, which is no listening stream socket.",
            remedy="Use ListenStream= in the socket unit, without Accept=yes.",
        )
    if handed.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(str(name[0])):
        raise ListenError(
            f"The service manager handed over {name[0]}, which other machines reach.",
            remedy="Use ListenStream=127.0.0.1:PORT in the socket unit.",
        )
    if handed.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
        raise ListenError("The service manager handed over a socket of an unknown family.")
