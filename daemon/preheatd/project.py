"""Everything that the commands share: configuration, store, state and what works on them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from typing import TYPE_CHECKING

import filelock

from preheat.errors import BusyError, StoreError
from preheat.manifest import encode, sha256
from preheat.store import DiskStore, build_lock, copy_package
from preheat.store.signing import UNSIGNED, published_as
from preheatd.builds import Builder
from preheatd.confirming import Confirming
from preheatd.executors.asking import Everywhere
from preheatd.executors.naming import stored_name
from preheatd.forks import Forks
from preheatd.inventory import Inventory, Survey
from preheatd.outcome import BuildRequest, Outcome
from preheatd.plan import NO_KICKS
from preheatd.politeness.limits import LimitsTold
from preheatd.probe import Prober
from preheatd.recovering import Recovery
from preheatd.remembering import Order
from preheatd.roots import source_files
from preheatd.state import State, state_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from preheat.manifest import Digest, Manifest
    from preheatd import events
    from preheatd.config import Config
    from preheatd.owned import Owner
    from preheatd.plan import Decision, TargetFacts
    from preheatd.zygotes import Zygotes


@dataclasses.dataclass(frozen=True)
class Project:
    """One configuration, opened. ``zygotes``: where processes may be forked, as in a daemon."""

    config: Config
    store: DiskStore
    state: State
    inventory: Inventory
    zygotes: Zygotes | None = None
    limits: LimitsTold = dataclasses.field(default_factory=LimitsTold)
    interrupted: set[Digest] = dataclasses.field(default_factory=set)

    def with_config(self, config: Config) -> Project:
        """The same store and state for another configuration."""
        self.store.signing = config.signing
        return dataclasses.replace(self, config=config)

    async def build(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        """Build, prove and publish one target."""
        outcome = await self._builder().build(request, emit)
        if outcome.failure is not None and outcome.failure.kind == "environment_differs":
            self.inventory.doubt_environments()
        return outcome

    async def confirm(self, request: BuildRequest, emit: events.Emit) -> Outcome:
        """Prove the published package of one target once more, if its proof was forked."""
        return await self._builder().confirm(request, emit)

    def _builder(self) -> Builder:
        config = self.config
        return Builder(
            config=config,
            state=self.state,
            check=lambda manifest, target: self.inventory.check(config, manifest, target),
            publish=self.publish,
            return_to=self.return_to,
            lock=lambda target, environment: build_lock(
                config.store, stored_name(target), environment
            ),
            expected=self.inventory.environment,
            confirming=self._confirming,
            forks=self._forks(),
            limits=self.limits,
            moved=self.inventory.moved,
        )

    async def prepare_zygotes(self, survey: Survey) -> None:
        """Start zygotes for targets that have been built, so that they are ready for the first edit."""
        forks = self._forks()
        if forks is None or self.zygotes is None:
            return
        builder = self._builder()
        for target in self.config.here().targets:
            facts = survey.of(target.name)
            if self.zygotes.is_full:
                return
            if facts.environment:
                await builder.prepare_fork(
                    BuildRequest(target=target, environment=facts.environment, device=facts.device)
                )

    def _confirming(self, still_current: Callable[[Manifest], Awaitable[None]]) -> Confirming:
        return Confirming(
            store=self.store,
            state=self.state,
            publish=self._point_to,
            still_current=still_current,
            interrupted=self.interrupted,
        )

    def _forks(self) -> Forks | None:
        if self.zygotes is None or not self.config.zygote:
            return None
        return Forks(self.zygotes, self.state)

    def publish(self, staging: Path, manifest: Manifest) -> None:
        """Copy a proven package from a staging store and point its ref to it."""
        copy_package(DiskStore(staging, signing=UNSIGNED), self.store, manifest)
        self._point_to(manifest)

    def return_to(self, request: BuildRequest) -> Manifest | None:
        """Point the ref to an earlier package that is whole and fits the sources on disk, if there is one.

        What is damaged of the package that it points to goes to the quarantine first, and then every
        earlier package that lies in the store will do.
        """
        target, environment = request.target, request.environment
        name = stored_name(target.name)
        wanted = self.state.published(name, environment)
        recovery = Recovery.of(self.store)
        if recovery.is_damaged(name, environment):
            recovery.take_away(name, environment)
            candidates = iter(recovery.earlier(name, environment, wanted))
        else:
            candidates = self._published_before(wanted)
        for manifest in candidates:
            try:
                # What is published again is signed again: only what was signed before may be.
                self.store.check_signed(published_as(manifest, sha256(encode(manifest))), manifest)
                fits = self.inventory.fits(self.config, manifest, target, environment)
                if fits and not any(recovery.damaged_objects(manifest)):
                    self._point_to(manifest)
                    return manifest
            except StoreError:
                continue  # it was collected or damaged meanwhile; a build makes another
        return None

    def _published_before(self, wanted: Iterable[Digest]) -> Iterator[Manifest]:
        for digest in wanted:
            try:
                manifest = self.store.read_manifest(digest)
            except StoreError:
                continue  # it was collected or damaged
            yield manifest

    def _point_to(self, manifest: Manifest) -> None:
        ref = self.store.publish(manifest)
        self.state.note_published(manifest.target, ref.environment, ref.manifest)

    def orders(
        self,
        survey: Survey,
        decisions: Iterable[Decision],
        kicks: Mapping[str, bool] = NO_KICKS,
        *,
        confirm: bool = False,
    ) -> list[Order]:
        """What the dispatcher needs to carry out these decisions."""
        targets = {target.name: target for target in self.config.targets}
        found = ((targets[one.target], survey.of(one.target)) for one in decisions)
        return [
            Order(
                request=BuildRequest(
                    target=target,
                    environment=facts.environment,
                    device=facts.device,
                    rebuild=kicks.get(target.name, False),
                    sources=facts.sources if target.executor else {},
                ),
                facts=facts,
                known=self._known(facts),
                confirm=confirm,
            )
            for target, facts in found
        ]

    def _known(self, facts: TargetFacts) -> frozenset[str]:
        if facts.manifest is None:
            return frozenset()
        return source_files(self.config.project, facts.manifest.sources)


@contextlib.contextmanager
def only_daemon(project: Project) -> Iterator[None]:
    """Inside, no second daemon of the same configuration asks for the same and gets it.

    Raises ``BusyError`` when one runs already, also one that was not started in this way.
    """
    file = project.config.file
    name = hashlib.sha256(str(file).encode()).hexdigest()[:16]
    lock = filelock.FileLock(project.state.path / f"daemon-{name}.lock", timeout=0)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except filelock.Timeout as error:
            raise _second(file, project.state.running_daemons(file)) from error
        if running := project.state.running_daemons(file):
            raise _second(file, running)
        yield


def _second(file: Path, running: tuple[Owner, ...]) -> BusyError:
    who = f"process {running[0].pid}" if running else "another daemon"
    return BusyError(
        f"{file} is kept warm by {who} already.",
        remedy="End that one first, or start this one with `--second follow`.",
    )


def open_project(config: Config, *, create: bool) -> Project:
    """Open the store and the state directory.

    ``create`` makes the store and cleans up after dead builds; without it the store is only read.
    Raises ``StoreError``, ``UntrustedStoreError``.
    """
    store = DiskStore(config.store, create=create, signing=config.signing)
    state = State(state_path(config.store, os.environ))
    try:
        state.prepare()
    except StoreError:
        # To look is possible without a place for notes; to build is not.
        if create:
            raise
    if create:
        state.sweep()
        store.sweep_temporary()
    return Project(config, store, state, Inventory(store, state, Everywhere(Prober(state))))
