"""What each command does, from options to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError, NoDaemonError, UntrustedStoreError
from preheat.verdict import Verdict
from preheatd import answers, beginning, events, lost, reloading
from preheatd import status as statuses
from preheatd.asking import asked, connected
from preheatd.config import load_config
from preheatd.control.activation import inherited
from preheatd.doctor import examine
from preheatd.history import last_build_seconds, last_entries
from preheatd.later import later
from preheatd.notify import Notifier
from preheatd.plan import Plan
from preheatd.project import only_daemon, open_project
from preheatd.service import Service
from preheatd.shown import OwnerShown, PlanShown, StatusShown, TargetShown
from preheatd.troubles import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rich.console import Console

    from preheatd import explaining, progress, report
    from preheatd.operations import Listening, Operations
    from preheatd.options import Options
    from preheatd.plan import Decision
    from preheatd.project import Project
    from preheatd.service import Listen

else:
    # They draw with rich, which takes megabytes; a service prints lines alone.
    explaining, report = later("preheatd.explaining"), later("preheatd.report")
    progress = later("preheatd.progress")

STALE_EXIT_CODE = 3
_PIPE_COLUMNS = 400


async def watch(options: Options) -> int:
    """Keep everything warm, with a live view; with --json one event a line."""
    project = opened(options, (), create=True)
    listen = _listening()
    if options.as_json:
        await Service(project, _print_event, listen=listen).run()
        return 0
    last = await asyncio.to_thread(last_build_seconds, project.state)
    with shown_progress(last_seconds=last, log_tail=project.state.log_tail) as shown:
        await Service(project, shown.emit, planned=shown.planned, listen=listen).run()
    return 0


def _listening() -> Listen:
    """What lets others ask a daemon, at sockets that the service manager opened as well."""
    module = importlib.import_module(
        "preheatd.control.server"
    )  # only here: no other command serves
    handed = inherited(os.environ)

    def listen(operations: Operations, emit: events.Emit) -> Listening:
        made: Listening = module.Server(operations, emit, handed=handed)
        return made

    return listen


async def serve(options: Options, *, second: str = "follow", drain_seconds: float = 0.0) -> int:
    """Keep everything warm; events go to the log, with --json one a line to standard output.

    ``second``: what this daemon does when another one keeps the same configuration warm: ``refuse``
    raises ``BusyError``; ``follow`` builds what the other one does not.
    """
    listen = _listening()
    project = opened(options, (), create=True)
    notifier = Notifier.from_environment(os.environ)
    with only_daemon(project) if second == "refuse" else contextlib.nullcontext():
        await Service(
            project,
            _print_event if options.as_json else events.log_event,
            notifier=notifier,
            drain_seconds=drain_seconds,
            listen=listen,
        ).run()
    return 0


async def reload(options: Options, seconds: float) -> int:
    """Ask the daemon to read its configuration again, and wait until it has."""
    project = opened(options, (), create=False)
    try:
        async with connected(project.config) as client:
            answer = await client.post("/v1/reload", seconds=seconds)
    except NoDaemonError:
        # One that does not listen hears a signal, and answers by a file.
        answer = {
            "from": "daemon",
            "pid": (await reloading.reload(project, seconds)).pid,
            "configuration": str(project.config.file),
        }
    if options.as_json:
        print_json(answer)
    else:
        text = f"process {answer['pid']} has read {answer['configuration']}"
        say(text)
    return 0


def init(options: Options) -> int:
    """Write a configuration to begin with."""
    file, found = beginning.write_configuration(Path.cwd())
    if options.as_json:
        print_json({"configuration": str(file), **msgspec.to_builtins(found)})
        return 0
    say(f"wrote {file}")
    for name, place in found.factories.items():
        say(f"  target {name} ({place.file}, line {place.line})")
    for place in found.compiled:
        say(f"  torch.compile is used in {place.file}, line {place.line}")
    if not found.factories:
        say("No function is marked with @preheat.target yet: see docs/targets.md.")
    return 0


async def doctor(options: Options) -> int:
    """Look at the machine, and say what to mend."""
    found = await examine(load_config(options.config_path), os.environ)
    if options.as_json:
        print_json({"findings": msgspec.to_builtins(found)})
    else:
        report.print_findings(output(), found)
    return STALE_EXIT_CODE if any(one.level == "problem" for one in found) else 0


async def plan(options: Options, targets: tuple[str, ...]) -> int:
    """Show the plan."""
    config = load_config(options.config_path).select(targets)
    answer = await asked(config, "/v1/plan", {"targets": ",".join(targets)})
    if answer is None:
        made = await statuses.plan_for(open_project(config, create=False))
        answer = answers.plan_answer(made, "disk")
    decisions = msgspec.convert(answer, PlanShown).decisions()
    if options.as_json:
        print_json(answer)
    else:
        report.print_plan(output(), Plan(decisions=decisions))
    return exit_code(decisions)


async def status(options: Options, history: int = 0) -> int:
    """Show every target; or the last ``history`` things that happened."""
    try:
        config = load_config(options.config_path)
    except ConfigurationError:
        # A daemon may go on with the configuration from before; whoever looks wants to know.
        found = await asyncio.to_thread(lost.daemons_of, options.config_path, os.environ)
        if found.daemons and not options.as_json:
            shown_daemons = answers.daemons_answer(found.daemons, found.troubles)
            report.print_daemons(output(), msgspec.convert(shown_daemons, tuple[OwnerShown, ...]))
        raise
    if history:
        return await _history(options, open_project(config, create=False), history)
    answer = await asked(config, "/v1/status") or await _look(open_project(config, create=False))
    shown = msgspec.convert(answer, StatusShown)
    if options.as_json:
        print_json(answer)
    else:
        report.print_status(output(), shown)
    return exit_code(one.decision() for one in shown.targets)


async def _look(project: Project) -> answers.Json:
    """What a daemon would answer, from the disk."""
    looked = [answers.target_answer(one) for one in await statuses.look(project)]
    daemons = await asyncio.to_thread(project.state.running_daemons)
    troubles = await asyncio.to_thread(recorded, project.state)
    return answers.status_answer(looked, daemons, str(project.config.store), "disk", troubles)


async def _history(options: Options, project: Project, count: int) -> int:
    entries = await asyncio.to_thread(last_entries, project.state, count)
    if options.as_json:
        print_json({"history": msgspec.to_builtins(entries)})
    else:
        report.print_history(output(), entries)
    return 0


async def explain(options: Options, target: str, if_edited: Path | None = None) -> int:
    """Show one target: why it is fresh or not, or what an edit of a file could touch."""
    config = load_config(options.config_path).select((target,))
    if if_edited is not None:
        project = open_project(config, create=False)
        (looked,) = await statuses.look(project)
        return await _if_edited(options, project, looked, if_edited)
    answer = await asked(config, f"/v1/explain/{target}")
    if answer is None:
        project = open_project(config, create=False)
        (looked,) = await statuses.look(project)
        symbols = await statuses.symbols(project, looked)
        answer = answers.explain_answer(looked, symbols, "disk")
    shown = msgspec.convert(answer, TargetShown)
    if options.as_json:
        print_json(answer)
    else:
        explaining.print_explanation(output(), shown)
        explaining.print_symbols(output(), shown.symbols)
    return exit_code((shown.decision(),))


async def _if_edited(
    options: Options, project: Project, looked: statuses.TargetStatus, file: Path
) -> int:
    touch = await statuses.if_edited(project, looked, file)
    if options.as_json:
        print_json({"target": looked.decision.target, **msgspec.to_builtins(touch)})
    else:
        explaining.print_touch(output(), looked.decision.target, touch)
    return 0


def opened(options: Options, targets: tuple[str, ...], *, create: bool) -> Project:
    """The project of the options, with these targets alone where any is named."""
    config = load_config(options.config_path).select(targets)
    return open_project(config, create=create)


def exit_code(decisions: Iterable[Decision]) -> int:
    """What a command that only looks ends with."""
    verdicts = {decision.verdict for decision in decisions}
    if Verdict.UNTRUSTED in verdicts:
        return UntrustedStoreError.exit_code
    return 0 if verdicts <= {Verdict.FRESH} else STALE_EXIT_CODE


def output() -> Console:
    """Standard output; lines that go to a file or another program are not wrapped at 80."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def say(text: str) -> None:
    """Print a line as it is."""
    output().print(text, markup=False, highlight=False)


def shown_progress(
    *,
    errors: bool = False,
    quiet: bool = False,
    last_seconds: Mapping[str, float] | None = None,
    log_tail: Callable[[str, str], str] = lambda target, environment: "",
) -> progress.LiveReport | progress.PlainReport:
    """What shows progress, on standard error with ``errors``."""
    from rich.console import Console

    console = Console(stderr=errors, quiet=quiet)
    if quiet or not console.is_terminal:
        return progress.PlainReport(console)
    return progress.LiveReport(console, last_seconds, log_tail)


def _print_event(event: events.Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def print_json(answer: answers.Json) -> None:
    """One JSON object, in one line."""
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
