"""The command ``preheat``: options, exit codes and where output goes.

Exit codes: 0 all fresh, 1 unexpected, 2 usage or configuration, 3 a target is stale or failed, 4 timed
out, 5 untrusted store, 6 no daemon, 75 somebody else holds the build. With ``--json`` standard
output holds exactly one JSON object, an error included; without it errors go to standard error.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from preheat.errors import PreheatError
from preheatd.later import later
from preheatd.options import Options
from preheatd.options import common_options as _options

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from preheatd import answers, commands
else:
    # A command imports what it needs itself: all of it together takes half a second.
    answers, commands = later("preheatd.answers"), later("preheatd.commands")
    asyncio = later("asyncio")


class UsageError(PreheatError):
    """The command line cannot be understood.

    Raised for unknown commands, options and arguments.
    """

    exit_code = 2
    default_remedy = "See `preheat --help`."


class UnexpectedError(PreheatError):
    """A fault in preheat itself.

    Raised for any exception that nobody expected; its traceback goes to standard error.
    """

    exit_code = 1
    default_remedy = "This is a fault in preheat; please report it with the lines above."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit the process with its code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    sys.exit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command; every error becomes one message and an exit code."""
    as_json = "--json" in arguments
    try:
        code = preheat.main(list(arguments), prog_name="preheat", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _complain(UsageError(error.format_message()), as_json=as_json)
    except PreheatError as error:
        return _complain(error, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        return 1  # whoever read our output has gone
    except Exception as error:
        import traceback

        traceback.print_exc()
        return _complain(UnexpectedError(f"{type(error).__name__}: {error}"), as_json=as_json)


def _complain(error: PreheatError, *, as_json: bool) -> int:
    if as_json:
        _print_json(answers.error_answer(error))
    else:
        click.echo(f"preheat: {error}", err=True)
    return error.exit_code


def _print_json(answer: answers.Json) -> None:
    click.echo(msgspec.json.encode(answer).decode())


# Commands in modules of their own, which are imported when they are asked for: module and function.
_LATE = {
    "collect": ("preheatd.collection.command", "collect"),
    "environment": ("preheatd.hit_commands", "environment"),
    "events": ("preheatd.remote_commands", "follow"),
    "export": ("preheatd.bundles.commands", "export"),
    "fsck": ("preheatd.fsck_command", "fsck"),
    "import": ("preheatd.bundles.commands", "import_"),
    "keys": ("preheatd.keys_command", "keys"),
    "kick": ("preheatd.remote_commands", "kick"),
    "pause": ("preheatd.remote_commands", "pause"),
    "pull": ("preheatd.remotes.commands", "pull"),
    "push": ("preheatd.remotes.commands", "push"),
    "resume": ("preheatd.remote_commands", "resume"),
    "wait": ("preheatd.remote_commands", "wait"),
    "warm": ("preheatd.warm_command", "warm"),
    "would-hit": ("preheatd.hit_commands", "would_hit"),
}


class _Commands(click.Group):
    """The commands of ``preheat``, some of which are imported late."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *_LATE})

    def get_command(self, context: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _LATE:
            module, function = _LATE[cmd_name]
            found: click.Command = getattr(importlib.import_module(module), function)
            return found
        return super().get_command(context, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="preheat")
def preheat() -> None:
    """Keeps compiled PyTorch programs warm: workers only load, they never compile."""


@preheat.command()
@_options
def doctor(options: Options) -> int:
    """Look at the machine as the daemon needs it, and say what to mend."""
    return asyncio.run(commands.doctor(options))


@preheat.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def init(as_json: bool) -> int:
    """Write a preheat.toml to begin with, from what the project's files say."""
    return commands.init(Options(as_json=as_json))


@preheat.command()
@_options
def watch(options: Options) -> int:
    """Watch, rebuild and show progress, until interrupted."""
    return asyncio.run(commands.watch(options))


@preheat.command()
@click.option(
    "--second",
    type=click.Choice(["follow", "refuse"]),
    default="follow",
    help="When another daemon keeps the same warm: build what it does not, or do not start.",
)
@click.option(
    "--drain",
    "drain_seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long running builds may go on after the first stop signal. Default: 0.",
)
@_options
def serve(options: Options, second: str, drain_seconds: float) -> int:
    """The same as watch without a terminal, for services."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    return asyncio.run(commands.serve(options, second=second, drain_seconds=drain_seconds))


@preheat.command()
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait for the daemon. Default: 60.",
)
@_options
def reload(options: Options, seconds: float) -> int:
    """Let the daemon read its configuration again, and wait until it has."""
    return asyncio.run(commands.reload(options, seconds))


@preheat.command()
@click.argument("targets", nargs=-1)
@_options
def plan(options: Options, targets: tuple[str, ...]) -> int:
    """Show what would be built and why; build nothing."""
    return asyncio.run(commands.plan(options, targets))


@preheat.command()
@click.option(
    "--history",
    is_flag=False,
    flag_value=20,
    type=click.IntRange(min=1),
    metavar="[N]",
    help="Show the last N things that happened instead (20 without a number).",
)
@_options
def status(options: Options, history: int | None) -> int:
    """Show every target, its package, and the last failure with the end of its log."""
    return asyncio.run(commands.status(options, history or 0))


@preheat.command()
@click.argument("target")
@click.option(
    "--if-edited",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show what an edit of FILE could touch instead.",
)
@_options
def explain(options: Options, target: str, if_edited: Path | None) -> int:
    """Show everything that is known about TARGET and why it is fresh or not."""
    return asyncio.run(commands.explain(options, target, if_edited))


@preheat.command()
@_options
def demo(options: Options) -> int:
    """Show on a small program what preheat saves."""
    module = importlib.import_module("preheatd.demo")  # only here: nothing else needs it
    return int(module.run(as_json=options.as_json) or 0)


@preheat.group()
def bench() -> None:
    """Measure on this machine."""


@bench.command("load")
@click.option(
    "--program",
    "programs",
    type=click.Choice(["mlp", "transformer", "llama"]),
    multiple=True,
    default=["mlp"],
    help="What to measure; may be given several times. Default: mlp.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Default: cpu.")
@click.option(
    "--layers",
    metavar="N[,N...]",
    default="",
    help="Layers: every way at the first number, the lean form alone at the others.",
)
@click.option("--ways", metavar="WAY[,WAY...]", default="", help="Only these ways.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Default: 3.")
@click.option("--threads", type=click.IntRange(min=1), help="OMP_NUM_THREADS of all processes.")
@click.option("--warm-libraries", is_flag=True, help="Call the program once before it is timed.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the tables into a page as well.",
)
@_options
def bench_load(
    options: Options,
    programs: tuple[str, ...],
    layers: str,
    ways: str,
    **rest: Any,
) -> int:
    """Measure how a fresh process gets to its first result, with and without preheat."""
    module = importlib.import_module("preheatd.bench.command")  # only here: nothing else needs it
    try:
        wanted = module.Wanted(
            programs=tuple(dict.fromkeys(programs)),
            layers=module.split_layers(layers) if layers else (),
            ways=module.split_ways(ways or ",".join(module.WAYS)),
            as_json=options.as_json,
            **rest,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return int(module.run(wanted))


@bench.command("edit")
@click.option(
    "--program",
    "programs",
    type=click.Choice(["mlp", "bert", "blocks", "per-block"]),
    multiple=True,
    default=["mlp", "bert", "blocks", "per-block"],
    help="What to edit; may be given several times. Default: all.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Default: 3.")
@click.option("--threads", type=click.IntRange(min=1), help="OMP_NUM_THREADS of all processes.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the tables into a page as well.",
)
@_options
def bench_edit(options: Options, programs: tuple[str, ...], **rest: Any) -> int:
    """Measure how long it takes from an edit to a fresh package, with a zygote and without."""
    module = importlib.import_module("preheatd.bench.edit_command")
    chosen = tuple(dict.fromkeys(programs))
    return int(module.run(module.Wanted(programs=chosen, as_json=options.as_json, **rest)))


if __name__ == "__main__":
    main()
