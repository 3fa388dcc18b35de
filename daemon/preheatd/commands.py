"""What each command does, from options to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from rich.console import Console
from rich.markup import escape

from preheat.errors import ConfigurationError, UntrustedStoreError
from preheat.verdict import Verdict
from preheatd import answers, beginning, events, explaining, lost, reloading, report, warming
from preheatd import status as statuses
from preheatd.config import load_config
from preheatd.doctor import examine
from preheatd.history import History, last_build_seconds, last_entries
from preheatd.notify import Notifier
from preheatd.project import only_daemon, open_project
from preheatd.service import Service
from preheatd.signals import on_stop_signals
from preheatd.troubles import recorded

if TYPE_CHECKING:
    import signal
    from collections.abc import Coroutine, Iterable, Mapping

    from preheatd.plan import Decision
    from preheatd.project import Project

STALE_EXIT_CODE = 3
_PIPE_COLUMNS = 400
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that every command has."""

    config_path: Path | None = None
    as_json: bool = False


async def warm(options: Options, targets: tuple[str, ...]) -> int:
    """Build what is not fresh."""
    project = _open(options, targets, create=True)
    # Progress is for people; with --json standard output belongs to the answer.
    stopped: list[signal.Signals] = []
    with (
        _report(Console(stderr=True), quiet=options.as_json) as progress,
        History(project.state, progress.emit) as history,
    ):
        warmed = await _until_stopped(warming.warm(project, history.heard), stopped)
    if warmed is None:
        return 128 + stopped[0]
    if options.as_json:
        _print_json(answers.warm_answer(warmed))
    else:
        report.print_warmed(_output(), warmed)
    return warming.exit_code(warmed)


async def _until_stopped(
    work: Coroutine[object, object, _T], stopped: list[signal.Signals]
) -> _T | None:
    """Cancel ``work`` on a stop signal, so that no build process outlives this one."""
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


async def watch(options: Options) -> int:
    """Keep everything warm, with a live view; with --json one event a line."""
    project = _open(options, (), create=True)
    if options.as_json:
        await Service(project, _print_event).run()
        return 0
    last = await asyncio.to_thread(last_build_seconds, project.state)
    with _report(Console(), last_seconds=last) as progress:
        await Service(project, progress.emit, planned=progress.planned).run()
    return 0


async def serve(options: Options, *, second: str = "follow", drain_seconds: float = 0.0) -> int:
    """Keep everything warm; events go to the log, with --json one a line to standard output.

    ``second``: what this daemon does when another one keeps the same configuration warm: ``refuse``
    raises ``BusyError``; ``follow`` builds what the other one does not.
    """
    project = _open(options, (), create=True)
    notifier = Notifier.from_environment(os.environ)
    with only_daemon(project) if second == "refuse" else contextlib.nullcontext():
        await Service(
            project,
            _print_event if options.as_json else events.log_event,
            notifier=notifier,
            drain_seconds=drain_seconds,
        ).run()
    return 0


async def reload(options: Options, seconds: float) -> int:
    """Ask the daemon to read its configuration again, and wait until it has."""
    project = _open(options, (), create=False)
    answer = await reloading.reload(project, seconds)
    if options.as_json:
        _print_json({"pid": answer.pid, "configuration": str(project.config.file)})
    else:
        text = f"process {answer.pid} has read {project.config.file}"
        _output().print(escape(text), highlight=False)
    return 0


def init(options: Options) -> int:
    """Write a configuration to begin with."""
    file, found = beginning.write_configuration(Path.cwd())
    if options.as_json:
        _print_json({"configuration": str(file), **msgspec.to_builtins(found)})
        return 0
    output = _output()
    output.print(escape(f"wrote {file}"), highlight=False)
    for name, place in found.factories.items():
        output.print(escape(f"  target {name} ({place.file}, line {place.line})"), highlight=False)
    for place in found.compiled:
        text = f"  torch.compile is used in {place.file}, line {place.line}"
        output.print(escape(text), highlight=False)
    if not found.factories:
        output.print("No function is marked with @preheat.target yet: see docs/targets.md.")
    return 0


async def doctor(options: Options) -> int:
    """Look at the machine, and say what to mend."""
    found = await examine(load_config(options.config_path), os.environ)
    if options.as_json:
        _print_json({"findings": msgspec.to_builtins(found)})
    else:
        report.print_findings(_output(), found)
    return STALE_EXIT_CODE if any(one.level == "problem" for one in found) else 0


async def plan(options: Options, targets: tuple[str, ...]) -> int:
    """Show the plan."""
    made = await statuses.plan_for(_open(options, targets, create=False))
    if options.as_json:
        _print_json(answers.plan_answer(made))
    else:
        report.print_plan(_output(), made)
    return _exit_code(made.decisions)


async def status(options: Options, history: int = 0) -> int:
    """Show every target; or the last ``history`` things that happened."""
    try:
        project = _open(options, (), create=False)
    except ConfigurationError:
        # A daemon may go on with the configuration from before; whoever looks wants to know.
        found = await asyncio.to_thread(lost.daemons_of, options.config_path, os.environ)
        if found.daemons and not options.as_json:
            report.print_daemons(_output(), found.daemons, found.troubles)
        raise
    if history:
        return await _history(options, project, history)
    looked = await statuses.look(project)
    daemons, store = project.state.running_daemons(), str(project.config.store)
    troubles = recorded(project.state)
    if options.as_json:
        _print_json(answers.status_answer(looked, daemons, store, troubles))
    else:
        report.print_status(_output(), looked, daemons, store, troubles)
    return _exit_code(one.decision for one in looked)


async def _history(options: Options, project: Project, count: int) -> int:
    entries = await asyncio.to_thread(last_entries, project.state, count)
    if options.as_json:
        _print_json({"history": msgspec.to_builtins(entries)})
    else:
        report.print_history(_output(), entries)
    return 0


async def explain(options: Options, target: str, if_edited: Path | None = None) -> int:
    """Show one target: why it is fresh or not, or what an edit of a file could touch."""
    project = _open(options, (target,), create=False)
    (looked,) = await statuses.look(project)
    if if_edited is not None:
        return await _if_edited(options, project, looked, if_edited)
    symbols = await statuses.symbols(project, looked)
    if options.as_json:
        _print_json(answers.explain_answer(looked, symbols))
    else:
        explaining.print_explanation(_output(), looked)
        explaining.print_symbols(_output(), symbols)
    return _exit_code((looked.decision,))


async def _if_edited(
    options: Options, project: Project, looked: statuses.TargetStatus, file: Path
) -> int:
    touch = await statuses.if_edited(project, looked, file)
    if options.as_json:
        _print_json({"target": looked.decision.target, **msgspec.to_builtins(touch)})
    else:
        explaining.print_touch(_output(), looked.decision.target, touch)
    return 0


def _open(options: Options, targets: tuple[str, ...], *, create: bool) -> Project:
    config = load_config(options.config_path).select(targets)
    return open_project(config, create=create)


def _exit_code(decisions: Iterable[Decision]) -> int:
    verdicts = {decision.verdict for decision in decisions}
    if Verdict.UNTRUSTED in verdicts:
        return UntrustedStoreError.exit_code
    return 0 if verdicts <= {Verdict.FRESH} else STALE_EXIT_CODE


def _output() -> Console:
    """Standard output; lines that go to a file or another program are not wrapped at 80."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def _report(
    console: Console, *, quiet: bool = False, last_seconds: Mapping[str, float] | None = None
) -> report.LiveReport | report.PlainReport:
    if quiet:
        return report.PlainReport(Console(quiet=True))
    if not console.is_terminal:
        return report.PlainReport(console)
    return report.LiveReport(console, last_seconds)


def _print_event(event: events.Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def _print_json(answer: answers.Json) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
