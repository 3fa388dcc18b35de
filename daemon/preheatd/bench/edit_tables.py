"""The results of ``preheat bench edit`` as tables: for a terminal, and as a part of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from preheat.job import PHASES
from preheatd.bench.edit_figures import (
    EDITS,
    PROGRAMS,
    WAYS,
    aims,
    by_daemon,
    of_fresh,
    problems,
)
from preheatd.bench.tables import machine_line, markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from preheatd.bench.edit_figures import EditFigures, EditResults, ProgramResult
    from preheatd.bench.tables import Rows

HEADING = "Edit to fresh"
EDIT_COLUMNS = (
    "program, edit",
    "processes",
    "edit to published (s)",
    "from",
    "to",
    "build (s)",
    "proof (s)",
    "daemon (s)",
    "daemon, of F",
    "of F",
    "F divided by it",
)
# Interpreter and imports of the daemon's modules come before the first of them.
_PHASES = tuple(name for name in PHASES if name != "proof")
PHASE_COLUMNS = ("program, edit", "processes", *(f"{name} (s)" for name in _PHASES))
OTHER_COLUMNS = ("program", "proof, lean (s)", "proof, dynamo (s)", "zygote (MB)")


def edit_rows(results: EditResults) -> Rows:
    """One row for each program, kind of edit and way."""
    return tuple(_edit_row(program, one) for program in results.programs for one in program.edits)


def _edit_row(program: ProgramResult, one: EditFigures) -> tuple[str, ...]:
    ratio, own = of_fresh(program, one), by_daemon(program, one)
    return (
        f"{program.program}, {one.edit}",
        one.way,
        _seconds(one.median.seconds),
        _seconds(one.fastest),
        _seconds(one.slowest),
        _seconds(one.median.build_seconds),
        _seconds(one.median.proof_seconds),
        _seconds(one.own_seconds),
        "" if own is None else f"{own:.1%}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if not ratio else f"{1 / ratio:.1f}",
    )


def phase_rows(results: EditResults) -> Rows:
    """Where the time of each build goes."""
    return tuple(
        (
            f"{program.program}, {one.edit}",
            one.way,
            *(_seconds(one.median.phases.get(name, 0.0)) for name in _PHASES),
        )
        for program in results.programs
        for one in program.edits
    )


def other_rows(results: EditResults) -> Rows:
    """Proofs of single forms in fresh processes, and the memory of the zygote."""
    return tuple(
        (
            one.program,
            _seconds(one.lean_proof_seconds),
            _seconds(one.dynamo_proof_seconds),
            "" if one.zygote_bytes is None else f"{one.zygote_bytes / 1e6:.0f}",
        )
        for one in results.programs
        if not one.failure
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def aim_lines(results: EditResults) -> tuple[str, ...]:
    """Each aim with ``met`` or ``not met``."""
    return tuple(
        f"{'met    ' if one.ok else 'not met'}  {one.name}: {one.value:.3g} "
        f"(aim: at most {one.limit:.3g})"
        for one in aims(results)
    )


def print_results(console: Console, results: EditResults) -> None:
    """All tables, then the aims."""
    for columns, rows in _tables(results):
        _print_table(console, columns, rows)
        console.print()
    for line in (*aim_lines(results), *problems(results)):
        console.print(line, highlight=False, markup=False)


def _tables(results: EditResults) -> Iterator[tuple[Sequence[str], Rows]]:
    yield EDIT_COLUMNS, edit_rows(results)
    yield PHASE_COLUMNS, phase_rows(results)
    yield OTHER_COLUMNS, other_rows(results)


def _print_table(console: Console, columns: Sequence[str], rows: Rows) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number > 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def section(results: EditResults) -> str:
    """The part of the page."""
    named = [one.program for one in results.programs]
    edits, phases, others = _tables(results)
    lines = [
        f"## {HEADING}: {', '.join(named)}",
        "",
        machine_line(results.machine, results.date, 1).rpartition(";")[0]
        + f"; medians of {results.rounds} edits each.",
        "",
        "```console",
        f"$ {results.command}",
        "```",
        "",
        *(f"* `{name}`: {PROGRAMS[name]}." for name in named),
        *(f"* {name}: {what}." for name, what in EDITS.items()),
        *(f"* {name}: {what}." for name, what in WAYS.items()),
        "",
        *markdown_table(*edits),
        "",
        "Where the build's time goes:",
        "",
        *markdown_table(*phases),
        "",
        "A really fresh proof of one form alone, and the zygote's memory:",
        "",
        *markdown_table(*others),
        "",
        "```text",
        *aim_lines(results),
        *problems(results),
        "```",
        "",
    ]
    return "\n".join(lines)
