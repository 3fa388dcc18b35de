"""What the daemon says to the service manager: ready, reloading, stopping, what it does, that it lives.

The protocol is systemd's ``sd_notify(3)``: datagrams of ``NAME=value`` lines to the socket that
``NOTIFY_SOCKET`` names, a path, or ``@`` and an abstract name.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_STATUS = 500


class Notifier:
    """Sends notifications; does nothing where nobody asked for them.

    ``address``: the socket's, or empty. ``watchdog_seconds``: the time after which the service manager
    ends a daemon that does not say that it lives; None when it does not watch. A notification that
    cannot be delivered is lost: the daemon never waits for its service manager and never fails because
    of it.
    """

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds if address else None
        self._status = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Notifier:
        """As ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` say.

        What makes no sense there is left out.
        """
        return cls(environ.get("NOTIFY_SOCKET", ""), _watchdog_seconds(environ))

    def ready(self) -> None:
        """Started, or done with reloading."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again; ``ready`` ends it."""
        # systemd compares the time with the one of its own request.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """No new work is begun."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Puts the watchdog off once more."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``; nothing is sent while it stays the same."""
        text = " ".join(text.split())[:_LONGEST_STATUS]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        data = "\n".join(lines).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(data, self._address)
        except (OSError, ValueError):
            return


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    try:
        microseconds = int(environ.get("WATCHDOG_USEC", ""))
        owner = int(environ.get("WATCHDOG_PID") or os.getpid())
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 and owner == os.getpid() else None
