"""The table ``[control]`` of the configuration: where the daemon may be asked."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_NAME = "control.sock"
# With it a caller says which configuration he means; another daemon then does not answer.
CONFIGURATION_HEADER = "Preheat-Configuration"


class ControlTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[control]`` as written."""

    socket: str | None = None
    group: str | None = None
    tcp: str | None = None
    token_file: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Control:
    """Where the daemon listens.

    ``socket`` None: at a place of its own, see ``default_socket``; ``listens`` false: at no socket.
    ``group``: the group that may use the socket; empty: the daemon's. ``tcp``: a loopback address and a
    port, or None; ``token_file`` holds what a caller there has to know.
    """

    socket: Path | None = None
    listens: bool = True
    group: str = ""
    tcp: tuple[str, int] | None = None
    token_file: Path | None = None


def control_of(table: ControlTable, file: Path, project: Path) -> Control:
    """The table, ready to use. Raises ``ConfigurationError``."""
    token_file = _path(project, table.token_file) if table.token_file else None
    tcp = None if table.tcp is None else _address(table.tcp, file)
    if tcp is not None and token_file is None:
        raise ConfigurationError(
            f"{file}: `control.tcp` needs `control.token_file`: every account of this machine can "
            "connect to a port.",
            remedy="Write a long random word to a file that only the daemon's account can read, and "
            "name it in `token_file`.",
        )
    return Control(
        socket=_path(project, table.socket) if table.socket else None,
        listens=table.socket != "",
        group=table.group or "",
        tcp=tcp,
        token_file=token_file,
    )


def default_socket(state: Path, configuration: Path, environ: Mapping[str, str]) -> Path:
    """Where a daemon listens by default: the service manager's RUNTIME_DIRECTORY, else its state.

    Daemons of several configurations may share a state directory, so the name has a digest there.
    """
    if first := environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(first).absolute() / SOCKET_NAME
    digest = hashlib.sha256(str(configuration).encode()).hexdigest()[:8]
    return state / f"control-{digest}.sock"


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(written: str, file: Path) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):(\d{1,5})", written)
    if found is None or not 0 <= int(found[3]) <= 65535:
        raise ConfigurationError(
            f"{file}: `control.tcp` is not of the form `127.0.0.1:PORT` or `[::1]:PORT`: {written!r}."
        )
    host = found[1] or found[2]
    if not is_loopback(host):
        raise ConfigurationError(
            f"{file}: `control.tcp` may name a loopback address alone, not {host!r}.",
            remedy="Use 127.0.0.1, and a tunnel of your own (ssh -L) from elsewhere.",
        )
    return host, int(found[3])


def _path(base: Path, written: str) -> Path:
    return Path(os.path.normpath(base / Path(written).expanduser()))
