"""Daemons whose configuration cannot be read any more: found by the little that is left of it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import PreheatError
from preheat.limits import MAX_TOML_BYTES, TomlError, decode_toml, read_limited
from preheatd.config import CONFIG_NAME
from preheatd.configured_paths import store_path
from preheatd.state import State, state_path
from preheatd.troubles import recorded
from preheatd.written import PYPROJECT_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheatd.owned import Owner
    from preheatd.troubles import Trouble

_STORE_LINE = re.compile(r"""^\s*store\s*=\s*(?:"([^"\\]+)"|'([^']+)')\s*(?:#.*)?$""", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Found:
    """The daemons that keep a configuration warm, and their troubles by process."""

    daemons: tuple[Owner, ...] = ()
    troubles: Mapping[int, tuple[Trouble, ...]] = dataclasses.field(default_factory=dict)


def daemons_of(path: Path | None, environ: Mapping[str, str]) -> Found:
    """Who keeps the configuration at ``path``, a file, a directory or None as for ``load_config``.

    Not promised: to find any, where the place of the store cannot be told.
    """
    with contextlib.suppress(OSError, PreheatError, RuntimeError):
        file = _file(Path.cwd() if path is None else path.absolute())
        store = store_path(_store(file), file.parent.resolve(), environ)
        state = State(state_path(store, environ))
        return Found(state.running_daemons(file), recorded(state))
    return Found()


def _file(place: Path) -> Path:
    if place.is_dir():
        for directory in (place, *place.parents):
            for name in (CONFIG_NAME, PYPROJECT_NAME):
                if (directory / name).exists():
                    return directory / name
    return place


def _store(file: Path) -> str | None:
    """What a configuration says about the store, though it is not valid."""
    try:
        data = read_limited(file, MAX_TOML_BYTES)
    except OSError:
        return None
    try:
        table = decode_toml(data)
        if file.name == PYPROJECT_NAME:
            table = table["tool"]["preheat"]
        written = table.get("store")
    except (TomlError, KeyError, TypeError, AttributeError):
        found = _STORE_LINE.search(data.decode("utf-8", errors="replace"))
        written = (found[1] or found[2]) if found else None
    return written if isinstance(written, str) else None
