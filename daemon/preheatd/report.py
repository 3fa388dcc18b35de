"""What a person sees: tables, and failures in full. ``progress.py`` has what moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from preheat.verdict import Verdict
from preheatd.answers import form_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from preheat.verdict import Reason
    from preheatd.findings import Finding
    from preheatd.history import Entry
    from preheatd.plan import Plan
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


def print_plan(console: Console, plan: Plan) -> None:
    """One line a target: verdict, action, why."""
    table = table_of("target", "verdict", "action", "why")
    for one in plan.decisions:
        table.add_row(one.target, verdict_text(one.verdict), str(one.action), why_text(one.reasons))
    console.print(table)


def print_warmed(console: Console, warmed: Iterable[Warmed]) -> None:
    """One line a target: what was done and how it ended; then the failures in full."""
    table = table_of("target", "verdict", "result", "seconds", "form", "max error")
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
    table = table_of("target", "verdict", "form", "built", "why")
    for one in status.targets:
        why = why_text(one.reasons)
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
        ("control", daemon.control_trouble or ""),
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
    table = table_of("at (UTC)", "target", "what", "seconds", "why")
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
        table = table_of("  difference", "built", "here")
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


def table_of(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold" if name == "why" else "ellipsis")
    return table


def verdict_text(verdict: Verdict) -> Text:
    """A verdict in its colour."""
    return Text(str(verdict), style=STYLES[verdict])


def why_text(reasons: tuple[Reason, ...]) -> Text:
    shown = "; ".join(str(reason) for reason in reasons[:_REASONS_SHOWN])
    more = len(reasons) - _REASONS_SHOWN
    return Text(f"{shown}; and {more} more" if more > 0 else shown)
