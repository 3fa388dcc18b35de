"""The results as tables: for a terminal, and as a page in Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from preheatd.bench.figures import (
    PACKAGED,
    WAYS,
    by_growth,
    notes,
    ratios,
    targets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from preheatd.bench.figures import CaseResult, Figures, Machine, Results, Sample

Rows = tuple[tuple[str, ...], ...]

WAY_COLUMNS = (
    "way",
    "import torch (s)",
    "import preheat (ms)",
    "load (ms)",
    "first call (ms)",
    "import to first call (ms)",
    "steady (us)",
    "peak memory (MiB)",
    "modules",
    "max error",
    "remark",
)
GROWTH_COLUMNS = (
    "layers",
    "graphs",
    "kernels",
    "image (KiB)",
    "load (ms)",
    "first call (ms)",
    "import to first call (ms)",
    "steady (us)",
)
_RATIO_TEXTS = {
    "package_over_lean": "lean is {:.0f} times faster to the first result than torch's own package",
    "cold_over_lean": "lean is {:.0f} times faster to the first result than a cold torch.compile",
    "caches_over_lean": "lean is {:.0f} times faster to the first result than warm inductor caches",
    "package_over_lean_imported": "lean is {:.0f} times faster to load and call than torch's own package",
    "steady_over_compile": "a call takes {:.2f} times as long as with torch.compile, later on",
    "steady_over_eager": "a call takes {:.2f} times as long as without compilation, later on",
}


def title(case: CaseResult) -> str:
    """The name of a case for a heading."""
    layers = "" if case.program == "mlp" else f", {case.layers} layers"
    return f"{case.program}{layers}, {case.device}"


def way_rows(case: CaseResult) -> Rows:
    """One row a way, in the order of the columns."""
    return tuple(_way_row(one) for one in case.ways)


def _way_row(one: Figures) -> tuple[str, ...]:
    median = one.median
    if median is None:
        return (WAYS[one.way], *("" for _ in WAY_COLUMNS[2:]), notes(one))
    return (
        WAYS[one.way],
        f"{median.import_torch_seconds:.2f}",
        _ms(median.import_seconds) if one.way in PACKAGED else "",
        _ms(median.load_seconds),
        _ms(median.first_call_seconds),
        _ms(median.ready_seconds),
        _us(median),
        f"{median.peak_bytes / 2**20:.0f}",
        str(median.modules),
        f"{median.max_error:.2g}",
        notes(one),
    )


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"


def _us(median: Sample) -> str:
    return "" if median.steady_seconds is None else f"{median.steady_seconds * 1e6:.1f}"


def growth_rows(cases: Iterable[CaseResult]) -> Rows:
    """How load and first call of the lean form grow with the program; one row a number of layers."""
    rows = []
    for case in cases:
        lean = case.median("lean")
        if lean is None or lean.image is None:
            continue
        rows.append(
            (
                str(case.layers),
                str(lean.image.graphs),
                str(lean.image.kernels),
                f"{lean.image.bytes / 1024:.0f}",
                _ms(lean.load_seconds),
                _ms(lean.first_call_seconds),
                _ms(lean.ready_seconds),
                _us(lean),
            )
        )
    return tuple(rows)


def ratio_lines(case: CaseResult) -> tuple[str, ...]:
    """What the ratios say, one sentence each."""
    found = ratios(case)
    return tuple(
        text.format(value)
        for name, text in _RATIO_TEXTS.items()
        if (value := getattr(found, name)) is not None
    )


def target_lines(case: CaseResult) -> tuple[str, ...]:
    """Each aim with ``ok`` or ``over``."""
    return tuple(
        f"{'ok  ' if one.ok else 'over'}  {one.name}: {one.value:.3g} "
        f"(aim: at {'least' if one.at_least else 'most'} {one.limit:g})"
        for one in targets(case)
    )


def print_results(console: Console, results: Results) -> None:
    """Tables, ratios and aims of every case, then how the lean form grows."""
    for case in results.cases:
        console.print(f"\n{escape(title(case))}", style="bold", highlight=False)
        _print_table(console, WAY_COLUMNS, way_rows(case))
        for line in (*ratio_lines(case), *target_lines(case)):
            console.print(f"  {line}", highlight=False, markup=False)
    for (program, device), cases in by_growth(results.cases).items():
        console.print(f"\n{program}, {device}: growth", style="bold", highlight=False)
        _print_table(console, GROWTH_COLUMNS, growth_rows(cases))


def _print_table(console: Console, columns: Sequence[str], rows: Rows) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        last = number in (0, len(columns) - 1) and columns is WAY_COLUMNS
        table.add_column(name, justify="left" if last else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


# --- a page ------------------------------------------------------------------------------------

PAGE_HEADER = """\
# Performance

Every figure on this page was measured by the command that is given with it.
[`preheat bench load`](cli.md#preheat-bench-load) and
[`preheat bench edit`](cli.md#preheat-bench-edit) wrote their parts of the page as well; what the
columns mean is said there.

"""


def machine_line(machine: Machine, date: str, rounds: int) -> str:
    """Where and when something was measured."""
    parts = [
        date,
        f"torch {machine.torch}",
        f"Python {machine.python}",
        f"{machine.cpu}, {_count(machine.cores, 'core')}, {_count(machine.threads, 'thread')}",
        *([f"{machine.gpu}"] if machine.gpu else []),
        f"medians of {rounds} processes" if rounds > 1 else "one process each",
    ]
    return "; ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def section(results: Results) -> str:
    """The part of the page for one device and these programs."""
    programs = ", ".join(dict.fromkeys(case.program for case in results.cases))
    how = ", libraries warm" if results.warm_libraries else ""
    lines = [
        f"## {results.device.upper()}{how}: {programs}",
        "",
        machine_line(results.machine, results.date, results.rounds) + ".",
        "",
        "```console",
        f"$ {results.command}",
        "```",
        "",
    ]
    for case in results.cases:
        if len(case.ways) > 1:
            lines += _case_lines(case)
    for (program, _), cases in by_growth(results.cases).items():
        lines += [f"### How the lean form of {program} grows", ""]
        lines += [*markdown_table(GROWTH_COLUMNS, growth_rows(cases)), ""]
    return "\n".join(lines)


def _case_lines(case: CaseResult) -> Iterator[str]:
    yield from (f"### {title(case)}", "", *markdown_table(WAY_COLUMNS, way_rows(case)), "")
    yield from (f"* {line[0].upper()}{line[1:]}." for line in ratio_lines(case))
    yield ""
    if lines := target_lines(case):
        yield from ("```text", *lines, "```", "")


def markdown_table(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """A table of a page: the first column to the left, the others to the right."""
    yield _row(columns)
    yield _row(["---"] + ["---:"] * (len(columns) - 1))
    for row in rows:
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def merged(page: str, part: str) -> str:
    """``page`` with this part, in the place of an older one of the same heading."""
    heading = part.partition("\n")[0]
    parts = re.split(r"^(?=## )", page or PAGE_HEADER, flags=re.MULTILINE)
    kept = [one for one in parts[1:] if one.partition("\n")[0] != heading]
    sections = sorted([*kept, part], key=lambda one: one.partition("\n")[0])
    return PAGE_HEADER + "\n".join(one.rstrip("\n") + "\n" for one in sections)
