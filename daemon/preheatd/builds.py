"""One build from lock to publication: build process, proof process, sources unchanged, publish.

Nothing is published that another fresh process has not loaded and agreed with, and nothing whose
sources are no longer those on disk. Cancelling a build ends its processes and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.differences import differences
from preheat.errors import BuildError, BusyError, PreheatError, WaitTimeoutError
from preheat.job import Job
from preheat.manifest import environment_digest
from preheatd import events, owned
from preheatd.attempts import Attempt, NotForked
from preheatd.caches import CompilerCaches, may_be_to_blame
from preheatd.clock import utc_now
from preheatd.executors.elsewhere import Elsewhere
from preheatd.executors.naming import stored_name
from preheatd.kinds import kind_of as kind_of
from preheatd.logs import BoundedLog
from preheatd.outcome import BuildRequest, Outcome
from preheatd.politeness.limits import LimitsTold
from preheatd.politeness.processors import compile_threads, read_processors, with_compile_threads
from preheatd.stages import BuildFailed, Heard, Stages, Superseded, seconds_by_stage, state_unusable
from preheatd.state import Failure
from preheatd.surroundings import (
    counted_variables,
    search_path,
    target_environment,
    with_caches,
)
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from preheat.manifest import Environment, Manifest
    from preheat.verdict import Reason
    from preheatd.config import Config, Target
    from preheatd.confirming import Confirming
    from preheatd.forks import Fork, Forks
    from preheatd.stages import Ran
    from preheatd.state import State


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds targets of one project into one store.

    ``check`` says why a manifest's sources differ from those on disk now; ``publish`` copies a proven package
    from a staging store and publishes it; ``return_to`` publishes an earlier package again, where one fits
    the sources on disk, and gives it back; these block and are called in a thread. ``lock`` holds the build
    lock or raises ``BusyError``. ``expected`` knows environments by digest. ``moved``: whether sources are
    others than when a build was asked for. ``forks``: where processes may be forked. ``confirming`` is made
    with what says that sources are still the same.
    """

    config: Config
    state: State
    check: Callable[[Manifest, Target], tuple[Reason, ...]]
    publish: Callable[[Path, Manifest], None]
    return_to: Callable[[BuildRequest], Manifest | None]
    lock: Callable[[str, str], contextlib.AbstractContextManager[object]]
    expected: Callable[[str], Environment | None]
    confirming: Callable[[Callable[[Manifest], Awaitable[None]]], Confirming]
    moved: Callable[[BuildRequest], bool] = lambda request: False
    forks: Forks | None = None
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    limits: LimitsTold = dataclasses.field(default_factory=LimitsTold)

    async def build(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        """Build, prove and publish one target. Raises only what is a fault of preheat itself."""
        return await self._locked(request, emit, self._build_locked)

    async def confirm(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        """Prove the published package once more, in a really fresh process, if its proof was forked."""
        return await self._locked(request, emit, self._confirm_locked)

    async def _locked(
        self,
        request: BuildRequest,
        emit: events.Emit,
        work: Callable[[BuildRequest, events.Emit, Outcome], Awaitable[Outcome]],
    ) -> Outcome:
        started = time.monotonic()
        name, environment = request.target.name, request.environment
        outcome = Outcome(target=name, environment=environment, result="failed")
        try:
            with self.lock(name, environment):
                outcome = await work(request, emit, outcome)
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
        finally:
            # A compiler that was killed with its build left files.
            self.state.sweep_compilers()
        return dataclasses.replace(outcome, seconds=time.monotonic() - started)

    async def _build_locked(
        self, request: BuildRequest, emit: events.Emit, outcome: Outcome
    ) -> Outcome:
        # An edit that was undone needs no build.
        earlier = None
        if not request.rebuild:
            earlier = await uncancelled(asyncio.to_thread(self.return_to, request))
        if earlier is not None:
            return dataclasses.replace(outcome, result="built", manifest=earlier, returned=True)
        async with self._working(request, "build") as (work, log):
            try:
                manifest, ran = await self._made(request, emit, work, log)
            except Superseded as superseded:
                await log.note("the sources changed during the build; nothing was published")
                return dataclasses.replace(outcome, result="superseded", reasons=superseded.reasons)
            # A half-made publication is no harm to readers, but a cancelled one would be lost work.
            await uncancelled(asyncio.to_thread(self.publish, work / "staging", manifest))
        processes = seconds_by_stage(ran)
        return dataclasses.replace(outcome, result="built", manifest=manifest, processes=processes)

    async def _made(
        self, request: BuildRequest, emit: events.Emit, work: Path, log: BoundedLog
    ) -> tuple[Manifest, list[Ran]]:
        """The package in the staging store, and the processes that ran here for it."""
        if request.target.executor is not None:
            return await self._elsewhere(request, emit, work, log).run(), []
        attempt = self._attempt(request, emit, work, log)
        return await self._within_limit(request, attempt), attempt.stages.ran

    def _elsewhere(
        self, request: BuildRequest, emit: events.Emit, work: Path, log: BoundedLog
    ) -> Elsewhere:
        executor, expected = request.target.executor, self.expected(request.environment)
        assert executor is not None
        assert expected is not None  # no line without an environment is built
        return Elsewhere(
            executor=executor,
            request=request,
            expected=expected,
            project=self.config.project,
            work=work,
            log=log,
            emit=emit,
            variables=target_environment(self.environ, request.target, self.config.project),
            accept=functools.partial(self._accept, request),
            still_current=functools.partial(self._still_current, request),
            moved=functools.partial(self.moved, request),
        )

    async def _confirm_locked(
        self, request: BuildRequest, emit: events.Emit, outcome: Outcome
    ) -> Outcome:
        confirming = self.confirming(functools.partial(self._still_current, request))
        manifest = await confirming.unconfirmed(request)
        if manifest is None:
            return dataclasses.replace(outcome, result="confirmed")
        async with self._working(request, "proof") as (work, log):
            await confirming.stage(manifest, work / "staging")
            attempt = self._attempt(request, emit, work, log)
            try:
                failed = await confirming.confirm(manifest, attempt, request.target.timeout)
            except Superseded as superseded:
                return dataclasses.replace(outcome, result="superseded", reasons=superseded.reasons)
        if failed is None:
            return dataclasses.replace(outcome, result="confirmed", manifest=manifest)
        return dataclasses.replace(
            outcome, result="withdrawn", failure=self._failure(request, failed)
        )

    @contextlib.asynccontextmanager
    async def _working(
        self, request: BuildRequest, purpose: str
    ) -> AsyncIterator[tuple[Path, BoundedLog]]:
        """A directory to work in, which says whose it is, and a log."""
        name, environment = request.target.name, request.environment
        owner = owned.Owner(
            pid=os.getpid(),
            purpose=purpose,
            started_at=utc_now(),
            target=name if purpose == "build" else "",
            environment=environment,
        )
        with owned.OwnedDirectory(self.state.work, owner) as work:
            path = self.state.log(name, environment)
            if purpose != "build":
                path = path.with_name(f"{name}.{purpose}.log")
            async with BoundedLog(path) as log:
                yield work, log

    def _attempt(
        self, request: BuildRequest, emit: events.Emit, work: Path, log: BoundedLog
    ) -> Attempt:
        variables = target_environment(self.environ, request.target, self.config.project)
        return Attempt(
            stages=Stages(request, emit, work, log, Heard(), self.config.politeness, self.limits),
            work=work,
            job=self._job(request, work, variables),
            variables=variables,
            state=self.state,
            accept=functools.partial(self._accept, request),
            still_current=functools.partial(self._still_current, request),
            compile_threads=self._compile_threads,
        )

    async def _within_limit(self, request: BuildRequest, attempt: Attempt) -> Manifest:
        limit = request.target.timeout
        try:
            async with asyncio.timeout(limit):
                return await self._build_and_prove(request, attempt)
        except TimeoutError:
            phase = attempt.stages.heard.phase
            await attempt.stages.log.note(f"ended after the limit of {limit:g} s")
            raise BuildFailed(
                "timed_out",
                f"The build took longer than {limit:g} s and was ended in phase `{phase}`.",
                phase=phase,
                exit_code=WaitTimeoutError.exit_code,
                remedy=WaitTimeoutError.default_remedy,
            ) from None

    async def _build_and_prove(self, request: BuildRequest, attempt: Attempt) -> Manifest:
        heard, log, work = attempt.stages.heard, attempt.stages.log, attempt.work
        # One set of compiler caches an environment: the second build of a target is much faster.
        caches = self.state.caches(request.environment)
        was_empty = caches.are_empty()
        try:
            return await self._forked_or_fresh(request, attempt, caches)
        except BuildFailed as error:
            refused = bool(error.fields.get("refused"))
            if was_empty or not may_be_to_blame(heard.phase, error.signal, refused=refused):
                raise
            await log.note(f"failed: {error.message}")
            await log.note(
                "once more with empty compiler caches: a killed build may have damaged them"
            )
        fresh = CompilerCaches(work / "caches").prepare()
        manifest = await attempt.run(fresh)
        await asyncio.to_thread(caches.replace_with, fresh)
        return manifest

    async def _forked_or_fresh(
        self, request: BuildRequest, attempt: Attempt, caches: CompilerCaches
    ) -> Manifest:
        fork = await self.prepare_fork(request)
        if fork is not None:
            try:
                return await attempt.run(caches, fork)
            except NotForked as error:
                await attempt.stages.log.note(f"once more in fresh processes: {error}")
        manifest = await attempt.run(caches)
        await self.prepare_fork(request)  # so that it is ready for the next edit
        return manifest

    async def prepare_fork(self, request: BuildRequest) -> Fork | None:
        """The zygote for a target, started if need be; None where only fresh processes will do."""
        if self.forks is None:
            return None
        variables = target_environment(self.environ, request.target, self.config.project)
        caches = self.state.caches(request.environment)
        threads = await asyncio.to_thread(self._compile_threads)
        environment = with_caches(with_compile_threads(variables, threads), caches)
        return await self.forks.find(request, variables, environment)

    def _compile_threads(self) -> int:
        """As configured, else a share of the processors for each build that may run at once."""
        config = self.config
        builds = max(1, min(config.jobs, len(config.here().targets)))
        return config.politeness.compile_threads or compile_threads(read_processors(), builds)

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
            variables=counted_variables(target.env),
            tolerance=dict(target.tolerance),
        )

    def _accept(self, request: BuildRequest, manifest: Manifest) -> None:
        """Whether this is the package that was asked for. Raises ``BuildFailed``."""
        if (manifest.target, manifest.factory) != (
            stored_name(request.target.name),
            request.target.factory,
        ):
            raise BuildFailed(
                "wrong_package",
                f"The build process built {manifest.target} ({manifest.factory}) instead.",
            )
        if environment_digest(manifest.environment) == request.environment:
            return
        expected = self.expected(request.environment)
        reasons = (
            differences("environment_differs", manifest.environment, expected) if expected else ()
        )
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
