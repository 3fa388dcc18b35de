"""The table ``[fleet]`` of the configuration: as it is written, and as checked values."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

import msgspec

from preheat.errors import ConfigurationError

WhenBusy = Literal["wait", "build", "skip"]
LEAST_LEASE_SECONDS, MOST_LEASE_SECONDS = 1.0, 3600.0


class FleetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[fleet]`` as written. ``lease`` is in seconds."""

    remote: str | None = None
    when_busy: WhenBusy = "wait"
    lease: float = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet:
    """The store that nodes share, and how they keep from building the same thing.

    ``remote``: its URL, None for none. ``when_busy``: while another node builds, wait for it, build as well,
    or do without. ``lease``: a node that gives no sign of life for so many seconds is gone.
    """

    remote: str | None = None
    when_busy: WhenBusy = "wait"
    lease: float = 120.0


def fleet_of(table: FleetTable, file: Path, project: Path) -> Fleet:
    """The table, ready to use: a path counts from the project. Raises ``ConfigurationError``."""
    if not LEAST_LEASE_SECONDS <= table.lease <= MOST_LEASE_SECONDS:
        raise ConfigurationError(
            f"{file}: `fleet.lease` must be seconds from {LEAST_LEASE_SECONDS:g} to "
            f"{MOST_LEASE_SECONDS:g}, not {table.lease}."
        )
    if table.remote == "":
        raise ConfigurationError(
            f"{file}: `fleet.remote` is empty.", remedy="Write a URL or a path."
        )
    remote = table.remote
    if remote is not None and ":" not in remote:
        remote = os.path.normpath(project / Path(remote).expanduser())
    return Fleet(remote=remote, when_busy=table.when_busy, lease=table.lease)
