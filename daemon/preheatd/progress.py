"""What a person sees while builds run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from preheat.verdict import Verdict
from preheatd import events
from preheatd.report import table_of, verdict_text, why_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console, RenderableType

    from preheatd.plan import Decision, Plan

_REFRESH_PER_SECOND = 8
# Of a failed build's log, without what preheat itself notes there.
_TAIL_LINES = 8
_OWN_LINES = "[preheat] "
# What the live table shows by itself.
_IN_THE_PICTURE = {events.CHANGED, events.BUILD_QUEUED, events.PLANNED}


class PlainReport:
    """Prints each event as a line. For logs and for terminals that cannot be drawn on."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def emit(self, event: events.Event) -> None:
        """Print it, unless it says only that nothing special happened."""
        if event.action != events.CHANGED:
            self._console.print(escape(str(event)), highlight=False, soft_wrap=True)

    def planned(self, plan: Plan) -> None:
        """Plans are not printed: what follows from them is."""


@dataclasses.dataclass
class _Build:
    started: float
    phase: str = "start"


class LiveReport:
    """Draws the targets and what happens to each, and prints problems and results above.

    ``last_seconds``: how long each target's last build took, where that is known. ``log_tail`` gives the
    end of the log of a target's last build, by target and environment.
    """

    def __init__(
        self,
        console: Console,
        last_seconds: Mapping[str, float] | None = None,
        log_tail: Callable[[str, str], str] = lambda target, environment: "",
    ) -> None:
        self._last_seconds = dict(last_seconds or {})
        self._log_tail = log_tail
        self._last_tail = ""
        self._decisions: tuple[Decision, ...] = ()
        self._builds: dict[str, _Build] = {}
        self._proofs: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._console = console
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=_REFRESH_PER_SECOND
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def emit(self, event: events.Event) -> None:
        """Take it into the picture."""
        name = event.target or ""
        if event.action == events.BUILD_STARTED:
            self._builds[name] = _Build(time.monotonic())
            self._waiting.discard(name)
        elif event.action == events.BUILD_PHASE:
            if name in self._builds:
                self._builds[name].phase = event.phase or ""
        elif event.action == events.PROOF_STARTED:
            self._proofs[name] = time.monotonic()
        elif event.action in (events.PROOF_CONFIRMED, events.PROOF_STOPPED):
            self._proofs.pop(name, None)
        elif event.action not in _IN_THE_PICTURE:
            self._builds.pop(name, None)
            self._proofs.pop(name, None)
            if event.action == events.BUILD_PUBLISHED and event.seconds and not event.detail:
                self._last_seconds[name] = event.seconds
            style = "red" if event.is_problem else ""
            self._console.print(escape(str(event)), style=style, highlight=False)
            if event.action == events.BUILD_FAILED:
                self._print_tail(self._log_tail(name, event.environment or ""))

    def _print_tail(self, tail: str) -> None:
        """What the build said last, unless the screen shows that already."""
        lines = [line for line in tail.splitlines() if not line.startswith(_OWN_LINES)]
        shown = "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])
        if shown and shown != self._last_tail:
            self._console.print(escape(shown), highlight=False, style="dim")
        self._last_tail = shown

    def planned(self, plan: Plan) -> None:
        """Show this plan from now on."""
        self._decisions = plan.decisions
        self._waiting = {one.target for one in plan.to_build()}

    def _draw(self) -> RenderableType:
        table = table_of("target", "verdict", "", "why")
        shown = {one.target for one in self._decisions}
        for one in self._decisions:
            verdict = Verdict.BUILDING if one.target in self._builds else one.verdict
            activity = self._activity(one.target)
            table.add_row(one.target, verdict_text(verdict), activity, why_text(one.reasons))
        for name in self._builds.keys() - shown:
            table.add_row(name, verdict_text(Verdict.BUILDING), self._activity(name), Text(""))
        return table

    def _activity(self, name: str) -> RenderableType:
        build = self._builds.get(name)
        if build is None:
            if name in self._proofs:
                seconds = time.monotonic() - self._proofs[name]
                return Text(f"proving once more, {seconds:.0f} s", style="dim")
            return Text("waiting" if name in self._waiting else "", style="dim")
        text = f"{build.phase}, {time.monotonic() - build.started:.0f} s"
        last = self._last_seconds.get(name)
        return Spinner("dots", text=text if last is None else f"{text} (last time {last:.0f} s)")
