"""Asks a target's interpreter which environment it has, and remembers the answer.

Only the interpreter itself can tell: it imports torch, the daemon does not. That takes seconds, so
the answer is kept until something that it may depend on changes: the interpreter, its installed
packages, the machine, or an environment variable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from preheat.errors import PreheatError
from preheat.limits import decode_json
from preheat.manifest import Environment
from preheatd import state as states
from preheatd.later import later
from preheatd.schedule import backoff_seconds
from preheatd.surroundings import SharedSurroundings, installed_directories

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from preheatd import process, uncancelled
    from preheatd.config import Target
else:
    # Where the answers are known, nobody is asked.
    asyncio, process = later("asyncio"), later("preheatd.process")
    uncancelled = later("preheatd.uncancelled")

PROBE_ARGUMENTS = ("-m", "preheat.environment")
PROBE_LIMIT_SECONDS = 300.0
_TAIL_LINES = 6

# Variables that differ from one terminal to the next and that no library reads.
_VOLATILE = frozenset(
    "_ PWD OLDPWD SHLVL TERM COLUMNS LINES WINDOWID DISPLAY COLORTERM INVOCATION_ID JOURNAL_STREAM "
    "MAINPID MANAGERPID SYSTEMD_EXEC_PID PREHEAT_STORE PREHEAT_STATE CACHE_DIRECTORY STATE_DIRECTORY "
    "PYTEST_CURRENT_TEST".split()
)
_VOLATILE_PREFIXES = ("SSH_", "XDG_", "DBUS_", "TMUX", "VSCODE_", "TERM_", "GIT_", "CLICK_")


_Answer = TypeVar("_Answer")


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What ``python -m preheat.environment`` prints: an environment and its digest for each device."""

    cpu: Environment
    cuda: Environment | None
    digests: dict[str, str | None]
    default_device: str


class ProbeError(PreheatError):
    """The interpreter of a target did not say which environment it has.

    Raised by the daemon side for an interpreter that cannot be started, lacks preheat or torch, or
    answers with something else.
    """

    exit_code = 3
    default_remedy = (
        "Check `python` and `env` of the target: torch and preheat must be installed there."
    )


@dataclasses.dataclass(frozen=True)
class Question:
    """What an answer depends on, apart from the machine: one for all targets that share it."""

    python: str
    cwd: Path
    variables: tuple[tuple[str, str], ...]


class Prober:
    """Asks each distinct question once, all of them at the same time as far as ``jobs`` allows."""

    def __init__(self, state: states.State, *, jobs: int = 2) -> None:
        self._state = state
        self._jobs = jobs
        self._turns: asyncio.Semaphore | None = None
        self._answers: dict[str, ProbeAnswer] = {}
        self._failures: dict[str, tuple[int, float, ProbeError]] = {}

    async def environments(
        self, targets: Iterable[Target], project: Path, environ: Mapping[str, str]
    ) -> dict[str, ProbeAnswer | ProbeError]:
        """The answer, or what went wrong, for each target by name."""
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._jobs)
        questions = _questions(targets, project, environ)
        answers = await asyncio.gather(*(self._answer(question) for question in questions))
        return _by_name(zip(questions.values(), answers, strict=True))

    def known(
        self, targets: Iterable[Target], project: Path, environ: Mapping[str, str]
    ) -> dict[str, ProbeAnswer] | None:
        """The same where every answer is known already; else None. Starts nothing."""
        questions = _questions(targets, project, environ)
        answers = [self._remembered(question_key(question)) for question in questions]
        found = [answer for answer in answers if answer is not None]
        return (
            _by_name(zip(questions.values(), found, strict=True))
            if len(found) == len(answers)
            else None
        )

    def _remembered(self, key: str) -> ProbeAnswer | None:
        answer = self._answers.get(key) or states.read_record(self._state.probe(key), ProbeAnswer)
        if answer is not None:
            self._answers[key] = answer
        return answer

    def forget(self) -> None:
        """Ask everything again the next time: an answer turned out to be wrong."""
        for key in self._answers:
            self._state.probe(key).unlink(missing_ok=True)
        self._answers.clear()

    async def _answer(self, question: Question) -> ProbeAnswer | ProbeError:
        key = await asyncio.to_thread(question_key, question)
        answer = self._remembered(key) or await self._ask_unless_failed(key, question)
        if isinstance(answer, ProbeAnswer):
            self._answers[key] = answer
        return answer

    async def _ask_unless_failed(self, key: str, question: Question) -> ProbeAnswer | ProbeError:
        attempts, at, error = self._failures.get(key, (0, 0.0, ProbeError()))
        if attempts and time.monotonic() < at + backoff_seconds(attempts):
            return error
        assert self._turns is not None
        try:
            async with self._turns:
                answer = await ask(question)
        except ProbeError as failed:
            self._failures[key] = (attempts + 1, time.monotonic(), failed)
            return failed
        self._failures.pop(key, None)
        # A cache that cannot be written costs seconds the next time, nothing else.
        with contextlib.suppress(OSError):
            states.write_record(self._state.probe(key), answer)
        return answer


def _questions(
    targets: Iterable[Target], project: Path, environ: Mapping[str, str]
) -> dict[Question, list[str]]:
    """Each distinct question, with the names of the targets that it is about."""
    surroundings = SharedSurroundings(environ)
    alike: dict[tuple[str, Path, int], list[str]] = {}
    variables: dict[int, dict[str, str]] = {}
    for target in targets:
        around = surroundings.of(target, project).variables
        variables[id(around)] = around
        alike.setdefault((target.python, target.cwd, id(around)), []).append(target.name)
    questions: dict[Question, list[str]] = {}
    for (python, cwd, which), names in alike.items():
        question = Question(python, cwd, tuple(sorted(variables[which].items())))
        questions.setdefault(question, []).extend(names)
    return questions


def _by_name(answers: Iterable[tuple[list[str], _Answer]]) -> dict[str, _Answer]:
    return {name: answer for names, answer in answers for name in names}


async def ask(question: Question, *, limit: float = PROBE_LIMIT_SECONDS) -> ProbeAnswer:
    """Run the interpreter. Raises ``ProbeError``; leaves no process behind."""
    output = await run_question(question, PROBE_ARGUMENTS, limit=limit)
    try:
        # Libraries may print while they are imported; the answer is the last line.
        return decode_json(output.strip().rpartition(b"\n")[2], ProbeAnswer)
    except msgspec.MsgspecError as error:
        raise ProbeError(
            f"`{question.python} {' '.join(PROBE_ARGUMENTS)}` did not answer in the known form "
            f"({error}).",
            remedy="Install the same version of preheat there as here.",
        ) from error


async def run_question(question: Question, arguments: tuple[str, ...], *, limit: float) -> bytes:
    """What the interpreter prints when it is started with these arguments. Raises as ``ask`` does."""
    try:
        started = await asyncio.create_subprocess_exec(
            question.python,
            *arguments,
            cwd=question.cwd,
            env=dict(question.variables),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ProbeError(f"{question.python} cannot be started: {error.strerror}.") from error
    try:
        async with asyncio.timeout(limit):
            output, errors = await started.communicate()
    except TimeoutError:
        raise ProbeError(f"{question.python} did not answer within {limit:g} s.") from None
    finally:
        await uncancelled.uncancelled(process.end_group(started))
    assert started.returncode is not None
    _check_status(question, arguments, started.returncode, errors)
    return output


def _check_status(
    question: Question, arguments: tuple[str, ...], status: int, errors: bytes
) -> None:
    said = " / ".join(errors.decode("utf-8", errors="replace").split("\n")[-_TAIL_LINES:]).strip(
        " /"
    )
    if status != 0:
        raise ProbeError(
            f"`{question.python} {' '.join(arguments)}` {process.describe_status(status)}: {said}."
        )


def question_key(question: Question) -> str:
    """What an answer is kept under: everything cheap to look at that could make it another one."""
    parts = [
        question.python,
        str(question.cwd),
        *(f"{name}={value}" for name, value in question.variables if not _is_volatile(name)),
        *(file_mark(path) for path in _looked_at(question)),
        platform.node(),
        platform.release(),
        str(sorted(os.sched_getaffinity(0))),
    ]
    return hashlib.sha256(b"\0".join(os.fsencode(part) for part in parts)).hexdigest()[:32]


def _is_volatile(name: str) -> bool:
    return name in _VOLATILE or name.startswith(_VOLATILE_PREFIXES)


def _looked_at(question: Question) -> list[Path]:
    """Files and directories whose times change when packages, libraries or drivers do."""
    python = Path(question.python)
    installed = installed_directories(python)
    # Inside site-packages nothing else changes when a distribution is installed over itself.
    records = [path for folder in installed for path in sorted(folder.glob("*/RECORD"))]
    entries = dict(question.variables).get("PYTHONPATH", "").split(os.pathsep)
    return [
        python,
        python.resolve(),
        python.parent.parent / "pyvenv.cfg",
        *installed,
        *(path for path in records if path.parent.name.startswith(("torch", "triton", "preheat"))),
        *(question.cwd / entry / "preheat" / "environment.py" for entry in entries if entry),
        Path(__file__).parents[2] / "lib" / "preheat" / "environment.py",
        Path("/proc/driver/nvidia/version"),
    ]


def file_mark(path: Path) -> str:
    """Changes when the file is another one: its number, size and time; nothing is read."""
    try:
        status = path.stat()
    except OSError:
        return f"{path} missing"
    # Files below /proc get new times whenever they are looked at; their content is the mark.
    if path.is_relative_to("/proc"):
        return path.read_text(errors="replace")
    return f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
