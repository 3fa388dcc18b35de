"""The process that holds an executor of the user's: ``python -m preheat.executor_host JOB.json``.

It imports the user's factory, submits one build, waits for the result and writes it to files; the daemon
starts one for each build and ends it when nobody wants the build any more. So a module that does not import,
a pool that breaks and a scheduler that hangs are one failed build, and the daemon runs none of their code.

Of an executor only ``submit(function, argument)`` is used, of what that returns ``result()`` and
``cancel()``; ``shutdown()`` is called at the end where there is one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from preheat.errors import ConfigurationError, PreheatError
from preheat.job import FailedEvent
from preheat.lifeline import live_with_parent
from preheat.limits import MAX_RECORD_BYTES, decode_json, read_limited
from preheat.process import Events
from preheat.remote_build import MAX_RESULT_BYTES, build_bundle

if TYPE_CHECKING:
    from types import FrameType

_SAID = 1500


class HostJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One build. ``request``, ``answer`` and ``bundle`` are paths: of what to submit, and of what is to be
    written. ``arguments``: of the factory."""

    factory: str
    arguments: dict[str, Any]
    project: str
    request: str
    answer: str
    bundle: str


class ExecutorError(PreheatError):
    """The executor did not bring a result.

    Raised in this process for a factory that cannot be used, and for whatever an executor raises.
    """

    exit_code = 3
    default_remedy = "Read the log of the build with `preheat status`."


class _Ended(BaseException):
    """Nobody wants the result any more."""


def main(job: HostJob, events: Events) -> None:
    """Submit one build and write what comes back. Raises ``ExecutorError``."""
    executor = _make(job)
    future = None
    try:
        events.phase("submitted", job.factory)
        future = _said("submit", executor.submit, build_bundle, Path(job.request).read_bytes())
        result = _said("result", future.result)
        events.phase("returned")
        _write(job, result)
    except _Ended:
        if future is not None:
            with contextlib.suppress(Exception):
                future.cancel()
        raise
    finally:
        _shut_down(executor)


def _make(job: HostJob) -> Any:
    module, _, function = job.factory.partition(":")
    sys.path.insert(0, job.project)
    try:
        executor = getattr(importlib.import_module(module), function)(**job.arguments)
    except Exception as error:
        traceback.print_exc()
        raise ExecutorError(
            f"The factory {job.factory} of the executor raised {_words(error)}.",
            remedy="Correct `factory`, `arguments` or `python` of the executor.",
        ) from error
    if not callable(getattr(executor, "submit", None)):
        raise ExecutorError(
            f"The factory {job.factory} returned {type(executor).__name__}, which has no `submit`.",
            remedy="Return a concurrent.futures.Executor, or what works like one.",
        )
    return executor


def _said(what: str, call: Any, *arguments: object) -> Any:
    """What ``call`` returns; what it raises is the executor's, whatever that is."""
    try:
        return call(*arguments)
    except _Ended:
        raise
    except BaseException as error:
        traceback.print_exc()
        broken = any(kind.__name__ == "BrokenExecutor" for kind in type(error).__mro__)
        verb = "broke" if broken else f"raised from `{what}`"
        raise ExecutorError(f"The executor {verb}: {_words(error)}.") from error


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}"[:_SAID].rstrip(".") if text else type(error).__name__


def _write(job: HostJob, result: object) -> None:
    if not isinstance(result, (bytes, bytearray)):
        raise ExecutorError(
            f"The executor returned {type(result).__name__} instead of the bytes of an answer.",
            remedy="Its `submit` must call the function that it is given and return what that returns.",
        )
    if len(result) > MAX_RESULT_BYTES + MAX_RECORD_BYTES:
        raise ExecutorError(f"The executor returned {len(result)} bytes; that is too much.")
    end = result.find(b"\n", 0, MAX_RECORD_BYTES)
    if end < 0:
        raise ExecutorError("The executor returned bytes that are no answer of a build.")
    Path(job.answer).write_bytes(result[:end])
    with Path(job.bundle).open("wb") as file:
        file.write(memoryview(result)[end + 1 :])


def _shut_down(executor: Any) -> None:
    """Let go of the executor. What it raises now changes nothing, and it is not waited for."""
    shutdown = getattr(executor, "shutdown", None)
    if shutdown is None:
        return
    try:
        shutdown(wait=False, cancel_futures=True)
    except TypeError:  # some know fewer arguments
        with contextlib.suppress(Exception):
            shutdown(wait=False)
    except Exception:
        traceback.print_exc()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _Ended


def run(argv: list[str]) -> NoReturn:
    """Run for the job file named on the command line. Exit status 0 when the result was written."""
    live_with_parent(1)
    events = Events()
    signal.signal(signal.SIGTERM, _end)
    status = 1
    try:
        main(_job(Path(argv[1])), events)
        status = 0
    except _Ended:
        status = 128 + signal.SIGTERM
    except PreheatError as error:
        events.send(FailedEvent(kind="executor_failed", message=error.message, remedy=error.remedy))
    except BaseException as error:
        traceback.print_exc()
        events.send(FailedEvent(kind="unexpected", message=_words(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a pool that still works would be waited for.
    os._exit(status)


def _job(path: Path) -> HostJob:
    try:
        return decode_json(read_limited(path, MAX_RECORD_BYTES), HostJob)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"The job file {path} cannot be read: {error}.") from error


if __name__ == "__main__":
    run(sys.argv)
