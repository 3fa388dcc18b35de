"""``preheat bench load``, from options to exit code."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import os
import shlex
import signal
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from preheat.errors import ConfigurationError
from preheatd.bench import tables
from preheatd.bench.figures import WAYS, Results, problems, ratios, targets
from preheatd.bench.running import Case, look_at_machine, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from preheatd.bench.figures import CaseResult

PROGRAMS = ("mlp", "transformer", "llama")
DEFAULT_LAYERS: dict[str, tuple[int, ...]] = {"mlp": (2,), "transformer": (4,), "llama": (16,)}
_WIDE = 240


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The options of the command. ``layers`` empty: each program's default."""

    programs: tuple[str, ...]
    device: str
    layers: tuple[int, ...]
    ways: tuple[str, ...]
    rounds: int
    threads: int | None
    warm_libraries: bool
    markdown: Path | None
    as_json: bool


def split_ways(text: str) -> tuple[str, ...]:
    """The ways of a list with commas, in the order of the tables. Raises ``ValueError``."""
    named = {word.strip() for word in text.split(",")}
    if unknown := sorted(named - set(WAYS)):
        raise ValueError(f"unknown way {unknown[0]!r}; there are {', '.join(WAYS)}")
    return tuple(way for way in WAYS if way in named)


def split_layers(text: str) -> tuple[int, ...]:
    """The numbers of a list with commas, each once. Raises ``ValueError``."""
    numbers = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    if min(numbers) < 1:
        raise ValueError("a program has 1 layer or more")
    return numbers


def cases(wanted: Wanted) -> tuple[Case, ...]:
    """All ways at the first number of layers; the lean form alone at the others."""
    found = []
    for program in wanted.programs:
        layers = DEFAULT_LAYERS[program]
        if wanted.layers and program != "mlp":
            layers = wanted.layers
        for number in layers:
            ways = wanted.ways if number == layers[0] else ("lean",)
            case = Case(program, wanted.device, number, ways, wanted.rounds)
            found.append(dataclasses.replace(case, warm_libraries=wanted.warm_libraries))
    return tuple(found)


def command_line(wanted: Wanted) -> str:
    """The command that measures the same again."""
    words = ["preheat", "bench", "load"]
    for program in wanted.programs:
        words += ["--program", program]
    words += ["--device", wanted.device]
    if wanted.layers:
        words += ["--layers", ",".join(map(str, wanted.layers))]
    if wanted.ways != tuple(WAYS):
        words += ["--ways", ",".join(wanted.ways)]
    words += ["--rounds", str(wanted.rounds)]
    if wanted.warm_libraries:
        words.append("--warm-libraries")
    if wanted.threads:
        words += ["--threads", str(wanted.threads)]
    if wanted.markdown:
        words += ["--markdown", str(wanted.markdown)]
    return shlex.join(words)


def run(wanted: Wanted) -> int:
    """Measure and print. Exit code 3 when a form of preheat did not load or did not cover a call."""
    if "llama" in wanted.programs and importlib.util.find_spec("transformers") is None:
        raise ConfigurationError("The program `llama` needs transformers, which is not installed.")
    signal.signal(signal.SIGTERM, _stop)  # else measured processes would outlive this one
    say = _silent if wanted.as_json else _to_stderr
    environment = threads_environment(wanted.threads)
    results = Results(
        command=command_line(wanted),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        device=wanted.device,
        rounds=wanted.rounds,
        warm_libraries=wanted.warm_libraries,
        machine=look_at_machine(environment),
        cases=tuple(_measured(cases(wanted), environment, say)),
    )
    if wanted.as_json:
        click.echo(msgspec.json.encode(answer(results)).decode())
    else:
        terminal = Console()
        console = terminal if terminal.is_terminal else Console(width=_WIDE)
        tables.print_results(console, results)
    if wanted.markdown is not None:
        page = wanted.markdown.read_text() if wanted.markdown.exists() else ""
        wanted.markdown.write_text(tables.merged(page, tables.section(results)))
    found = [f"{tables.title(one)}: {text}" for one in results.cases for text in problems(one)]
    for text in found:
        click.echo(f"preheat: {text}", err=True)
    return 3 if found else 0


def _measured(
    every: Iterable[Case], environment: Mapping[str, str], say: Callable[[str], None]
) -> Iterable[CaseResult]:
    for case in every:
        say(f"{case.program}, {case.layers} layers, {case.device}")
        yield measure(case, environment, say)


def threads_environment(threads: int | None) -> dict[str, str]:
    """This process's environment, with so many threads for every measured process."""
    return {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}


def answer(results: Results) -> dict[str, Any]:
    """``preheat bench load --json``: the results, and for each case what follows from it."""
    plain: dict[str, Any] = msgspec.to_builtins(results)
    for case, into in zip(results.cases, plain["cases"], strict=True):
        into["ratios"] = msgspec.to_builtins(ratios(case))
        into["targets"] = [{**msgspec.to_builtins(one), "ok": one.ok} for one in targets(case)]
        into["problems"] = list(problems(case))
    return plain


def _stop(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _silent(_: str) -> None:
    pass


def _to_stderr(text: str) -> None:
    click.echo(text, err=True)
