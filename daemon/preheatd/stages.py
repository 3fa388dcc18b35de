"""The two processes of a build, each run to its end, and what a bad end means."""

from __future__ import annotations

import dataclasses
import signal
import time
from typing import TYPE_CHECKING

from preheat.errors import BuildError, ProofError, StoreError
from preheat.job import BuiltEvent, FailedEvent, PhaseEvent, ProvenEvent, UnfitEvent
from preheatd import events
from preheatd.abandoned import note_group
from preheatd.clock import utc_now
from preheatd.politeness.limits import LimitsTold
from preheatd.politeness.memory import MemoryExceeded, run_within
from preheatd.politeness.priority import give_way
from preheatd.politeness.settings import Politeness, bytes_text
from preheatd.process import Command, describe_status, start_fresh

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from preheat.job import Event as ProcessEvent
    from preheat.verdict import Reason
    from preheatd.logs import BoundedLog
    from preheatd.outcome import BuildRequest
    from preheatd.process import Start


class BuildFailed(Exception):
    """Ends a build; carries what to remember. ``signal`` is the number of the one that ended it."""

    def __init__(
        self, kind: str, message: str, *, signal: int | None = None, **fields: object
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.signal = signal
        self.fields = fields


class Superseded(Exception):
    """Ends a build whose sources changed meanwhile; ``reasons`` say which."""

    def __init__(self, reasons: tuple[Reason, ...]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class UnfitToFork(Exception):
    """What a forked process did says nothing, for what it says itself."""


def state_unusable(error: OSError, path: Path) -> BuildFailed:
    """What to say when the daemon's own files of a build cannot be written below ``path``."""
    return BuildFailed(
        "state_unusable",
        f"{error.filename or path} cannot be written: {error.strerror or error}.",
        exit_code=StoreError.exit_code,
        remedy="Free some space, or set PREHEAT_STATE to a directory on another disk.",
    )


@dataclasses.dataclass
class Heard:
    """What one process has said so far."""

    phase: str = "start"
    built: BuiltEvent | None = None
    proven: ProvenEvent | None = None
    failed: FailedEvent | None = None
    unfit: UnfitEvent | None = None

    def forget(self) -> None:
        """Start anew, for another try."""
        self.phase, self.built, self.proven, self.failed = "start", None, None, None
        self.unfit = None


@dataclasses.dataclass(frozen=True)
class Ran:
    """A process that ran: ``stage`` is ``build`` or ``proof``; times are of the monotonic clock."""

    stage: str
    began: float
    ended: float


def seconds_by_stage(ran: Iterable[Ran]) -> dict[str, float]:
    """For how long there was a process of each stage. Proofs that ran at the same time count once."""
    seconds: dict[str, float] = {}
    until: dict[str, float] = {}
    for one in sorted(ran, key=lambda one: one.began):
        since = max(one.began, until.get(one.stage, one.began))
        seconds[one.stage] = seconds.get(one.stage, 0.0) + max(0.0, one.ended - since)
        until[one.stage] = max(one.ended, since)
    return seconds


@dataclasses.dataclass(frozen=True)
class Stages:
    """Runs the processes of one build, politely, and turns a bad end into ``BuildFailed``."""

    request: BuildRequest
    emit: events.Emit
    work: Path
    log: BoundedLog
    heard: Heard
    politeness: Politeness = dataclasses.field(default_factory=Politeness)
    limits: LimitsTold = dataclasses.field(default_factory=LimitsTold)
    ran: list[Ran] = dataclasses.field(default_factory=list)

    async def run(
        self,
        stage: str,
        arguments: tuple[str, ...],
        variables: Mapping[str, str],
        start: Start = start_fresh,
    ) -> None:
        """Run one process to its end. Raises ``BuildFailed``, and what ``start`` raises but ``OSError``."""
        target = self.request.target
        command = Command(
            arguments=(target.python, *arguments),
            cwd=target.cwd,
            environment=variables,
            on_started=self._started,
        )
        self.heard.phase = "start" if stage == "build" else "proof"
        await self.log.note(f"{stage} of {target.name} ({target.factory}) at {utc_now()}")
        began = time.monotonic()
        try:
            status = await run_within(target.memory_limit, command, self.log, self._hear, start)
        except MemoryExceeded as error:
            await self.log.note(f"ended: {bytes_text(error.used)} of memory were in use")
            raise self._too_large(stage, error.used) from None
        except OSError as error:
            raise BuildFailed(
                "interpreter_failed",
                f"{target.python} cannot be started in {target.cwd}: {error.strerror}.",
                remedy=f"Correct `python` or `cwd` of the target {target.name}.",
            ) from error
        self.ran.append(Ran(stage, began, time.monotonic()))
        await self.log.note(f"{stage} process {describe_status(status)}")
        self._judge(stage, status)

    def _started(self, group: int) -> None:
        try:
            note_group(self.work, group)
        except OSError as error:
            # Not started at all is better than left behind when this process is killed.
            raise state_unusable(error, self.work) from error
        for trouble in give_way(group, self.politeness):
            self.limits.tell(self.emit, trouble)

    def _too_large(self, stage: str, used: int) -> BuildFailed:
        limit = bytes_text(self.request.target.memory_limit or 0)
        return BuildFailed(
            "memory_limit",
            f"The {stage} used {bytes_text(used)} of memory and was ended in phase "
            f"`{self.heard.phase}`; {limit} are allowed.",
            remedy="Raise `memory_limit` in [politeness], or make the target smaller.",
            signal=signal.SIGKILL,
            phase=self.heard.phase,
        )

    def _judge(self, stage: str, status: int) -> None:
        kind = BuildError if stage == "build" else ProofError
        if self.heard.unfit is not None:
            raise UnfitToFork(self.heard.unfit.why)
        failed = self.heard.failed
        if failed is not None:
            raise BuildFailed(
                failed.kind,
                failed.message,
                remedy=failed.remedy or kind.default_remedy,
                refused=failed.refused,
                reasons=failed.reasons,
                phase=self.heard.phase,
            )
        if status != 0:
            raise BuildFailed(
                f"{stage}_crashed" if status < 0 else f"{stage}_failed",
                f"The {stage} process {describe_status(status)} in phase `{self.heard.phase}`.",
                remedy=kind.default_remedy,
                signal=-status if status < 0 else None,
                phase=self.heard.phase,
            )

    def _hear(self, event: ProcessEvent) -> None:
        match event:
            case PhaseEvent():
                self.heard.phase = event.phase
                self.emit(phase_of(self.request, event))
            case BuiltEvent():
                self.heard.built = event
            case ProvenEvent():
                self.heard.proven = event
            case FailedEvent():
                self.heard.failed = event
            case UnfitEvent():
                self.heard.unfit = event


def phase_of(request: BuildRequest, event: PhaseEvent) -> events.Event:
    """What a process says of its phase, as an event about a build."""
    return events.Event(
        action=events.BUILD_PHASE,
        target=request.target.name,
        environment=request.environment,
        phase=event.phase,
        detail=event.detail,
    )
