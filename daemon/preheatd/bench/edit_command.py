"""``preheat bench edit``, from options to exit code."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import signal
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec
from rich.console import Console

from preheatd.bench import edit_tables
from preheatd.bench.command import threads_environment
from preheatd.bench.edit_figures import (
    PROGRAMS,
    EditResults,
    aims,
    by_daemon,
    of_fresh,
    problems,
)
from preheatd.bench.edit_running import measure
from preheatd.bench.running import look_at_machine
from preheatd.bench.tables import merged

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.bench.edit_figures import ProgramResult

_WIDE = 240


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The options of the command."""

    programs: tuple[str, ...]
    rounds: int
    threads: int | None
    markdown: Path | None
    as_json: bool


def command_line(wanted: Wanted) -> str:
    """The command that measures the same again."""
    words = ["preheat", "bench", "edit"]
    if wanted.programs != tuple(PROGRAMS):
        for program in wanted.programs:
            words += ["--program", program]
    words += ["--rounds", str(wanted.rounds)]
    if wanted.threads:
        words += ["--threads", str(wanted.threads)]
    if wanted.markdown:
        words += ["--markdown", str(wanted.markdown)]
    return shlex.join(words)


def run(wanted: Wanted) -> int:
    """Measure and print. Exit code 3 when a program has no figures, or its builds were not forked."""
    signal.signal(signal.SIGTERM, _stop)  # else daemons would outlive this process
    environment = threads_environment(wanted.threads)
    machine = look_at_machine(environment)
    programs = []
    for program in wanted.programs:
        _say(wanted, program)
        say = lambda text: _say(wanted, text)  # noqa: E731
        programs.append(measure(program, wanted.rounds, environment, say))
    results = EditResults(
        command=command_line(wanted),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        rounds=wanted.rounds,
        machine=machine,
        programs=tuple(programs),
    )
    if wanted.as_json:
        click.echo(msgspec.json.encode(answer(results)).decode())
    else:
        terminal = Console()
        console = terminal if terminal.is_terminal else Console(width=_WIDE)
        edit_tables.print_results(console, results)
    if wanted.markdown is not None:
        page = wanted.markdown.read_text() if wanted.markdown.exists() else ""
        wanted.markdown.write_text(merged(page, edit_tables.section(results)))
    found = problems(results)
    for text in found:
        click.echo(f"preheat: {text}", err=True)
    return 3 if found else 0


def answer(results: EditResults) -> dict[str, Any]:
    """``preheat bench edit --json``: the results, and what follows from them."""
    plain: dict[str, Any] = msgspec.to_builtins(results)
    for program, into in zip(results.programs, plain["programs"], strict=True):
        _add_ratios(program, into)
    plain["aims"] = [{**msgspec.to_builtins(one), "met": one.ok} for one in aims(results)]
    plain["problems"] = list(problems(results))
    return plain


def _add_ratios(program: ProgramResult, into: dict[str, Any]) -> None:
    for one, row in zip(program.edits, into["edits"], strict=True):
        row["of_fresh"] = of_fresh(program, one)
        row["own_of_fresh"] = by_daemon(program, one)


def _say(wanted: Wanted, text: str) -> None:
    if not wanted.as_json:
        click.echo(text, err=True)


def _stop(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
