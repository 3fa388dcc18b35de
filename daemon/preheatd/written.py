"""The configuration as it is written: its keys and types, and what is said about a file that has others.

Values are checked and defaults filled in by ``config.py``.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from preheat.errors import ConfigurationError
from preheat.limits import MAX_TOML_BYTES, TomlError, decode_toml, read_limited
from preheatd.collection.settings import CollectionTable
from preheatd.control.settings import ControlTable
from preheatd.executors.settings import ExecutorTable
from preheatd.flight.settings import FleetTable
from preheatd.politeness.settings import PolitenessTable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PYPROJECT_NAME = "pyproject.toml"
DEFAULT_TIMEOUT_SECONDS = 1800.0

Device = Literal["cpu", "cuda"]
Tolerance = dict[str, tuple[float, float]]


class TargetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[target]]`` as written."""

    factory: str
    name: str | None = None
    python: str | None = None
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout: float | None = None
    jobs: int | None = None
    device: Device | None = None
    priority: int = 0
    here: bool | None = None
    tolerance: Tolerance = {}
    on_fresh: list[str] | None = None
    on_failed: list[str] | None = None


class SignaturesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[signatures]`` as written."""

    policy: Literal["require", "warn", "off"] | None = None
    trusted_keys: str | None = None
    key: str | None = None


class ConfigTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file as written. ``python`` to ``on_failed`` are defaults for every target."""

    targets: list[str | TargetTable] = []
    target: list[TargetTable] = []
    watch: list[str] | None = None
    store: str | None = None
    layers: list[str] = []
    jobs: int = 1
    zygote: bool = True
    python: str | None = None
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    device: Device | None = None
    here: bool = True
    tolerance: Tolerance = {}
    on_fresh: list[str] = []
    on_failed: list[str] = []
    control: ControlTable = ControlTable()
    politeness: PolitenessTable = PolitenessTable()
    signatures: SignaturesTable = SignaturesTable()
    collection: CollectionTable = CollectionTable()
    fleet: FleetTable = FleetTable()
    executors: dict[str, ExecutorTable] = {}


def read_table(file: Path) -> ConfigTable:
    """Read a configuration file. Raises ``ConfigurationError``."""
    data: Any = _read_toml(file)
    if file.name == PYPROJECT_NAME:
        data = _tool_tables(file).get("preheat")
        if data is None:
            raise ConfigurationError(f"{file}: there is no table [tool.preheat].")
    if b"\\u0000" in msgspec.json.encode(data, enc_hook=str):
        raise ConfigurationError(f"{file}: a key or value has a NUL character in it.")
    try:
        return msgspec.convert(data, ConfigTable)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{file}: {_explain(str(error), file)}") from error


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return decode_toml(read_limited(file, MAX_TOML_BYTES))
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: no such file.") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}.") from error
    except TomlError as error:
        raise ConfigurationError(f"{file}: not valid TOML: {error}.") from error


def _tool_tables(file: Path) -> dict[str, Any]:
    tool = _read_toml(file).get("tool", {})
    return tool if isinstance(tool, dict) else {}


def _explain(message: str, file: Path) -> str:
    """Turn msgspec's ``... - at `$.a[0].b``` into a sentence that begins with the key."""
    problem, _, where = message.partition(" - at ")
    key = where.strip("`").removeprefix("$").removeprefix(".")
    unknown = re.search(r"unknown field `([^`]*)`", problem)
    if unknown:
        inside = key or ("[tool.preheat]" if file.name == PYPROJECT_NAME else "the file")
        hint = suggest(unknown[1], _table_of(key).__struct_fields__)
        return f"unknown key `{unknown[1]}` in {inside}. {hint}".rstrip()
    missing = re.search(r"missing required field `([^`]*)`", problem)
    if missing:
        return f"`{key}` needs the key `{missing[1]}`."
    return f"`{key}`: {problem[:1].lower()}{problem[1:]}." if key else f"{problem}."


def _table_of(key: str) -> type[msgspec.Struct]:
    if key.startswith("target"):
        return TargetTable
    if key.startswith("executors"):
        return ExecutorTable
    if key == "control":
        return ControlTable
    tables: dict[str, type[msgspec.Struct]] = {
        "politeness": PolitenessTable,
        "collection": CollectionTable,
        "fleet": FleetTable,
        "signatures": SignaturesTable,
    }
    return tables.get(key, ConfigTable)


def suggest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not among the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"Known: {', '.join(names)}." if names else ""
