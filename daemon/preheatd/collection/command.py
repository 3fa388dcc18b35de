"""``preheat collect``: delete what nobody needs, or show what that would be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from preheatd import commands
from preheatd.collection.kept import kept_warm
from preheatd.collection.settings import (
    NEVER,
    CollectionTable,
    collection_of,
    parse_seconds,
    parse_size,
)
from preheatd.config import load_config
from preheatd.later import later
from preheatd.options import common_options
from preheatd.project import open_project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preheat.store.collection import Rules
    from preheatd.collection import shown
    from preheatd.config import Config
    from preheatd.options import Options
else:
    shown = later("preheatd.collection.shown")


def _checked(parse: Callable[[str], float | None], what: str) -> Callable[..., str | None]:
    """A callback that refuses a text which ``parse`` does not understand, and hands it on as it is."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and value != NEVER and parse(value) is None:
            raise click.BadParameter(f"{value!r} is no {what}.", context, parameter)
        return value

    return check


_SIZE = _checked(parse_size, "size, such as 10GiB or 500MB")
_TIME = _checked(parse_seconds, "time, such as 30d, 12h or 30min")

# A limit could not be met.
SHORT_EXIT_CODE = 3


@click.command("collect")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=_SIZE,
    help="Bring the store under this size, such as 10G.",
)
@click.option("--max-objects", type=click.IntRange(min=0), help="At most so many objects.")
@click.option(
    "--max-age",
    metavar="TIME",
    callback=_TIME,
    help="Nothing that was not used for this long: 30d, 12h.",
)
@click.option(
    "--target-max-size",
    metavar="SIZE",
    callback=_SIZE,
    help="The same as --max-size of each target.",
)
@click.option("--target-max-objects", type=click.IntRange(min=0), help="Of each target.")
@click.option("--target-max-age", metavar="TIME", callback=_TIME, help="Of each target.")
@click.option(
    "--keep-generations",
    type=click.IntRange(min=0),
    help="Earlier packages of a target in an environment that stay.",
)
@click.option(
    "--vanished-after",
    metavar="TIME",
    callback=_TIME,
    help="Packages that no target here can have, not used for this long. `never`: they stay.",
)
@click.option(
    "--grace", metavar="TIME", callback=_TIME, help="What is younger stays. Not below 10min."
)
@common_options
def collect(options: Options, dry_run: bool, **given: Any) -> int:
    """Delete what nobody needs any more from the store, and say why each of it goes.

    What is not given on the command line is taken from [collection] of the configuration.
    """
    return asyncio.run(_collect(options, given, dry_run=dry_run))


async def _collect(options: Options, given: Mapping[str, Any], *, dry_run: bool) -> int:
    config = load_config(options.config_path)
    rules = _rules(config, given)
    project = open_project(config, create=False)
    collector = project.store.collector()
    survey = await project.inventory.survey(config)
    kept = kept_warm(survey.facts)
    if dry_run:
        done = None
        plan = await asyncio.to_thread(collector.plan, rules, kept)
    else:
        done = await asyncio.to_thread(collector.collect, rules, kept)
        plan = done.plan
    store = project.store.location
    if options.as_json:
        commands.print_json(shown.collection_answer(store, plan, done))
    else:
        shown.print_collection(commands.output(), store, plan, done)
    return SHORT_EXIT_CODE if plan.shortfalls else 0


def _rules(config: Config, given: Mapping[str, Any]) -> Rules:
    """The configuration's rules with what was given in their place."""
    said = {key: value for key, value in given.items() if value is not None}
    table: CollectionTable = msgspec.structs.replace(config.collection_table, **said)
    return collection_of(table, f"{config.file} or the command line: `collection.").rules
