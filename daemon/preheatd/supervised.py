"""What ties a daemon to its service manager: readiness, status, watchdog, reload and drain.

The service manager may be systemd or nobody. What a notification says is decided here; ``notify.py``
sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from preheatd import events, reloading
from preheatd.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from preheatd.notify import Notifier
    from preheatd.plan import Plan
    from preheatd.state import State


class Supervised:
    """A daemon's side of its supervision.

    ``is_well``: whether what the daemon lives by works, asked in a thread; an exception is a no.
    ``emit`` is where the daemon's events go on to; ``pauses``: why no builds are begun.
    """

    def __init__(
        self,
        notifier: Notifier,
        emit: events.Emit,
        is_well: Callable[[], bool],
        state: State,
        pauses: Pauses | None = None,
    ) -> None:
        self._notifier = notifier
        self._emit = emit
        self._is_well = is_well
        self._state = state
        self._pauses = Pauses() if pauses is None else pauses
        self._phases: dict[str, str] = {}
        self._summary = "starting"
        self._refused = ""
        self._control = ""

    def heard(self, event: events.Event) -> None:
        """An event of the daemon: what it is doing is part of the status."""
        self._emit(event)
        if event.action == events.CONFIG_REFUSED:
            self._refused = event.detail
        elif event.action == events.CONFIG_RELOADED:
            self._refused = ""
        elif event.action in (events.CONTROL_FAILED, events.CONTROL_LISTENING):
            self._control = event.detail if event.action == events.CONTROL_FAILED else ""
        if event.target and event.action in (events.BUILD_STARTED, events.BUILD_PHASE):
            self._phases[event.target] = event.phase or "start"
            self._tell_status()
        elif event.action in (events.PAUSED, events.RESUMED):
            self._tell_status()

    def started(self) -> None:
        """The store is open, the watch is armed and the first plan is made."""
        self._notifier.ready()

    def planned(self, plan: Plan, building: Collection[str]) -> None:
        """A plan was made."""
        self._phases = {name: at for name, at in self._phases.items() if name in building}
        self._summary = plan.summary()
        self._tell_status()

    def reloading(self) -> None:
        """The configuration is about to be read again because somebody asked."""
        self._notifier.reloading()

    def reloaded(self) -> None:
        """It was read, and the plan was made with it, or with the one from before. Writes a file."""
        # On a full disk nobody gets an answer; the daemon goes on.
        with contextlib.suppress(OSError):
            reloading.give_answer(self._state, refused=self._refused)
        self._notifier.ready()
        self._tell_status()

    def stopping(self) -> None:
        """The daemon ends."""
        self._notifier.stopping()
        self._notifier.status("stopping")

    async def keep_watchdog(self) -> None:
        """Say that the daemon lives, for as long as it does.

        The loop runs when this task does; observer and store are asked. Nothing is said for one that
        is dead or does not answer, and the service manager then ends and restarts the daemon.
        """
        limit = self._notifier.watchdog_seconds
        if limit is None:
            return
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit / 2):
                    if await asyncio.to_thread(self._is_well_now):
                        self._notifier.alive()
            await asyncio.sleep(limit / 4)

    def _is_well_now(self) -> bool:
        try:
            return self._is_well()
        except Exception:
            return False

    def _tell_status(self) -> None:
        text = status_text(
            self._summary,
            self._phases,
            self._refused,
            paused=str(self._pauses),
            control=self._control,
        )
        self._notifier.status(text)


def status_text(
    summary: str, phases: dict[str, str], refused: str, *, paused: str = "", control: str = ""
) -> str:
    """One line: the targets by verdict, what is building and how far, and what is not as it should be."""
    parts = [summary or "no targets"]
    if paused:
        parts.append(f"PAUSED: {paused}")
    if phases:
        parts.append("building " + ", ".join(f"{name} ({at})" for name, at in phases.items()))
    if refused:
        parts.append(f"CONFIGURATION REFUSED: {refused}")
    if control:
        parts.append(f"NO CONTROL: {control}")
    return "; ".join(parts)
