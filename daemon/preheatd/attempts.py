"""One try at a package: a build process, then a proof, each fresh or forked from a zygote."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.build import CLASSES_NAME, OUTCOMES_NAME
from preheat.limits import MAX_RECORD_BYTES, decode_json, read_limited
from preheat.manifest import Proof
from preheatd.caches import CompilerCaches
from preheatd.forked import ZygoteUnfit
from preheatd.forks import KIND_OF_FORM, Fork, Stalled
from preheatd.politeness.processors import with_compile_threads
from preheatd.process import start_fresh
from preheatd.stages import BuildFailed, Heard, UnfitToFork
from preheatd.state import FreshProof
from preheatd.surroundings import with_caches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from preheat.job import Job, ProvenEvent
    from preheat.manifest import Manifest
    from preheatd.process import Start
    from preheatd.stages import Stages
    from preheatd.state import State

BUILD_ARGUMENTS = ("-m", "preheat.build")
PROOF_ARGUMENTS = ("-m", "preheat.verify")


class NotForked(Exception):
    """What was forked is worth nothing, and its words say why: fresh processes have to do it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """Builds and proves in ``work``. ``accept`` raises ``BuildFailed`` for a package that was not asked for;
    ``still_current`` raises ``Superseded`` when the sources are others now; ``compile_threads``
    says how many the compiler may use, and is asked in a thread."""

    stages: Stages
    work: Path
    job: Job
    variables: Mapping[str, str]
    state: State
    accept: Callable[[Manifest], None]
    still_current: Callable[[Manifest], Awaitable[None]]
    compile_threads: Callable[[], int]

    async def run(self, caches: CompilerCaches, fork: Fork | None = None) -> Manifest:
        """The manifest of the staged and proven package.

        Raises ``BuildFailed``, and ``NotForked`` for whatever goes wrong in a forked build, unless it is
        the target's own error.
        """
        began = time.monotonic()
        self.stages.heard.forget()
        shutil.rmtree(self.work / "staging", ignore_errors=True)
        for name in (OUTCOMES_NAME, CLASSES_NAME):
            (self.work / name).unlink(missing_ok=True)
        manifest = await self._build(caches, fork)
        self.accept(manifest)
        await self.still_current(manifest)
        try:
            proven = await self._prove(manifest, fork, began)
        except BuildFailed:
            # A proof of edited sources fails by design; that is no fault of the target.
            await self.still_current(manifest)
            raise
        await self.still_current(manifest)
        for form, why in proven.without.items():
            await self._note(f"the {form} form was not proven and is left out: {why}")
        return manifest.proven(proven.proof, proven.without)

    async def prove_freshly(self, began: float | None = None) -> ProvenEvent:
        """Prove what is staged in a really fresh process. Raises ``BuildFailed``.

        ``began``: when the build in a fresh process did, if there was one.
        """
        job = self._write_job("proof", ())
        await self._proof(job, self.stages, self._proof_caches("proof"), start_fresh)
        proven = self.stages.heard.proven
        if proven is None:
            raise BuildFailed("no_proof", "The proof process ended well but proved nothing.")
        seconds = None if began is None else time.monotonic() - began
        await asyncio.to_thread(self._remember, proven, seconds)
        return proven

    def _remember(self, proven: ProvenEvent, seconds: float | None) -> None:
        name, environment = self.job.target, self.job.environment
        before = self.state.fresh_proof(name, environment)
        if seconds is None:
            seconds = before.seconds if before else 0.0
        record = FreshProof(modules=proven.modules, libraries=proven.libraries, seconds=seconds)
        self.state.note_fresh_proof(name, environment, record)

    async def _build(self, caches: CompilerCaches, fork: Fork | None) -> Manifest:
        job = self._write_job("job", ())
        threads = await asyncio.to_thread(self.compile_threads)
        variables = with_caches(with_compile_threads(self.variables, threads), caches)
        arguments = (*BUILD_ARGUMENTS, str(job))
        if fork is None:
            await self.stages.run("build", arguments, variables)
        else:
            start = fork.start("build", "compiler", job, caches.variables())
            await self._forked_build(fork, arguments, variables, start)
        built = self.stages.heard.built
        if built is None:
            raise BuildFailed("no_result", "The build process ended well but built nothing.")
        return built.manifest

    async def _forked_build(
        self, fork: Fork, arguments: tuple[str, ...], variables: Mapping[str, str], start: Start
    ) -> None:
        try:
            async with fork.in_time():
                await self.stages.run("build", arguments, variables, start)
        except BuildFailed as error:
            if error.kind == "target":
                raise
            if error.signal is not None:
                fork.zygote.give_up("a child died")
            raise NotForked(error.message) from error
        except (Stalled, UnfitToFork, ZygoteUnfit) as error:
            raise NotForked(str(error)) from error

    async def _prove(self, manifest: Manifest, fork: Fork | None, began: float) -> ProvenEvent:
        if fork is not None:
            try:
                return await self._prove_forked(manifest, fork)
            except NotForked as error:
                await self._note(f"a forked proof does not do: {error}")
        try:
            return await self.prove_freshly(None if fork else began)
        except BuildFailed as error:
            if fork is None:
                raise
            raise NotForked(error.message) from error

    async def _prove_forked(self, manifest: Manifest, fork: Fork) -> ProvenEvent:
        """Prove each form in a child of its own, at the same time. Raises ``NotForked``."""
        if self._has_own_outcomes():
            raise NotForked("its results are compared with those of the build")
        kinds = [form.kind for form in manifest.forms]
        proofs = [asyncio.create_task(self._prove_form(form, fork)) for form in kinds]
        try:
            proven = await asyncio.gather(*proofs)
        finally:
            for task in proofs:
                task.cancel()
            await asyncio.gather(*proofs, return_exceptions=True)
        return _together(proven)

    async def _prove_form(self, form: str, fork: Fork) -> ProvenEvent:
        kind = KIND_OF_FORM[form]
        job = self._write_job(f"proof-{form}", (form,))
        stages = dataclasses.replace(self.stages, heard=Heard())
        caches = self._proof_caches(f"proof-{form}")
        start = fork.start("proof", kind, job, caches.variables())
        try:
            async with fork.in_time():
                await self._proof(job, stages, caches, start)
            proven = stages.heard.proven
            if proven is None:
                raise NotForked("the proof process proved nothing")
            if why := await fork.why_not_proven(kind, form, proven):
                raise NotForked(why)
        except BuildFailed as error:
            if error.signal is not None:
                fork.zygote.give_up("a child died")
            raise NotForked(error.message) from error
        except (Stalled, UnfitToFork, ZygoteUnfit) as error:
            raise NotForked(str(error)) from error
        return proven

    async def _proof(self, job: Path, stages: Stages, caches: CompilerCaches, start: Start) -> None:
        variables = with_caches(self.variables, caches)
        await stages.run("proof", (*PROOF_ARGUMENTS, str(job)), variables, start)

    def _proof_caches(self, name: str) -> CompilerCaches:
        """Empty ones: a worker on another machine would have no compiler's caches."""
        caches = CompilerCaches(self.work / f"{name}-caches")
        shutil.rmtree(caches.base, ignore_errors=True)
        return caches.prepare()

    def _has_own_outcomes(self) -> bool:
        """Whether the build left results that a proof compares with, as for random programs."""
        if (self.work / OUTCOMES_NAME).exists():
            return True
        classes = decode_json(
            read_limited(self.work / CLASSES_NAME, MAX_RECORD_BYTES), dict[str, dict[str, str]]
        )
        return any(classes.values())

    def _write_job(self, name: str, forms: tuple[str, ...]) -> Path:
        path = self.work / f"{name}.json"
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(self.job, forms=forms)))
        return path

    async def _note(self, text: str) -> None:
        await self.stages.log.note(text)


def _together(proven: list[ProvenEvent]) -> ProvenEvent:
    """Proofs of single forms as one; they ran at the same time."""
    first = proven[0]
    proofs = [form for one in proven for form in one.proof.forms]
    return msgspec.structs.replace(
        first,
        proof=Proof(
            forms=tuple(sorted(proofs, key=lambda form: form.form != "lean")),
            examples=first.proof.examples,
            against=first.proof.against,
            seconds=max(one.proof.seconds for one in proven),
            forked=True,
        ),
    )
