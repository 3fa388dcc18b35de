"""The table ``[politeness]`` of the configuration: as it is written, and as a checked value."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_NICE = 19
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)")
_UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}


class PolitenessTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[politeness]`` as written."""

    nice: int = 10
    idle_io: bool = True
    compile_threads: int | None = None
    memory_limit: str | None = None
    gpu_memory_below: float = 0.5
    gpu_utilisation_below: float = 0.5
    pause_on_battery: bool = False
    pause_above_load: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Politeness:
    """How builds give way.

    ``nice``: at least this nice (0 to 19). ``compile_threads`` None: from the processor quota.
    ``memory_limit`` in bytes for one build, None: no limit. A build on a GPU starts while less than
    these fractions of memory and of time are in use; 1: whatever is in use. ``pause_above_load``: a
    load for each processor of the machine, None: never.
    """

    nice: int = 10
    idle_io: bool = True
    compile_threads: int | None = None
    memory_limit: int | None = None
    gpu_memory_below: float = 0.5
    gpu_utilisation_below: float = 0.5
    pause_on_battery: bool = False
    pause_above_load: float | None = None

    @property
    def minds_gpus(self) -> bool:
        """Whether it matters what others do on a GPU."""
        return self.gpu_memory_below < 1 or self.gpu_utilisation_below < 1

    @property
    def minds_machine(self) -> bool:
        """Whether builds pause on battery or under load."""
        return self.pause_on_battery or self.pause_above_load is not None

    def when_asked(self) -> Politeness:
        """The same where somebody asked for the build and waits for it: it does not pause."""
        return dataclasses.replace(self, pause_on_battery=False, pause_above_load=None)


def checked(table: PolitenessTable, file: Path) -> Politeness:
    """The table as a value. Raises ``ConfigurationError``, which names ``file`` and the key."""

    def demand(key: str, is_possible: Callable[[float], bool], what: str) -> None:
        value = getattr(table, key)
        if value is not None and not is_possible(value):
            raise ConfigurationError(f"{file}: `politeness.{key}` must be {what}, not {value}.")

    demand("nice", lambda value: 0 <= value <= MAX_NICE, f"a whole number from 0 to {MAX_NICE}")
    demand("compile_threads", lambda value: value >= 1, "1 or more")
    for key in ("gpu_memory_below", "gpu_utilisation_below"):
        demand(key, lambda value: 0 < value <= 1, "a fraction above 0, at most 1")
    demand("pause_above_load", lambda value: 0 < value < math.inf, "a load above 0")
    return Politeness(
        **{**msgspec.structs.asdict(table), "memory_limit": _memory_limit(table.memory_limit, file)}
    )


def _memory_limit(written: str | None, file: Path) -> int | None:
    if written is None:
        return None
    amount = parse_bytes(written)
    if not amount:
        raise ConfigurationError(
            f"{file}: `politeness.memory_limit` must be an amount of memory above 0 with its unit, "
            f'such as "8GiB", not {written!r}.'
        )
    return amount


def parse_bytes(written: str) -> int | None:
    """An amount such as ``8GiB``, ``1.5 GB`` or ``100B`` in bytes; None where it is none."""
    match = _AMOUNT.fullmatch(written.strip())
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def bytes_text(amount: int) -> str:
    """An amount of bytes for a person, to three digits or so."""
    size, unit = float(amount), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
