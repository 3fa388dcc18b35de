"""One build through an executor, seen from here: a process that holds it, a result, and nothing believed.

What comes back passes the same checks as any package from elsewhere, and some more: it must be the one that
was asked for, for that environment, of this version, and of the sources that lie here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import PreheatError, WaitTimeoutError
from preheat.executor_host import HostJob
from preheat.formats import other_formats
from preheat.job import FailedEvent, PhaseEvent
from preheat.limits import MAX_RECORD_BYTES, read_limited
from preheat.manifest import encode, sha256
from preheat.store import DiskStore
from preheat.store.signing import UNSIGNED
from preheatd.abandoned import note_group
from preheatd.arriving import Arrivals
from preheatd.clock import utc_now
from preheatd.executors.messages import Answer, Request, read_answer
from preheatd.executors.naming import stored_name
from preheatd.kinds import kind_of
from preheatd.process import Command, describe_status, run_process
from preheatd.stages import BuildFailed, Superseded, phase_of, state_unusable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from preheat.job import Event as ProcessEvent
    from preheat.manifest import Digest, Environment, Manifest
    from preheatd import events
    from preheatd.executors.settings import Executor
    from preheatd.logs import BoundedLog
    from preheatd.outcome import BuildRequest

HOST_ARGUMENTS = ("-m", "preheat.executor_host")
_REMOTE_SECONDS = 60.0
_REMEDY = "Read the log of the build with `preheat status`."


@dataclasses.dataclass
class _Heard:
    phase: str = "start"
    failed: FailedEvent | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Builds in ``work``, whose ``staging`` then has the package. ``variables``: of the process that holds
    the executor. ``accept`` raises ``BuildFailed`` for a package that was not asked for; ``still_current``
    raises ``Superseded`` when its sources are not those on disk; ``moved`` says whether those on disk are
    others than when the build was asked for."""

    executor: Executor
    request: BuildRequest
    expected: Environment
    project: Path
    work: Path
    log: BoundedLog
    emit: events.Emit
    variables: Mapping[str, str]
    accept: Callable[[Manifest], None]
    still_current: Callable[[Manifest], Awaitable[None]]
    moved: Callable[[], bool]

    async def run(self) -> Manifest:
        """The manifest of the package in ``staging``. Raises ``BuildFailed`` and ``Superseded``."""
        heard = _Heard()
        limit = self.executor.timeout
        try:
            async with asyncio.timeout(limit):
                await self._hold(heard)
                answer = await asyncio.to_thread(self._answer)
                await self._judge(answer)
                manifest = await self._fetch(answer)
        except TimeoutError:
            await self.log.note(f"ended after the limit of {limit:g} s")
            raise BuildFailed(
                "timed_out",
                f"The executor {self.executor.name} brought nothing within {limit:g} s; it was ended in "
                f"phase `{heard.phase}`.",
                phase=heard.phase,
                exit_code=WaitTimeoutError.exit_code,
                remedy="Raise `timeout` of the executor: waiting for a node counts.",
            ) from None
        await self._check(manifest, answer)
        return manifest

    async def _hold(self, heard: _Heard) -> None:
        """Run the process that holds the executor to its end."""
        job = await asyncio.to_thread(self._write_job)
        command = Command(
            arguments=(self.executor.python, *HOST_ARGUMENTS, str(job)),
            cwd=self.project,
            environment=self.variables,
            on_started=self._started,
        )
        name = self.request.target.name
        await self.log.note(f"{name} through {self.executor.factory} at {utc_now()}")

        def hear(event: ProcessEvent) -> None:
            self._hear(heard, event)

        try:
            status = await run_process(command, self.log, hear)
        except OSError as error:
            raise BuildFailed(
                "interpreter_failed",
                f"{self.executor.python} cannot be started: {error.strerror}.",
                remedy=f"Correct `python` of the executor {self.executor.name}.",
            ) from error
        await self.log.note(f"the process of the executor {describe_status(status)}")
        if heard.failed is not None:
            failed = heard.failed
            raise BuildFailed(failed.kind, failed.message, remedy=failed.remedy or _REMEDY)
        if status != 0:
            raise BuildFailed(
                "executor_failed",
                f"The process of the executor {self.executor.name} {describe_status(status)} in phase "
                f"`{heard.phase}`.",
                phase=heard.phase,
                remedy=_REMEDY,
            )

    def _started(self, group: int) -> None:
        try:
            note_group(self.work, group)
        except OSError as error:
            raise state_unusable(error, self.work) from error

    def _hear(self, heard: _Heard, event: ProcessEvent) -> None:
        if isinstance(event, FailedEvent):
            heard.failed = event
        elif isinstance(event, PhaseEvent):
            heard.phase = event.phase
            self.emit(phase_of(self.request, event))

    def _write_job(self) -> Path:
        (self.work / "request.json").write_bytes(msgspec.json.encode(self._request()))
        job = HostJob(
            factory=self.executor.factory,
            arguments=msgspec.json.decode(self.executor.arguments),
            project=str(self.project),
            request=str(self.work / "request.json"),
            answer=str(self.work / "answer.json"),
            bundle=str(self._bundle),
        )
        path = self.work / "host.json"
        path.write_bytes(msgspec.json.encode(job))
        return path

    @property
    def _bundle(self) -> Path:
        return self.work / "package.bundle"

    def _request(self) -> Request:
        target, executor = self.request.target, self.executor
        there = executor.remote_project or str(self.project)
        cwd = target.cwd
        if cwd.is_relative_to(self.project):
            cwd = cwd.relative_to(self.project)
        return Request(
            target=self._name,
            factory=target.factory,
            project=there,
            cwd=os.path.normpath(os.path.join(there, cwd)),  # noqa: PTH118 - of another machine
            python=executor.remote_python,
            state=executor.remote_state,
            env=dict(target.env),
            device=self.request.device,
            timeout=executor.timeout,
            tolerance=dict(target.tolerance),
            memory_limit=target.memory_limit,
            environment=self.request.environment,
            expected=self.expected,
            through=executor.through_store,
        )

    def _answer(self) -> Answer:
        try:
            return read_answer(read_limited(self.work / "answer.json", MAX_RECORD_BYTES))
        except (OSError, msgspec.MsgspecError) as error:
            raise self._nonsense(f"it cannot be read: {error}") from error

    def _nonsense(self, why: str) -> BuildFailed:
        return BuildFailed(
            "executor_answer",
            f"What the executor {self.executor.name} returned is no answer of a build: {why}.",
            remedy="Its `submit` must call the function that it is given and return what that returns, with "
            "the same version of preheat on both nodes.",
        )

    async def _judge(self, answer: Answer) -> None:
        await self.log.note(f"{answer.outcome} on {answer.host or 'a node without a name'}")
        if answer.log:
            await self.log.write(answer.log.encode() + b"\n")
        if answer.outcome == "superseded":
            raise Superseded(answer.reasons)
        if answer.outcome == "failed":
            raise BuildFailed(
                answer.kind or "no_result",
                f"On {answer.host or 'the other node'}: {answer.message or 'no reason was given.'}",
                remedy=answer.remedy or _REMEDY,
                refused=answer.refused,
                reasons=answer.reasons,
                phase=answer.phase,
            )

    async def _fetch(self, answer: Answer) -> Manifest:
        """Take the package into the staging store, checked as every package from elsewhere."""
        try:
            if self.executor.through_store is None:
                await self._import()
            else:
                await self._pull(self.executor.through_store)
            return await asyncio.to_thread(self._staged, answer.manifest)
        except PreheatError as error:
            raise BuildFailed(
                kind_of(error),
                f"What the executor {self.executor.name} returned is refused: {error.message}",
                remedy=error.remedy or _REMEDY,
            ) from error

    async def _import(self) -> None:
        from preheatd.bundles.importing import Importer, import_bundle

        # Not by its name: a file that is a link, or none, is no bundle.
        descriptor = os.open(
            self._bundle, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._nonsense("its bundle is no regular file")
            arrivals = Arrivals(None, targets=frozenset({self._name}))
            importer = Importer(self._staging, arrivals, length=status.st_size)
            await import_bundle(descriptor, importer)
        finally:
            os.close(descriptor)

    async def _pull(self, url: str) -> None:
        from preheatd.remotes.calls import opened
        from preheatd.remotes.pulling import Puller

        remote = await opened(url, _REMOTE_SECONDS)
        arrivals = Arrivals(
            None, only=frozenset({self.request.environment}), targets=frozenset({self._name})
        )
        puller = Puller(remote, self._staging, arrivals, seconds=_REMOTE_SECONDS)
        await puller.pull((self._name,))

    @property
    def _name(self) -> str:
        return stored_name(self.request.target.name)

    def _staging(self) -> DiskStore:
        return DiskStore(self.work / "staging", create=True, signing=UNSIGNED)

    def _staged(self, promised: Digest) -> Manifest:
        target, environment = self._name, self.request.environment
        found = self._staging().read_package(target, environment)
        if found is None:
            raise self._nonsense(f"it brought no package of {target} for {environment}")
        if sha256(encode(found[1])) != promised:
            raise self._nonsense("the package is another one than it says")
        return found[1]

    async def _check(self, manifest: Manifest, answer: Answer) -> None:
        self.accept(manifest)
        if formats := other_formats(manifest):
            raise BuildFailed(
                "other_format",
                f"On {answer.host} another version of preheat built it: "
                f"{'; '.join(str(reason) for reason in formats)}.",
                remedy="Install the same version of preheat on both nodes.",
                reasons=formats,
            )
        try:
            await self.still_current(manifest)
        except Superseded as superseded:
            if await asyncio.to_thread(self.moved):
                raise
            raise self._other_sources(answer, superseded) from None

    def _other_sources(self, answer: Answer, superseded: Superseded) -> BuildFailed:
        said = "; ".join(str(reason) for reason in superseded.reasons[:5])
        return BuildFailed(
            "sources_differ",
            f"On {answer.host} it was built from other sources than those here: {said}.",
            remedy="Bring the same sources to that node, or set `remote_project` of the executor.",
            reasons=superseded.reasons,
        )
