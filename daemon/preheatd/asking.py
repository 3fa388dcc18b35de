"""Finds the daemon of a configuration and asks it: what the commands do first."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import NoDaemonError
from preheatd.control.settings import default_socket
from preheatd.state import State, state_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from preheatd.answers import Json
    from preheatd.config import Config
    from preheatd.control.client import Client

SOON_SECONDS = 5.0


def daemon_sockets(config: Config, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where daemons of this configuration listen, the likeliest first. Blocks.

    ``PREHEAT_SOCKET`` alone where it is set; else what running daemons left word of. For an account
    that cannot see the state directory: what the configuration names.
    """
    if written := environ.get("PREHEAT_SOCKET"):
        return (Path(written).absolute(),)
    state = State(state_path(config.store, environ))
    try:
        daemons = state.running_daemons(config.file)
    except OSError:
        named = config.control.socket or default_socket(state.path, config.file, environ)
        return (named,) if config.control.listens else ()
    return tuple(Path(one.control) for one in daemons if one.control)


@contextlib.asynccontextmanager
async def connected(config: Config) -> AsyncIterator[Client]:
    """The daemon of this configuration, as a ``Client``. Raises ``NoDaemonError``."""
    found = await asyncio.to_thread(daemon_sockets, config, os.environ)
    if not found:
        raise NoDaemonError(f"No daemon keeps {config.file} warm and can be asked.")
    module = importlib.import_module(
        "preheatd.control.client"
    )  # only here: it costs a third of a second
    client: Client = module.Client(found[0], config.file)
    async with client:
        yield client


async def asked(
    config: Config, path: str, parameters: Mapping[str, str] | None = None
) -> Json | None:
    """A daemon's answer to a question; None where there is no daemon, or none that answers soon.

    The second is said on standard error. Raises the daemon's own errors.
    """
    daemon = False
    try:
        async with connected(config) as client:
            daemon = True
            return await client.get(path, parameters, seconds=SOON_SECONDS)
    except NoDaemonError as error:
        if daemon:
            sys.stderr.write(f"preheat: {error.message} Looking at the disk instead.\n")
        return None
