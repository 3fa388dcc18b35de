"""The commands ``preheat push`` and ``preheat pull``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from preheatd.bundles.commands import words_of
from preheatd.options import Options, common_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheatd.remotes.pulling import Pulled
    from preheatd.remotes.pushing import Pushed

_SENT = {
    "new": "pushed",
    "replaced": "pushed; it took the place of another one",
    "same": "was there already",
}
_MISSING_EXIT_CODE = 3


def _remote_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.option(
            "--timeout",
            "seconds",
            type=click.FloatRange(min=0, min_open=True),
            default=60.0,
            metavar="SECONDS",
            help="How long the remote may take for one answer. Default: 60.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(min=1, max=64),
            default=8,
            help="How many objects at a time. Default: 8.",
        ),
    ):
        command = option(command)
    return command


@click.command("push")
@click.argument("url")
@click.argument("targets", nargs=-1)
@click.option("--again", is_flag=True, help="Upload also what the remote has with the right size.")
@_remote_options
@common_options
def push(
    options: Options,
    url: str,
    targets: tuple[str, ...],
    *,
    again: bool,
    seconds: float,
    jobs: int,
) -> int:
    """Bring the packages of TARGETS, or all, to the remote store at URL."""
    return asyncio.run(_push(options, url, targets, again=again, seconds=seconds, jobs=jobs))


async def _push(
    options: Options,
    url: str,
    targets: tuple[str, ...],
    *,
    again: bool,
    seconds: float,
    jobs: int,
) -> int:
    from preheat.store import DiskStore
    from preheatd.remotes.calls import opened
    from preheatd.remotes.pushing import Pusher
    from preheatd.selection import place_of, selected

    place, _ = place_of(options.config_path)
    store = DiskStore(place)
    refs = selected(store, targets)
    remote = await opened(url, seconds)
    pushed = await Pusher(remote, store, jobs=jobs, seconds=seconds, again=again).push(refs)
    if options.as_json:
        _print_json(remote.name, pushed)
        return 0
    for one in pushed.packages:
        click.echo(f"{one.target}  {one.environment}  {_SENT[one.result]}")
    click.echo(
        f"{pushed.written} objects written ({pushed.written_bytes} bytes), "
        f"{pushed.reused} were there already"
    )
    return 0


@click.command("pull")
@click.argument("url")
@click.argument("targets", nargs=-1)
@click.option(
    "--replace", is_flag=True, help="Make the pulled packages current also where there are others."
)
@click.option(
    "--all-environments", is_flag=True, help="Also packages that do not fit this machine."
)
@_remote_options
@common_options
def pull(
    options: Options,
    url: str,
    targets: tuple[str, ...],
    *,
    replace: bool,
    all_environments: bool,
    seconds: float,
    jobs: int,
) -> int:
    """Take the packages of TARGETS, or of all targets, that fit this machine from the store at URL."""
    return asyncio.run(
        _pull(
            options,
            url,
            targets,
            replace=replace,
            everywhere=all_environments,
            seconds=seconds,
            jobs=jobs,
        )
    )


async def _pull(
    options: Options,
    url: str,
    targets: tuple[str, ...],
    *,
    replace: bool,
    everywhere: bool,
    seconds: float,
    jobs: int,
) -> int:
    from preheat.store import DiskStore
    from preheatd.arriving import Arrivals
    from preheatd.remotes.calls import opened
    from preheatd.remotes.pulling import Puller
    from preheatd.selection import digests_of, environments_here, place_of

    place, config = place_of(options.config_path)
    if config is not None:
        config = config.select(targets)
        targets = tuple(target.name for target in config.targets)
    only = None if everywhere else digests_of(await environments_here(config))
    remote = await opened(url, seconds)
    puller = Puller(
        remote,
        lambda: DiskStore(place, create=True, signing=config.signing if config else None),
        Arrivals(config, replace=replace, only=only, targets=frozenset(targets)),
        jobs=jobs,
        seconds=seconds,
    )
    pulled = await puller.pull(targets)
    if options.as_json:
        _print_json(remote.name, pulled)
    else:
        _print_pulled(pulled)
    return _MISSING_EXIT_CODE if pulled.missing or not pulled.packages else 0


def _print_pulled(pulled: Pulled) -> None:
    for one in pulled.packages:
        click.echo(f"{one.target}  {one.environment}  {words_of(one)}")
    for name in pulled.missing:
        click.echo(f"{name}  the remote has no package for this environment")
    click.echo(
        f"{pulled.written} objects written ({pulled.written_bytes} bytes), "
        f"{pulled.reused} were here already"
    )


def _print_json(name: str, done: Pushed | Pulled) -> None:
    answer = {"url": name, **msgspec.to_builtins(done)}
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
