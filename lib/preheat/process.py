"""What build and proof processes have in common: events out, user code in, a quick end."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from preheat.errors import BuildError, PreheatError, RefusedError
from preheat.job import Event, FailedEvent, Job, PhaseEvent, UnfitEvent, encode_event, read_job
from preheat.lifeline import live_with_parent
from preheat.limits import MAX_RECORD_BYTES, read_limited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preheat.recording import Recorder

    Main = Callable[[Job, "Events"], None]


# What the compiler says in this way to itself.
_OF_TORCH = "_TORCHINDUCTOR_"


class Events:
    """Writes events to the process's original standard output.

    Standard output itself is then standard error, so that what user code prints lands in the log and
    never between events.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, event: Event) -> None:
        """Write one event; a reader that went away is no error."""
        data = encode_event(event)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._descriptor, data) :]

    def phase(self, name: str, detail: str = "") -> None:
        """Say that a phase begins."""
        self.send(PhaseEvent(phase=name, detail=detail))


def recording_user_code(job: Job) -> Recorder:
    """Make the project importable, and record what is imported of it; enter the result to begin.

    The recorder also sees to it that user code is executed from its source text: a ``.pyc`` beside a
    file that was edited within the same second would otherwise run old code.
    """
    from preheat.recording import Recorder

    for entry in reversed((job.project, *job.search_path)):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    return Recorder(
        Path(job.project),
        search_path=job.search_path,
        ignore=own_directories(job),
        variables=job.variables,
    )


def own_directories(job: Job) -> tuple[Path, ...]:
    """Where this process and its compiler write; no source of any target is there."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
    caches = [Path(value) for name in names if (value := os.environ.get(name))]
    return (Path(job.staging).parent, *caches)


def run(main: Main, argv: list[str]) -> NoReturn:
    """Run ``main`` for the job file named on the command line, report how it ended, and exit.

    Exit status 0 when ``main`` returned, else 1. The interpreter's own tear-down is skipped: with the
    compiler loaded it takes seconds.
    """
    live_with_parent(1)
    _run(main, argv[1:], Events())


def run_forked(main: Main, path: str) -> NoReturn:
    """The same in a child of a zygote, which says so when a fresh process could differ from it."""
    # A zygote that was stopped may fork long after the daemon gave that up and began anew.
    live_with_parent(1)
    events = Events()
    before = dict(os.environ)

    def forked(job: Job, events: Events) -> None:
        from preheat.shadowing import shadowed

        why = shadowed(job.project, job.search_path)
        if not why:
            main(job, events)
            why = _changed_variables(before)
        if why:
            events.send(UnfitEvent(why=why))

    _run(forked, [path], events)


def _changed_variables(before: Mapping[str, str]) -> str:
    """Libraries read variables when they are imported; in a forked process they had been."""
    now = dict(os.environ)
    names = {
        name
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name) and not name.startswith(_OF_TORCH)
    }
    return f"it sets environment variables: {', '.join(sorted(names))}" if names else ""


def _run(main: Main, arguments: list[str], events: Events) -> NoReturn:
    status = 1
    try:
        main(_job(arguments), events)
        status = 0
    except PreheatError as error:
        traceback.print_exc()
        events.send(failure(error))
    except BaseException as error:
        traceback.print_exc()
        events.send(
            FailedEvent(
                kind="out_of_memory" if isinstance(error, MemoryError) else "unexpected",
                message=f"{type(error).__name__}: {error}"[:2000],
                remedy="Read the log; if it points into preheat, report it.",
            )
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def failure(error: PreheatError) -> FailedEvent:
    """The event that reports an error of preheat's own tree."""
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
    return FailedEvent(
        kind=words,
        message=error.message,
        remedy=error.remedy,
        refused=isinstance(error, RefusedError),
        reasons=tuple(getattr(error, "reasons", ())),
    )


def _job(arguments: list[str]) -> Job:
    if len(arguments) != 1:
        raise BuildError("A build process takes one argument, the path of its job file.")
    try:
        return read_job(read_limited(Path(arguments[0]), MAX_RECORD_BYTES))
    except (OSError, msgspec.MsgspecError) as error:
        raise BuildError(f"The job file {arguments[0]} cannot be read: {error}.") from error
