"""The commands that tell a running daemon something, follow it, or wait for what it does."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import click
import msgspec

from preheat.errors import NoDaemonError, WaitTimeoutError
from preheatd.later import later
from preheatd.options import Options, common_options

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd import answers, asking, commands, events, pauses, report, shown, waiting
    from preheatd import plan as plans
    from preheatd import project as projects
    from preheatd import status as statuses
    from preheatd.config import Config
else:
    # Nothing of this is needed to know which commands there are.
    asking, commands = later("preheatd.asking"), later("preheatd.commands")
    events, waiting = later("preheatd.events"), later("preheatd.waiting")
    pauses, plans = later("preheatd.pauses"), later("preheatd.plan")
    projects, report = later("preheatd.project"), later("preheatd.report")
    shown, statuses = later("preheatd.shown"), later("preheatd.status")
    answers = later("preheatd.answers")

LOOK_SECONDS = 1.0
LONGEST_POLL_SECONDS = 60.0
# A daemon makes a plan before it answers; with many targets that takes a while.
ANSWER_SECONDS = 120.0


@click.command("kick")
@click.argument("targets", nargs=-1)
@click.option("--rebuild", is_flag=True, help="Build also what is fresh.")
@common_options
def kick(options: Options, targets: tuple[str, ...], rebuild: bool) -> int:
    """Let the daemon try TARGETS again now, or all that are not fresh."""
    return asyncio.run(_kick(options, targets, rebuild=rebuild))


@click.command("pause")
@click.option("--why", default="", metavar="TEXT", help="What others are shown as the reason.")
@common_options
def pause(options: Options, why: str) -> int:
    """Let the daemon begin no builds until `preheat resume`; builds that run go on."""
    return asyncio.run(_pause(options, "/v1/pause", {"detail": why}))


@click.command("resume")
@common_options
def resume(options: Options) -> int:
    """Let the daemon begin builds again."""
    return asyncio.run(_pause(options, "/v1/resume", {}))


@click.command("wait")
@click.argument("targets", nargs=-1)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0),
    default=600.0,
    metavar="SECONDS",
    help="How long to wait. Default: 600.",
)
@common_options
def wait(options: Options, targets: tuple[str, ...], seconds: float) -> int:
    """Wait until TARGETS, or all, are fresh; also without a daemon, while something else builds."""
    return asyncio.run(_wait(options, targets, seconds))


@click.command("events")
@common_options
def follow(options: Options) -> int:
    """Follow what the daemon does; with --json one event a line."""
    return asyncio.run(_follow(options))


def _config(path: Path | None) -> Config:
    from preheatd.config import load_config

    return load_config(path)


async def _kick(options: Options, targets: tuple[str, ...], *, rebuild: bool) -> int:
    config = _config(options.config_path).select(targets)
    async with asking.connected(config) as client:
        body = {"targets": targets, "rebuild": rebuild}
        answer = await client.post("/v1/kick", body, seconds=ANSWER_SECONDS)
    if options.as_json:
        commands.print_json(answer)
        return 0
    decisions = msgspec.convert(answer, shown.PlanShown).decisions()
    if decisions:
        report.print_plan(commands.output(), plans.Plan(decisions=decisions))
    else:
        commands.output().print("Every target is fresh; --rebuild builds them all the same.")
    if answer["paused"]:
        _say_paused(answer)
    return 0


async def _pause(options: Options, path: str, body: dict[str, str]) -> int:
    config = _config(options.config_path)
    async with asking.connected(config) as client:
        answer = await client.post(path, body, seconds=ANSWER_SECONDS)
    if options.as_json:
        commands.print_json(answer)
    else:
        _say_paused(answer)
    return 0


def _say_paused(answer: answers.Json) -> None:
    reasons = ", ".join(
        str(one) for one in msgspec.convert(answer["paused"], tuple[pauses.Pause, ...])
    )
    text = f"paused: {reasons}" if reasons else "builds are begun again"
    commands.say(text)


async def _follow(options: Options) -> int:
    async with asking.connected(_config(options.config_path)) as client:
        async for line in client.events():
            if options.as_json:
                sys.stdout.write(line.decode() + "\n")
            else:
                sys.stdout.write(f"{msgspec.json.decode(line, type=events.Event)}\n")
            sys.stdout.flush()
    return 0


async def _wait(options: Options, targets: tuple[str, ...], seconds: float) -> int:
    config = _config(options.config_path).usual(targets)
    deadline = time.monotonic() + seconds
    while True:
        answer = await _wait_a_while(config, targets, deadline)
        if answer is not None:
            break
    if options.as_json:
        commands.print_json(answer)
    else:
        decisions = msgspec.convert(answer, shown.PlanShown).decisions()
        report.print_plan(commands.output(), plans.Plan(decisions=decisions))
    return 0


async def _wait_a_while(
    config: Config, targets: tuple[str, ...], deadline: float
) -> answers.Json | None:
    """One long question to the daemon, or one look at the disk; None when there is time for another.

    Short enough that a daemon which is started again, or for the first time, is found.
    """
    seconds = min(max(deadline - time.monotonic(), 0.0), LONGEST_POLL_SECONDS)
    parameters = {"targets": ",".join(targets), "timeout": f"{seconds:.3f}"}
    try:
        async with asking.connected(config) as client:
            return await client.get("/v1/wait", parameters, seconds=seconds + ANSWER_SECONDS)
    except WaitTimeoutError:
        if time.monotonic() >= deadline:
            raise
    except NoDaemonError:
        return await _look(config, deadline)
    return None


async def _look(config: Config, deadline: float) -> answers.Json | None:
    plan = await statuses.plan_for(
        await asyncio.to_thread(projects.open_project, config, create=False)
    )
    if waiting.is_over(plan.decisions):
        return answers.plan_answer(plan, "disk")
    left = deadline - time.monotonic()
    if left <= 0:
        raise WaitTimeoutError(
            f"Not fresh yet: {waiting.outstanding(plan.decisions)}; no daemon can be asked.",
            remedy="Start one with `preheat watch` or `preheat serve`, or run `preheat warm`.",
        )
    await asyncio.sleep(min(LOOK_SECONDS, left))
    return None
