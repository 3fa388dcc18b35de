"""What a person sees: tables, a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from preheat.verdict import Verdict
from preheatd import events
from preheatd.answers import form_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console, RenderableType

    from preheat.verdict import Reason
    from preheatd.findings import Finding
    from preheatd.history import Entry
    from preheatd.plan import Decision, Plan
    from preheatd.shown import DaemonShown, FailureShown, OwnerShown, StatusShown
    from preheatd.state import Failure
    from preheatd.warming import Warmed

STYLES = {
    Verdict.FRESH: "green",
    Verdict.STALE: "yellow",
    Verdict.MISSING: "yellow",
    Verdict.BUILDING: "cyan",
    Verdict.FAILED: "red",
    Verdict.UNTRUSTED: "bold red",
}
_REASONS_SHOWN = 3
_REFRESH_PER_SECOND = 8
# What the live table shows by itself.
_IN_THE_PICTURE = {events.CHANGED, events.BUILD_QUEUED, events.PLANNED}


def print_plan(console: Console, plan: Plan) -> None:
    """One line a target: verdict, action, why."""
    table = _table("target", "verdict", "action", "why")
    for one in plan.decisions:
        table.add_row(one.target, verdict_text(one.verdict), str(one.action), _why(one.reasons))
    console.print(table)


def print_warmed(console: Console, warmed: Iterable[Warmed]) -> None:
    """One line a target: what was done and how it ended; then the failures in full."""
    table = _table("target", "verdict", "result", "seconds", "form", "max error")
    failures = []
    for one in warmed:
        proof = one.manifest.proof if one.manifest else None
        table.add_row(
            one.decision.target,
            verdict_text(one.decision.verdict),
            one.result,
            f"{one.seconds:.1f}" if one.seconds else "",
            form_of(one.manifest) or "",
            f"{proof.max_error:.2g}" if proof else "",
        )
        if one.failure is not None:
            failures.append((one.decision.target, one.failure))
    console.print(table)
    for name, failure in failures:
        print_failure(console, name, failure)


def print_status(console: Console, status: StatusShown) -> None:
    """Store, daemon, one line a target, then each failure with the end of its log."""
    console.print(f"store   {escape(status.store)}", highlight=False)
    print_daemons(console, status.daemons)
    if status.daemon is not None:
        for label, text in daemon_lines(status.daemon):
            console.print(f"        {label}: {escape(text)}", highlight=False)
    table = _table("target", "verdict", "form", "built", "why")
    for one in status.targets:
        why = _why(one.reasons)
        table.add_row(
            one.target, verdict_text(one.verdict), one.form or "", one.built_at or "", why
        )
    console.print(table)
    for one in status.targets:
        for kind, reason in one.without.items():
            console.print(
                escape(f"{one.target} has no {kind} form: {reason}"), highlight=False, style="dim"
            )
        if one.failure is not None:
            print_failure(console, one.target, one.failure, one.failure.log)


def daemon_lines(daemon: DaemonShown) -> list[tuple[str, str]]:
    """What is worth a line in a daemon's picture of itself: a label and a text for each. Pure."""
    building = ", ".join(f"{one.target} ({one.phase})" for one in daemon.building)
    lines = [
        ("paused", ", ".join(str(one) for one in daemon.paused)),
        ("configuration refused", daemon.refused or ""),
        ("control", daemon.control_trouble or ""),
        ("watch", daemon.watch.limit or ""),
        ("building", building),
        ("waiting", ", ".join(daemon.queue)),
    ]
    return [(label, text) for label, text in lines if text]


def print_daemons(console: Console, daemons: Sequence[OwnerShown]) -> None:
    """Which processes keep things warm, and what troubles them."""
    running = ", ".join(f"process {one.pid} since {one.started_at}" for one in daemons)
    console.print(f"daemon  {running or 'not running'}", highlight=False)
    for one in daemons:
        which = f" of {one.pid}" if len(daemons) > 1 else ""
        for trouble in one.troubles:
            console.print(Text(f"TROUBLE{which}: {trouble}", style="bold red"))


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """One line a finding, and below a problem how to mend it."""
    styles = {"ok": "green", "note": "", "problem": "red"}
    for one in findings:
        level = Text(f"{one.level:8}", style=styles[one.level])
        console.print(Text.assemble(level, (f"{one.check}: ", "bold"), one.detail))
        if one.fix:
            console.print(Text(f"        -> {one.fix}"))


def print_history(console: Console, entries: Iterable[Entry]) -> None:
    """One line an event, oldest first."""
    table = _table("at (UTC)", "target", "what", "seconds", "why")
    for entry in entries:
        event = entry.event
        seconds = "" if event.seconds is None else f"{event.seconds:.1f}"
        reasons = "; ".join(str(reason) for reason in event.reasons[:_REASONS_SHOWN])
        table.add_row(
            entry.at,
            Text(event.target or ""),
            Text(event.action.replace("_", " "), style="red" if event.is_problem else ""),
            seconds,
            Text("; ".join(part for part in (event.detail, reasons) if part)),
        )
    console.print(table)


def print_reasons(console: Console, reasons: Iterable[Reason], label: str = "") -> None:
    """One line a reason; differences that have two values stand side by side below."""
    reasons = tuple(reasons)
    differences = [one for one in reasons if one.built is not None or one.here is not None]
    for reason in reasons:
        if reason not in differences:
            console.print(f"  {label}{escape(str(reason))}", highlight=False)
    if differences:
        table = _table("  difference", "built", "here")
        for one in differences:
            words = f"  {one.kind.replace('_', ' ')}: {one.symbol or one.file}"
            table.add_row(Text(words), Text(one.built or ""), Text(one.here or ""))
        console.print(table)


def print_failure(
    console: Console, name: str, failure: Failure | FailureShown, log: str = ""
) -> None:
    """What went wrong, why, and what to do."""
    console.print(Text.assemble((f"{name}: ", "bold"), (failure.message, "red")))
    print_reasons(console, failure.reasons)
    if failure.remedy:
        console.print(f"  {escape(failure.remedy)}", highlight=False)
    for line in log.splitlines():
        console.print(f"  | {escape(line)}", highlight=False, style="dim")


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

    ``last_seconds``: how long each target's last build took, where that is known.
    """

    def __init__(self, console: Console, last_seconds: Mapping[str, float] | None = None) -> None:
        self._last_seconds = dict(last_seconds or {})
        self._decisions: tuple[Decision, ...] = ()
        self._builds: dict[str, _Build] = {}
        self._proofs: dict[str, float] = {}
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

    def planned(self, plan: Plan) -> None:
        """Show this plan from now on."""
        self._decisions = plan.decisions

    def _draw(self) -> RenderableType:
        table = _table("target", "verdict", "", "why")
        shown = {one.target for one in self._decisions}
        for one in self._decisions:
            verdict = Verdict.BUILDING if one.target in self._builds else one.verdict
            activity = self._activity(one.target)
            table.add_row(one.target, verdict_text(verdict), activity, _why(one.reasons))
        for name in self._builds.keys() - shown:
            table.add_row(name, verdict_text(Verdict.BUILDING), self._activity(name), Text(""))
        return table

    def _activity(self, name: str) -> RenderableType:
        build = self._builds.get(name)
        if build is None:
            proof = self._proofs.get(name)
            return Text(f"proving once more, {time.monotonic() - proof:.0f} s" if proof else "")
        text = f"{build.phase}, {time.monotonic() - build.started:.0f} s"
        last = self._last_seconds.get(name)
        return Spinner("dots", text=text if last is None else f"{text} (last time {last:.0f} s)")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold" if name == "why" else "ellipsis")
    return table


def verdict_text(verdict: Verdict) -> Text:
    """A verdict in its colour."""
    return Text(str(verdict), style=STYLES[verdict])


def _why(reasons: tuple[Reason, ...]) -> Text:
    shown = "; ".join(str(reason) for reason in reasons[:_REASONS_SHOWN])
    more = len(reasons) - _REASONS_SHOWN
    return Text(f"{shown}; and {more} more" if more > 0 else shown)
