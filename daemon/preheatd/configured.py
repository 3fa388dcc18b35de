"""The configuration file of a running daemon: read again when its text has changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from preheat.errors import PreheatError
from preheat.limits import MAX_TOML_BYTES, read_limited
from preheatd import events
from preheatd.config import load_config

if TYPE_CHECKING:
    from preheatd.config import Config


class ConfigurationFile:
    """Knows the text that was read last. ``emit`` is told what is in force and what is refused."""

    def __init__(self, config: Config, emit: events.Emit) -> None:
        self._emit = emit
        self._text: bytes | None = _read(config)

    def doubt(self) -> None:
        """Read it again the next time, also if its text is the same: what it names may have changed."""
        self._text = None

    async def changed(self, config: Config) -> Config | None:
        """The configuration as it is now, when that is news and can be used; else None."""
        text = await asyncio.to_thread(_read, config)
        if text == self._text:
            return None
        self._text = text
        try:
            new = await asyncio.to_thread(load_config, config.file)
        except PreheatError as error:
            self._refuse(f"{error} The configuration from before stays in force.")
            return None
        if new.store != config.store:
            self._refuse(f"{config.file}: `store` takes effect after a restart.")
            return None
        self._emit(events.Event(action=events.CONFIG_RELOADED, detail=str(config.file)))
        return new

    def _refuse(self, detail: str) -> None:
        self._emit(events.Event(action=events.CONFIG_REFUSED, detail=detail))


def _read(config: Config) -> bytes:
    try:
        return read_limited(config.file, MAX_TOML_BYTES)
    except OSError:
        return b""
