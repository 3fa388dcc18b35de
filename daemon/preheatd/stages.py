"""The two processes of a build, each run to its end, and what a bad end means."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from preheat.errors import BuildError, ProofError, StoreError
from preheat.job import BuiltEvent, FailedEvent, PhaseEvent, ProvenEvent
from preheatd import events, owned
from preheatd.clock import utc_now
from preheatd.process import Command, describe_status, run_process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preheat.job import Event as ProcessEvent
    from preheatd.logs import BoundedLog
    from preheatd.outcome import BuildRequest


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

    def forget(self) -> None:
        """Start anew, for another try."""
        self.phase, self.built, self.proven, self.failed = "start", None, None, None


@dataclasses.dataclass(frozen=True)
class Stages:
    """Runs the processes of one build and turns a bad end into ``BuildFailed``."""

    request: BuildRequest
    emit: events.Emit
    work: Path
    log: BoundedLog
    heard: Heard

    async def run(
        self, stage: str, arguments: tuple[str, ...], variables: Mapping[str, str]
    ) -> None:
        target = self.request.target
        command = Command(
            arguments=(target.python, *arguments),
            cwd=target.cwd,
            environment=variables,
            on_started=self._note_group,
        )
        self.heard.phase = "start" if stage == "build" else "proof"
        await self.log.note(f"{stage} of {target.name} ({target.factory}) at {utc_now()}")
        try:
            status = await run_process(command, self.log, self._hear)
        except OSError as error:
            raise BuildFailed(
                "interpreter_failed",
                f"{target.python} cannot be started in {target.cwd}: {error.strerror}.",
                remedy=f"Correct `python` or `cwd` of the target {target.name}.",
            ) from error
        await self.log.note(f"{stage} process {describe_status(status)}")
        self._judge(stage, status)

    def _note_group(self, pid: int) -> None:
        try:
            owned.note_group(self.work, pid)
        except OSError as error:
            # Not started at all is better than left behind when this process is killed.
            raise state_unusable(error, self.work) from error

    def _judge(self, stage: str, status: int) -> None:
        kind = BuildError if stage == "build" else ProofError
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
                self.emit(
                    events.Event(
                        action=events.BUILD_PHASE,
                        target=self.request.target.name,
                        environment=self.request.environment,
                        phase=event.phase,
                        detail=event.detail,
                    )
                )
            case BuiltEvent():
                self.heard.built = event
            case ProvenEvent():
                self.heard.proven = event
            case FailedEvent():
                self.heard.failed = event
