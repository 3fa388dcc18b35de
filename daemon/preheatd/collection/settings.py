"""The table ``[collection]`` of the configuration: as it is written, and as checked rules."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError
from preheatd.later import later
from preheatd.politeness.settings import parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.store import collection
    from preheat.store.collection import Limits, Rules
else:
    # Whoever reads a configuration collects nothing, as a rule.
    collection = later("preheat.store.collection")

# Within the grace a publication must be able to finish.
LEAST_GRACE_SECONDS = 600.0
NEVER = "never"
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h|d)")
_HOUR_SECONDS = 3600.0
_UNITS = {"s": 1.0, "min": 60.0, "h": _HOUR_SECONDS, "d": 24 * _HOUR_SECONDS}


class CollectionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[collection]`` as written. Sizes such as ``"10GiB"``, times such as ``"30d"`` or ``"never"``."""

    max_size: str | None = None
    max_objects: int | None = None
    max_age: str | None = None
    target_max_size: str | None = None
    target_max_objects: int | None = None
    target_max_age: str | None = None
    keep_generations: int = 7
    vanished_after: str = "30d"
    grace: str = "24h"
    interval: str = "1h"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """The rules, and how often the daemon collects; None: never by itself."""

    rules: Rules = dataclasses.field(default_factory=lambda: collection.Rules())
    interval_seconds: float | None = _HOUR_SECONDS


def collection_of(table: CollectionTable, where: str) -> Collection:
    """The table, ready to use. Raises ``ConfigurationError``; ``where`` is what its message begins with.

    ``where`` ends where the key follows, as in ``preheat.toml: `collection.``.
    """
    vanished = _seconds(table.vanished_after, where, "vanished_after")
    grace = _seconds(table.grace, where, "grace")
    if grace is None or grace < LEAST_GRACE_SECONDS:
        raise ConfigurationError(
            f"{where}grace` must be 10 minutes or more, not {table.grace!r}: what is being published is "
            "not named by anything yet."
        )
    if table.keep_generations < 0:
        raise ConfigurationError(
            f"{where}keep_generations` must be 0 or more, not {table.keep_generations}."
        )
    interval = _seconds(table.interval, where, "interval")
    if interval == 0:
        raise ConfigurationError(f'{where}interval` must be above 0, or "{NEVER}".')
    return Collection(
        rules=collection.Rules(
            store=_limits(table, where, ""),
            target=_limits(table, where, "target_"),
            keep_generations=table.keep_generations,
            vanished_seconds=vanished,
            grace_seconds=grace,
        ),
        interval_seconds=interval,
    )


def _limits(table: CollectionTable, where: str, prefix: str) -> Limits:
    age, objects = getattr(table, f"{prefix}max_age"), getattr(table, f"{prefix}max_objects")
    if objects is not None and objects < 0:
        raise ConfigurationError(f"{where}{prefix}max_objects` must be 0 or more, not {objects}.")
    return collection.Limits(
        max_bytes=_bytes(getattr(table, f"{prefix}max_size"), where, f"{prefix}max_size"),
        max_objects=objects,
        max_age_seconds=None if age is None else _seconds(age, where, f"{prefix}max_age"),
    )


def _bytes(written: str | None, where: str, key: str) -> int | None:
    if written is None:
        return None
    size = parse_size(written)
    if size is None:
        raise ConfigurationError(
            f'{where}{key}` must be a size with its unit, such as "10GiB", not {written!r}.'
        )
    return size


def _seconds(written: str, where: str, key: str) -> float | None:
    if written == NEVER:
        return None
    seconds = parse_seconds(written)
    if seconds is None:
        raise ConfigurationError(
            f'{where}{key}` must be a time such as "90s", "30min", "24h" or "30d", or "{NEVER}", '
            f"not {written!r}."
        )
    return seconds


def parse_size(written: str) -> int | None:
    """A size such as ``10GiB``, ``1.5 GB``, ``100B``, or ``10G`` for ``10GiB``; None where it is none."""
    text = written.strip()
    return parse_bytes(f"{text}iB" if text.endswith(("K", "M", "G", "T")) else text)


def parse_seconds(written: str) -> float | None:
    """A time such as ``90s``, ``30min``, ``24h`` or ``30d`` in seconds; None where it is none."""
    match = _TIME.fullmatch(written.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def of_file(table: CollectionTable, file: Path) -> Collection:
    """The table of a configuration file. Raises ``ConfigurationError``, which names file and key."""
    return collection_of(table, f"{file}: `collection.")
