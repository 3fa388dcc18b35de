"""A collection as JSON for programs and as tables for people; the same for a dry run."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from preheat.store.collection import amount
from preheatd.report import table_of

if TYPE_CHECKING:
    from rich.console import Console

    from preheat.store.collecting import Collected
    from preheat.store.collection import CollectionPlan, Deletion

_SHOWN = 200
_SHORT = 12


def collection_answer(store: str, plan: CollectionPlan, done: Collected | None) -> dict[str, Any]:
    """``preheat collect --json``; ``done`` is null for a dry run."""
    result = None
    if done is not None:
        result = {
            "deleted": [one.digest for one in done.deleted],
            "spared": msgspec.to_builtins(done.spared),
            "bytes": done.bytes,
            "left_over": done.left_over,
        }
    return {"store": store, "plan": msgspec.to_builtins(plan), "done": result}


def print_collection(
    console: Console, store: str, plan: CollectionPlan, done: Collected | None
) -> None:
    """One line a deletion, why; then the sums, what falls short, and what to know."""
    console.print(Text(f"store   {store}"))
    deletions = plan.deletions if done is None else done.deleted
    if deletions:
        table = table_of("target", "digest", "last used (UTC)", "size", "reason", "why")
        for one in deletions[:_SHOWN]:
            table.add_row(*_row(one))
        console.print(table)
    if len(deletions) > _SHOWN:
        console.print(Text(f"and {len(deletions) - _SHOWN} more; all of them are in --json"))
    console.print(Text(_sum(plan, deletions, done)))
    for spared in done.spared if done else ():
        console.print(Text(f"spared {spared.digest[:_SHORT]}: {spared.reason} meanwhile"))
    for short in plan.shortfalls:
        console.print(Text(str(short), style="red"))
    for note in plan.notes:
        console.print(Text(f"note: {note}"))


def _row(one: Deletion) -> list[Text]:
    size = amount(one.bytes)
    return [
        Text(one.target or "(an object)"),
        Text(one.digest[:_SHORT]),
        Text(at_text(one.last_used)),
        Text(size),
        Text(one.reason),
        Text(one.why),
    ]


def at_text(seconds: float) -> str:
    """A time since the epoch as UTC to the minute."""
    try:
        at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "?"
    return at.strftime("%Y-%m-%d %H:%M")


def _sum(plan: CollectionPlan, deletions: tuple[Deletion, ...], done: Collected | None) -> str:
    packages = sum(one.target is not None for one in deletions)
    objects = len(deletions) - packages
    freed = plan.bytes_before - plan.bytes_after if done is None else done.bytes
    verb = "would delete" if done is None else "deleted"
    text = (
        f"{verb} {packages} of {_count(plan.packages, 'package')} and "
        f"{_count(objects, 'unreferenced object')}: {amount(freed)} of {amount(plan.bytes_before)}; "
        f"{plan.leases} leased"
    )
    if done is not None and done.left_over:
        text += f"; {_count(done.left_over, 'left-over temporary file')} removed"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
