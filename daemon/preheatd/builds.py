"""One build from lock to publication: build process, proof process, sources unchanged, publish.

Nothing is published that another fresh process has not loaded and agreed with, and nothing whose
sources are no longer those on disk. Cancelling a build ends its processes and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import BuildError, BusyError, PreheatError, WaitTimeoutError
from preheat.job import Job
from preheat.manifest import environment_digest
from preheatd import events, owned
from preheatd.caches import CompilerCaches, may_be_to_blame
from preheatd.clock import utc_now
from preheatd.logs import BoundedLog
from preheatd.outcome import BuildRequest, Outcome
from preheatd.stages import BuildFailed, Heard, Stages, state_unusable
from preheatd.state import Failure
from preheatd.surroundings import search_path, target_environment, with_caches
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from preheat.manifest import Environment, Manifest
    from preheat.verdict import Reason
    from preheatd.config import Config, Target
    from preheatd.state import State

BUILD_ARGUMENTS = ("-m", "preheat.build")
PROOF_ARGUMENTS = ("-m", "preheat.verify")


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds targets of one project into one store.

    ``check`` says why a manifest's sources differ from those on disk now; ``publish`` copies a proven
    package from a staging store and publishes it; ``return_to`` publishes an earlier package again, where
    one fits the sources on disk, and gives it back; these block and are called in a thread. ``lock``
    holds the build lock or raises ``BusyError``. ``expected`` knows environments by digest.
    """

    config: Config
    state: State
    check: Callable[[Manifest, Target], tuple[Reason, ...]]
    publish: Callable[[Path, Manifest], None]
    return_to: Callable[[BuildRequest], Manifest | None]
    lock: Callable[[str, str], contextlib.AbstractContextManager[object]]
    expected: Callable[[str], Environment | None]
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))

    async def build(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        """Build, prove and publish one target. Raises only what is a fault of preheat itself."""
        started = time.monotonic()
        name, environment = request.target.name, request.environment
        outcome = Outcome(target=name, environment=environment, result="failed")
        try:
            with self.lock(name, environment):
                outcome = await self._build_locked(request, emit, outcome)
        except BusyError as error:
            outcome = dataclasses.replace(outcome, result="held", holder=error.message)
        except BuildFailed as error:
            outcome = dataclasses.replace(outcome, failure=self._failure(request, error))
        except PreheatError as error:
            failed = BuildFailed(
                kind_of(error), error.message, remedy=error.remedy, exit_code=error.exit_code
            )
            outcome = dataclasses.replace(outcome, failure=self._failure(request, failed))
        except OSError as error:
            failed = state_unusable(error, self.state.path)
            outcome = dataclasses.replace(outcome, failure=self._failure(request, failed))
        return dataclasses.replace(outcome, seconds=time.monotonic() - started)

    async def _build_locked(
        self, request: BuildRequest, emit: events.Emit, outcome: Outcome
    ) -> Outcome:
        # An edit that was undone needs no build.
        earlier = await uncancelled(asyncio.to_thread(self.return_to, request))
        if earlier is not None:
            return dataclasses.replace(outcome, result="built", manifest=earlier, returned=True)
        owner = owned.Owner(
            pid=os.getpid(),
            purpose="build",
            started_at=utc_now(),
            target=request.target.name,
            environment=request.environment,
        )
        with owned.OwnedDirectory(self.state.work, owner) as work:
            log_path = self.state.log(request.target.name, request.environment)
            async with BoundedLog(log_path) as log:
                try:
                    manifest = await self._within_limit(request, emit, work, log)
                except Superseded as superseded:
                    await log.note("the sources changed during the build; nothing was published")
                    return dataclasses.replace(
                        outcome, result="superseded", reasons=superseded.reasons
                    )
                # A half-made publication is no harm to readers, but a cancelled one would be lost work.
                await uncancelled(asyncio.to_thread(self.publish, work / "staging", manifest))
        return dataclasses.replace(outcome, result="built", manifest=manifest)

    async def _within_limit(
        self, request: BuildRequest, emit: events.Emit, work: Path, log: BoundedLog
    ) -> Manifest:
        limit = request.target.timeout
        heard = Heard()
        try:
            async with asyncio.timeout(limit):
                return await self._build_and_prove(request, emit, work, log, heard)
        except TimeoutError:
            await log.note(f"ended after the limit of {limit:g} s")
            raise BuildFailed(
                "timed_out",
                f"The build took longer than {limit:g} s and was ended in phase `{heard.phase}`.",
                phase=heard.phase,
                exit_code=WaitTimeoutError.exit_code,
                remedy=WaitTimeoutError.default_remedy,
            ) from None

    async def _build_and_prove(
        self,
        request: BuildRequest,
        emit: events.Emit,
        work: Path,
        log: BoundedLog,
        heard: Heard,
    ) -> Manifest:
        variables = target_environment(self.environ, request.target, self.config.project)
        job = self._job(request, work, variables)
        job_path = work / "job.json"
        job_path.write_bytes(msgspec.json.encode(job))
        stages = Stages(request, emit, work, log, heard)
        # One set of compiler caches an environment: the second build of a target is much faster.
        caches = self.state.caches(request.environment)
        was_empty = caches.are_empty()
        attempt = functools.partial(self._attempt, request, work, stages, job_path, variables)
        try:
            return await attempt(caches)
        except BuildFailed as error:
            refused = bool(error.fields.get("refused"))
            if was_empty or not may_be_to_blame(heard.phase, error.signal, refused=refused):
                raise
            await log.note(f"failed: {error.message}")
            await log.note(
                "once more with empty compiler caches: a killed build may have damaged them"
            )
        heard.forget()
        fresh = CompilerCaches(work / "caches").prepare()
        manifest = await attempt(fresh)
        await asyncio.to_thread(caches.replace_with, fresh)
        return manifest

    async def _attempt(
        self,
        request: BuildRequest,
        work: Path,
        stages: Stages,
        job_path: Path,
        variables: Mapping[str, str],
        caches: CompilerCaches,
    ) -> Manifest:
        heard = stages.heard
        await stages.run("build", (*BUILD_ARGUMENTS, str(job_path)), with_caches(variables, caches))
        if heard.built is None:
            raise BuildFailed("no_result", "The build process ended well but built nothing.")
        manifest = heard.built.manifest
        self._accept(request, manifest)
        await self._still_current(request, manifest)
        # The proof gets none of them, as a worker on another machine would have none.
        shutil.rmtree(work / "proof", ignore_errors=True)
        empty = with_caches(variables, CompilerCaches(work / "proof").prepare())
        try:
            await stages.run("proof", (*PROOF_ARGUMENTS, str(job_path)), empty)
        except BuildFailed:
            # A proof of edited sources fails by design; that is no fault of the target.
            await self._still_current(request, manifest)
            raise
        if heard.proven is None:
            raise BuildFailed("no_proof", "The proof process ended well but proved nothing.")
        await self._still_current(request, manifest)
        proven = heard.proven
        for form, why in proven.without.items():
            await stages.log.note(f"the {form} form was not proven and is left out: {why}")
        return manifest.proven(proven.proof, proven.without)

    async def _still_current(self, request: BuildRequest, manifest: Manifest) -> None:
        """Raises ``Superseded`` when the snapshot is not what lies on disk any more."""
        reasons = await asyncio.to_thread(self.check, manifest, request.target)
        if reasons:
            raise Superseded(reasons)

    def _job(self, request: BuildRequest, work: Path, variables: Mapping[str, str]) -> Job:
        target, project = request.target, self.config.project
        return Job(
            target=target.name,
            factory=target.factory,
            project=str(project),
            staging=str(work / "staging"),
            environment=request.environment,
            device=request.device,
            search_path=search_path(variables, project, target.cwd),
            variables=tuple(sorted(target.env)),
            tolerance=dict(target.tolerance),
        )

    def _accept(self, request: BuildRequest, manifest: Manifest) -> None:
        """Whether this is the package that was asked for. Raises ``BuildFailed``."""
        if (manifest.target, manifest.factory) != (request.target.name, request.target.factory):
            raise BuildFailed(
                "wrong_package",
                f"The build process built {manifest.target} ({manifest.factory}) instead.",
            )
        if environment_digest(manifest.environment) == request.environment:
            return
        expected = self.expected(request.environment)
        reasons = differences(manifest.environment, expected) if expected else ()
        raise BuildFailed(
            "environment_differs",
            "The build process found another environment than the one that was asked for: "
            f"{'; '.join(str(reason) for reason in reasons) or 'unknown'}.",
            reasons=reasons,
            remedy="Set environment variables in `env` of the target, not in code.",
        )

    def _failure(self, request: BuildRequest, error: BuildFailed) -> Failure:
        fields: dict[str, object] = {"remedy": BuildError.default_remedy, **error.fields}
        return msgspec.convert(
            {
                "target": request.target.name,
                "environment": request.environment,
                "kind": error.kind,
                "message": error.message,
                "at": time.time(),
                **fields,
            },
            Failure,
        )


class Superseded(Exception):
    """Ends a build whose sources changed meanwhile; ``reasons`` say which."""

    def __init__(self, reasons: tuple[Reason, ...]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


def differences(expected: Environment, found: Environment) -> tuple[Reason, ...]:
    """Why two environments are not the same."""
    from preheat.environment import environment_differences

    return tuple(environment_differences(expected, found))


def kind_of(error: PreheatError) -> str:
    """The stable word for an error's class: ``UntrustedStoreError`` is ``untrusted_store``."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
