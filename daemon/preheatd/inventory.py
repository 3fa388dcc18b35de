"""Reads the outside world into facts: the store, the sources on disk, failures, who builds what.

Thin on purpose: what follows from the facts is decided in ``plan.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from preheat.errors import (
    PreheatError,
    StoreError,
)
from preheat.formats import other_formats
from preheat.manifest import environment_digest
from preheat.sources.check import check
from preheat.sources.files import FileDigests
from preheat.sources.libraries import InstalledVersions, library_differences
from preheatd.fingerprint import SourceFiles, moved, sources_state
from preheatd.kinds import kind_of
from preheatd.layers import Layers
from preheatd.packages import damage_of, with_package
from preheatd.plan import TargetFacts
from preheatd.probe import ProbeAnswer, Prober
from preheatd.roots import Root, data_paths, target_roots
from preheatd.state import Failure
from preheatd.surroundings import SharedSurroundings, installed_directories

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheat.manifest import Environment, Manifest, ModuleSource
    from preheat.sources.explain import Explanation, Touch
    from preheat.store import DiskStore
    from preheat.verdict import Reason
    from preheatd.config import Config, Target
    from preheatd.outcome import BuildRequest
    from preheatd.probe import ProbeError
    from preheatd.state import Damages, State


@dataclasses.dataclass(frozen=True)
class Survey:
    """The facts about every target at one moment, in the configuration's order."""

    facts: tuple[TargetFacts, ...]
    roots: tuple[tuple[Root, ...], ...]

    def of(self, target: str) -> TargetFacts:
        """The facts about one target."""
        return next(facts for facts in self.facts if facts.target == target)


class Asking(Protocol):
    """Who knows the environments of interpreters: a ``Prober``, as a rule."""

    async def environments(
        self, targets: Iterable[Target], project: Path, environ: Mapping[str, str]
    ) -> dict[str, ProbeAnswer | ProbeError]: ...
    def forget(self) -> None: ...


class Inventory:
    """Looks at one project's targets, store and state, again and again."""

    def __init__(
        self,
        store: DiskStore,
        state: State,
        prober: Asking | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._store = store
        self._state = state
        self._prober = prober or Prober(state)
        self._environ = dict(os.environ if environ is None else environ)
        self._surroundings = SharedSurroundings(self._environ)
        self._digests = FileDigests()
        self._versions = InstalledVersions()
        self._environments: dict[str, Environment] = {}
        self._installed: dict[str, list[Path]] | None = None

    async def survey(self, config: Config) -> Survey:
        """Look at everything once. One target's trouble is a fact about it, never an exception."""
        import asyncio  # here: who knows the answers already needs none of it

        answers = await self._prober.environments(config.targets, config.project, self._environ)
        return await asyncio.to_thread(self.look, config, answers)

    def doubt_environments(self) -> None:
        """A build found another environment than its interpreter had answered: ask again."""
        self._prober.forget()

    def environment(self, digest: str) -> Environment | None:
        """An environment that an interpreter answered with, by its digest."""
        return self._environments.get(digest)

    def check(self, config: Config, manifest: Manifest, target: Target) -> tuple[Reason, ...]:
        """How a package's snapshot differs from the sources on disk now. Reads files; slow the first time."""
        around = self._surroundings.of(target, config.project)
        changed = check(
            manifest.sources,
            around.locate,
            project=config.project,
            digests=self._digests,
            environ=around.variables,
        )
        if target.executor is not None:
            # Its libraries and the variables of its node are not to be seen from here.
            return tuple(
                one for one in changed if one.kind != "variable_changed" or one.symbol in target.env
            )
        return (
            *changed,
            *library_differences(
                manifest.sources,
                (*around.places, *self._libraries_of(target)),
                self._digests,
                self._versions,
                only_known=True,
            ),
        )

    def fits(self, config: Config, manifest: Manifest, target: Target, environment: str) -> bool:
        """Whether a package is whole, proven, of this version and of the sources on disk now."""
        return (
            manifest.factory == target.factory
            and environment_digest(manifest.environment) == environment
            and manifest.is_proven()
            and not other_formats(manifest)
            and not damage_of(self._store, manifest)
            and not self.check(config, manifest, target)
        )

    def moved(self, request: BuildRequest) -> bool:
        """Whether a file that was looked at when a build was asked for is another one now."""
        return moved(request.sources, self._digests)

    def explain(self, config: Config, manifest: Manifest, target: Target) -> Explanation:
        """The same, with what became of each piece of a file that changed."""
        from preheat.sources.explain import explain  # here: only some commands explain

        around = self._surroundings.of(target, config.project)
        return explain(
            manifest.sources,
            around.locate,
            project=config.project,
            digests=self._digests,
            environ=around.variables,
            old_text=self._old_text,
        )

    def _old_text(self, module: ModuleSource) -> bytes | None:
        """What the build executed; None where that was not kept, or is not there whole any more."""
        text = module.text()
        if text is None:
            return None
        try:
            with contextlib.closing(self._store.open_object(text)) as opened:
                return opened.read()
        except StoreError:
            return None

    def if_edited(self, config: Config, manifest: Manifest, file: Path) -> Touch:
        """What an edit of a file could touch."""
        from preheat.sources.explain import if_edited

        return if_edited(manifest.sources, file, config.project, self._digests)

    def look(self, config: Config, answers: Mapping[str, ProbeAnswer | ProbeError]) -> Survey:
        """The same, where the environments are known already. Blocks."""
        building = self._state.building()
        files = SourceFiles(self._digests)
        self._installed = {}  # for this moment
        layers = Layers(config.layers, config.signing)
        with self._digests.one_moment():
            looked = [
                self._target(config, target, answers[target.name], building, files, layers)
                for target in config.targets
            ]
        self._installed = None
        return Survey(tuple(facts for facts, _ in looked), tuple(roots for _, roots in looked))

    def _libraries_of(self, target: Target) -> list[Path]:
        known = self._installed
        if known is None:
            return installed_directories(Path(target.python))
        if target.python not in known:
            known[target.python] = installed_directories(Path(target.python))
        return known[target.python]

    def _target(
        self,
        config: Config,
        target: Target,
        answer: ProbeAnswer | PreheatError,
        building: frozenset[tuple[str, str]],
        files: SourceFiles,
        layers: Layers,
    ) -> tuple[TargetFacts, tuple[Root, ...]]:
        facts = TargetFacts(
            target=target.name,
            factory=target.factory,
            priority=target.priority,
            built_elsewhere=target.executor is not None,
        )
        if isinstance(answer, ProbeAnswer):
            facts = self._with_environment(facts, target, answer)
        else:
            facts = dataclasses.replace(facts, failure=_probe_failure(target, answer))
        if facts.environment:
            facts = self._with_package(config, target, facts, layers)
        places = self._surroundings.of(target, config.project).places
        roots = target_roots(config, target, facts.manifest, places)
        extra = (
            data_paths(config.project, facts.manifest.sources) if facts.manifest else frozenset()
        )
        sources = files.of(roots, extra)
        facts = dataclasses.replace(
            facts,
            building=(facts.target, facts.environment) in building,
            failure=facts.failure or self._state.failure(facts.target, facts.environment),
            sources=sources.files,
            sources_state=sources_state(target, sources),
        )
        return facts, roots

    def _with_package(
        self, config: Config, target: Target, facts: TargetFacts, layers: Layers
    ) -> TargetFacts:
        def with_sources(facts: TargetFacts) -> TargetFacts:
            if facts.manifest is None or facts.damage:
                return facts
            reasons = self.check(config, facts.manifest, target)
            return dataclasses.replace(facts, source_reasons=reasons)

        wanted = self._environments[facts.environment]
        own = with_sources(with_package(self._store, facts, wanted))
        own = dataclasses.replace(own, damages=self._damages(own))
        return layers.looked_through(own, wanted, with_sources)

    def _damages(self, facts: TargetFacts) -> Damages | None:
        if any(reason.kind == "package_corrupted" for reason in facts.damage):
            return self._state.damages(facts.target, facts.environment)
        return None

    def _with_environment(
        self, facts: TargetFacts, target: Target, answer: ProbeAnswer
    ) -> TargetFacts:
        device = target.device or answer.default_device
        environment = answer.cuda if device == "cuda" else answer.cpu
        digest = answer.digests.get(device)
        if environment is None or not digest:
            failure = Failure(
                target=target.name,
                environment="",
                kind="device_missing",
                message=f"The target {target.name} asks for the device `{device}`, which "
                f"{target.python} does not have.",
                remedy="Correct `device` of the target, or install a build of torch that has it.",
                refused=True,
                at=time.time(),
            )
            return dataclasses.replace(facts, device=device, failure=failure)
        self._environments[digest] = environment
        return dataclasses.replace(facts, device=device, environment=digest)


def _probe_failure(target: Target, error: PreheatError) -> Failure:
    return Failure(
        target=target.name,
        environment="",
        kind=kind_of(error),
        message=error.message,
        remedy=error.remedy,
        exit_code=error.exit_code,
        at=time.time(),
    )
