"""How others find a daemon: its registration in the state directory, and where it listens."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Self

import msgspec

from preheatd import owned
from preheatd.abandoned import note_group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preheatd.config import Config
    from preheatd.live_view import LiveView
    from preheatd.operations import Listening


class Presence:
    """An asynchronous context manager: inside, the daemon of ``view`` can be found and asked.

    ``control``: where questions arrive; None for a daemon that cannot be asked. ``keeping``: entered with
    the daemon's own directory, for as long as that is there.
    """

    def __init__(
        self,
        view: LiveView,
        control: Listening | None,
        keeping: Callable[[Path], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._view = view
        self._control = control
        config = view.project.config
        self._owner = owned.Owner(
            pid=os.getpid(),
            purpose="daemon",
            started_at=view.started_at,
            configuration=str(config.file),
        )
        self._keeping = keeping
        self._inside = contextlib.ExitStack()
        self._directory = owned.OwnedDirectory(view.project.state.daemons, self._owner)

    async def __aenter__(self) -> Self:
        place = self._inside.enter_context(self._directory)
        try:
            self._inside.enter_context(self._keeping(place))
            await self.apply(self._view.project.config)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        # In this order nobody finds a daemon whose socket is closed.
        self._inside.close()
        if self._control is not None:
            await self._control.close()

    def note_group(self, pid: int) -> None:
        """Whoever finds this daemon dead ends that process group too, if it can still be noted."""
        with contextlib.suppress(OSError):
            note_group(self._directory.path, pid)

    async def apply(self, config: Config) -> None:
        """Listen as this configuration says, and leave word where."""
        if self._control is None:
            return
        path = await self._control.apply(config)
        if path != self._owner.control:
            self._view.control = path
            self._owner = msgspec.structs.replace(self._owner, control=path)
            await asyncio.to_thread(self._directory.note, self._owner)
