"""The commands ``preheat environment`` and ``preheat would-hit``: what to know before a job begins.

Quick on purpose: they may stand at the beginning of every job, so they import little.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from preheat.garbage import without_collector
from preheatd.options import Options, common_options

if TYPE_CHECKING:
    from preheat.manifest import Environment
    from preheat.verdict import Reason
    from preheatd.hitting import Hit, WrittenEnvironments

_MISS_EXIT_CODE = 3


@click.command("environment")
@common_options
def environment(options: Options) -> int:
    """Show the environments of this machine: what packages must have been built for."""
    import asyncio
    import os

    from preheatd.hitting import environments
    from preheatd.selection import place_of

    _, config = place_of(options.config_path)
    written = asyncio.run(environments(config, os.environ))
    if options.as_json:
        sys.stdout.buffer.write(msgspec.json.encode(written) + b"\n")
    else:
        _print_environments(written)
    return _MISS_EXIT_CODE if written.failed else 0


def _print_environments(written: WrittenEnvironments) -> None:
    for number, answer in enumerate(written.answers):
        names = [name for name, index in written.targets.items() if index == number]
        for device in ("cpu", "cuda"):
            here: Environment | None = answer.cuda if device == "cuda" else answer.cpu
            if here is None:
                continue
            usual = " (the default device)" if device == answer.default_device else ""
            click.echo(f"environment {answer.digests.get(device)}{usual}")
            if names:
                click.echo(f"  targets: {', '.join(names)}")
            for field, value in msgspec.to_builtins(here).items():
                click.echo(f"  {field}: {_words(value)}")
    for name, why in written.failed.items():
        click.echo(f"{name}: {why}", err=True)


def _words(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


@click.command("would-hit")
@click.argument("targets", nargs=-1)
@click.option(
    "--against",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Ask for another node: what `preheat environment --json` printed there.",
)
@common_options
def would_hit(options: Options, targets: tuple[str, ...], against: Path | None) -> int:
    """Say whether TARGETS, or all, would load here without a compiler, and if not, what differs."""
    import os

    with without_collector():
        from preheatd import hitting
        from preheatd.config import load_config

        config = load_config(options.config_path).usual(targets)
        written = None if against is None else hitting.read_written(against)
        hits = hitting.would_hit(
            config, os.environ, config.layers, against=written, name=str(against)
        )
    if options.as_json:
        _print_json(hits, against, written)
    else:
        for hit in hits:
            _print_hit(hit)
    return 0 if all(hit.hit for hit in hits) else _MISS_EXIT_CODE


def _print_json(
    hits: tuple[Hit, ...], against: Path | None, written: WrittenEnvironments | None
) -> None:
    answer = {
        "against": None if against is None else str(against),
        "host": None if written is None else written.host,
        "targets": [msgspec.to_builtins(hit) for hit in hits],
    }
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")


def _print_hit(hit: Hit) -> None:
    if hit.hit:
        click.echo(f"hit   {hit.target}")
        return
    click.echo(f"miss  {hit.target}  {hit.verdict}")
    for reason in hit.reasons:
        click.echo(f"        {_difference(reason)}")


def _difference(reason: Reason) -> str:
    if reason.built is None and reason.here is None:
        return str(reason)
    return f"{reason.symbol or reason.file}: built with {reason.built}, there {reason.here}"
