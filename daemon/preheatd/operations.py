"""What may be asked of a running daemon, without a word about how the question arrives."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING, Protocol

from preheat.errors import ConfigurationError, WaitTimeoutError
from preheatd import answers, events, waiting
from preheatd import status as statuses
from preheatd.history import last_entries
from preheatd.kicks import to_kick
from preheatd.pauses import ASKED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preheatd.config import Config
    from preheatd.control.stream import Stream
    from preheatd.history import Entry
    from preheatd.kicks import Kicks
    from preheatd.live_view import LiveView
    from preheatd.pauses import Pause, Pauses
    from preheatd.plan import Decision
    from preheatd.rounds import Rounds


class Listening(Protocol):
    """Where questions arrive."""

    async def apply(self, config: Config) -> str:
        """Listen as this configuration says; the path of the socket, or empty. Raises nothing."""
        ...

    async def close(self) -> None:
        """Listen no more; who waits for an answer gets none."""
        ...


class Operations:
    """The daemon as others see it. Errors are ``PreheatError``s, meant for whoever asked.

    ``reread`` makes the daemon read its configuration again and ask the interpreters again;
    ``doubt`` the second alone. ``metrics`` gives Prometheus' text format; it reads files.
    """

    def __init__(
        self,
        view: LiveView,
        rounds: Rounds,
        pauses: Pauses,
        kicks: Kicks,
        stream: Stream,
        emit: events.Emit,
        *,
        reread: Callable[[], None],
        doubt: Callable[[], None],
        metrics: Callable[[], bytes],
    ) -> None:
        self._view = view
        self._rounds = rounds
        self._pauses = pauses
        self._kicks = kicks
        self.stream = stream
        self._emit = emit
        self._reread = reread
        self._doubt = doubt
        self.metrics = metrics

    @property
    def view(self) -> LiveView:
        """What the daemon knows without looking."""
        return self._view

    @property
    def pauses(self) -> Pauses:
        """Why no builds are begun."""
        return self._pauses

    def check_names(self, names: Sequence[str]) -> None:
        """Raises ``ConfigurationError`` for a target that the configuration does not have."""
        self._view.project.config.select(names)

    async def status(self) -> answers.Json:
        """Everything in short, as the last plan has it; before the first plan there are no targets."""
        return await self._view.status_answer()

    async def plan(self, names: Sequence[str] = ()) -> answers.Json:
        """A plan that is newer than the question: what the daemon carries out now."""
        self.check_names(names)
        await self._rounds.after_now()
        answer = self._view.plan_answer()
        if names:
            answer["targets"] = [one for one in answer["targets"] if one["target"] in names]
        return answer

    async def explain(self, name: str) -> answers.Json:
        """One target, looked at now."""
        project = self._view.project
        project = project.with_config(project.config.select((name,)))
        (looked,) = await statuses.look(project)
        looked = dataclasses.replace(looked, decision=self._view.now(looked.decision))
        symbols = await statuses.symbols(project, looked)
        return answers.explain_answer(looked, symbols, "daemon")

    async def history(self, count: int) -> tuple[Entry, ...]:
        """The last things that happened, the oldest first."""
        return await asyncio.to_thread(last_entries, self._view.project.state, count)

    async def kick(self, names: Sequence[str], *, rebuild: bool) -> tuple[Decision, ...]:
        """Try targets again now, whatever failed before; with ``rebuild`` also what is fresh.

        Without names: all that are not fresh, or all. The decisions about them are those of a plan
        that is newer than the question. A paused daemon begins the builds when it is resumed.
        """
        self.check_names(names)
        if not names and not self._view.plan.decisions:
            await self._rounds.after_now()
        chosen = to_kick(self._view.plan, names, rebuild=rebuild)
        unanswered = {one.target for one in self._view.plan.decisions if not one.environment}
        if unanswered & set(chosen):
            self._doubt()
        self._kicks.add(chosen, rebuild=rebuild)
        for name in chosen:
            self._emit(events.Event(action=events.KICKED, target=name))
        await self._rounds.after_now()
        return tuple(one for one in self._view.plan.decisions if one.target in set(chosen))

    def pause(self, detail: str = "") -> tuple[Pause, ...]:
        """Begin no build until ``resume``; builds that run go on. What holds now is returned."""
        before = self._pauses.current
        if not self._pauses.add(ASKED, detail) and self._pauses.current != before:
            reasons = tuple(one for one in self._pauses.reasons() if one.kind == ASKED)
            self._emit(events.Event(action=events.PAUSED, reasons=reasons))
        return self._pauses.current

    def resume(self) -> tuple[Pause, ...]:
        """Take ``pause`` back. Other reasons to pause stay, and are returned."""
        self._pauses.remove(ASKED)
        return self._pauses.current

    async def reload(self) -> answers.Json:
        """Read the configuration again and make a plan with it; as ``preheat reload --json``.

        Raises ``ConfigurationError`` when it is refused; the one from before is then in force.
        """
        self._reread()
        await self._rounds.after_now()
        if self._view.refused:
            raise ConfigurationError(self._view.refused)
        file = str(self._view.project.config.file)
        return {"from": "daemon", "pid": os.getpid(), "configuration": file}

    async def wait(self, names: Sequence[str], seconds: float) -> tuple[Decision, ...]:
        """Return when the named targets, all if none is named, are fresh.

        Raises what ``waiting.is_over`` raises, ``WaitTimeoutError`` after so many seconds, and
        ``ConfigurationError`` for a target that is not there, or no more.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._until_over(names)
        except TimeoutError:
            raise self._too_late(names) from None

    async def _until_over(self, names: Sequence[str]) -> tuple[Decision, ...]:
        self.check_names(names)
        await self._rounds.after_now()
        while True:
            self.check_names(names)
            decisions = self._view.settled(names or self._all())
            if waiting.is_over(decisions):
                return decisions
            await self._rounds.after_now(ask=False)

    def _all(self) -> list[str]:
        return [one.name for one in self._view.project.config.usual(()).targets]

    def _too_late(self, names: Sequence[str]) -> WaitTimeoutError:
        left = waiting.outstanding(self._view.settled(names or self._all()))
        paused = f"; the daemon is paused: {self._pauses}" if self._pauses else ""
        return WaitTimeoutError(
            f"Not fresh yet: {left or 'no plan was made'}{paused}.",
            remedy="Wait longer, or look at what takes so long with `preheat status`.",
        )
