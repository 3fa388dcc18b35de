"""The command ``preheat warm``: from the command line, from a service, or at the beginning of a job."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from preheat.errors import ConfigurationError, PreheatError, WaitTimeoutError
from preheatd.later import later
from preheatd.options import Options, common_options

if TYPE_CHECKING:
    import signal
    from collections.abc import Coroutine

    from preheatd import answers, commands, report, warming
    from preheatd.flight import warming as flights
    from preheatd.flight.settings import Fleet, WhenBusy
else:
    # Nothing of this is needed to know which commands there are.
    answers, commands = later("preheatd.answers"), later("preheatd.commands")
    report, warming = later("preheatd.report"), later("preheatd.warming")
    flights = later("preheatd.flight.warming")

_T = TypeVar("_T")
_SIGNALLED = 128


class _Shared(NamedTuple):
    """What the command line says about nodes that share a remote store."""

    remote: str | None
    when_busy: WhenBusy | None


@click.command("warm")
@click.argument("targets", nargs=-1)
@click.option(
    "--once",
    is_flag=True,
    help="Leave alone what has failed with these sources already; it is not tried again.",
)
@click.option(
    "--fail-open", is_flag=True, help="End with 0 whatever goes wrong: the job shall begin anyway."
)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End all builds after so long. Default: only each target's own limit counts.",
)
@click.option(
    "--remote",
    metavar="URL",
    help="Take what fits from this store; build the rest, each on one of the nodes that share it.",
)
@click.option(
    "--when-busy",
    type=click.Choice(["wait", "build", "skip"]),
    help="While another node builds: wait for it, build as well, or do without. Default: wait.",
)
@click.option(
    "--executor",
    "executors",
    multiple=True,
    metavar="NAME",
    help="Build what this executor of the configuration builds, for its environment. May be repeated.",
)
@click.option(
    "--seed",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Begin with what torch has compiled before: a directory of TORCHINDUCTOR_CACHE_DIR, or a file of "
    "torch.compiler.save_cache_artifacts. What is in it is executed.",
)
@common_options
def warm(
    options: Options,
    targets: tuple[str, ...],
    *,
    seed: Path | None,
    executors: tuple[str, ...],
    once: bool,
    fail_open: bool,
    seconds: float | None,
    remote: str | None,
    when_busy: WhenBusy | None,
) -> int:
    """Build what is not fresh, then exit. TARGETS: only these."""
    shared = _Shared(remote, when_busy)
    work = _warm(options, targets, executors, seed=seed, once=once, seconds=seconds, shared=shared)
    if not fail_open:
        return asyncio.run(work)
    try:
        code = asyncio.run(work)
    except PreheatError as error:
        _say_and_go_on(options, error)
        return 0
    except Exception:
        traceback.print_exc()
        return 0
    # Whoever ends the command by a signal wants no job.
    return code if code > _SIGNALLED else 0


def _say_and_go_on(options: Options, error: PreheatError) -> None:
    if options.as_json:
        commands.print_json(answers.error_answer(error))
    sys.stderr.write(f"preheat: {error} (--fail-open: ending with 0 all the same)\n")


async def _warm(
    options: Options,
    targets: tuple[str, ...],
    executors: tuple[str, ...],
    *,
    seed: Path | None,
    once: bool,
    seconds: float | None,
    shared: _Shared,
) -> int:
    from preheatd.config import load_config
    from preheatd.history import History
    from preheatd.project import open_project

    if executors and shared.remote is not None:
        raise ConfigurationError(
            "--executor and --remote do not go together: an executor builds on the node that it chooses.",
            remedy="Run `preheat warm --executor NAME` first, and `preheat push URL` afterwards.",
        )
    config = load_config(options.config_path)
    config = config.through(executors, targets) if executors else config.usual(targets)
    project = open_project(config, create=True)
    fleet = _fleet(project.config.fleet, shared.remote, shared.when_busy)
    if executors:
        fleet = dataclasses.replace(fleet, remote=None)
    # Progress is for people; with --json standard output belongs to the answer.
    stopped: list[signal.Signals] = []
    with (
        commands.shown_progress(errors=True, quiet=options.as_json) as shown,
        History(project.state, shown.emit) as history,
    ):
        if fleet.remote is None:
            work = warming.warm(project, history.heard, retry=not once, seed=seed)
        else:
            work = flights.warm_in_fleet(project, history.heard, fleet, retry=not once, seed=seed)
        warmed = await _until_stopped(_in_time(work, seconds), stopped)
    if warmed is None:
        return _SIGNALLED + stopped[0]
    if options.as_json:
        commands.print_json(answers.warm_answer(warmed))
    else:
        report.print_warmed(commands.output(), warmed)
    return warming.exit_code(warmed)


def _fleet(fleet: Fleet, remote: str | None, when_busy: WhenBusy | None) -> Fleet:
    """What the configuration says, and the command line instead."""
    if remote is not None:
        if not remote.strip():
            raise ConfigurationError("The URL of the remote store is empty.")
        fleet = dataclasses.replace(fleet, remote=remote)
    if when_busy is not None:
        if fleet.remote is None:
            raise ConfigurationError(
                "--when-busy is about nodes that share a remote store, and none is named.",
                remedy="Add --remote URL, or `remote` in the table [fleet] of the configuration.",
            )
        fleet = dataclasses.replace(fleet, when_busy=when_busy)
    return fleet


async def _in_time(work: Coroutine[object, object, _T], seconds: float | None) -> _T:
    """Cancel ``work`` after so long; its processes end before this does. Raises ``WaitTimeoutError``."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise WaitTimeoutError(
            f"Not everything was warm after {seconds:g} s; builds were ended.",
            remedy="What was published stays. Raise --timeout, or see `preheat status`.",
        ) from None


async def _until_stopped(
    work: Coroutine[object, object, _T], stopped: list[signal.Signals]
) -> _T | None:
    """Cancel ``work`` on a stop signal, so that no build process outlives this one."""
    from preheatd.signals import on_stop_signals

    task = asyncio.ensure_future(work)

    def stop(number: signal.Signals) -> None:
        stopped.append(number)
        task.cancel()

    with on_stop_signals(stop):
        try:
            return await task
        except asyncio.CancelledError:
            if not stopped:
                raise
            return None
