"""What becomes of a package that comes from elsewhere: whether it becomes the current one here."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import TYPE_CHECKING, Literal

from preheat.errors import CorruptedError, StoreError
from preheat.manifest import ObjectRef, encode, environment_digest, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preheat.manifest import Digest, Manifest
    from preheat.store import DiskStore
    from preheatd.config import Config

Result = Literal["new", "replaced", "same", "kept", "left_out"]
COMING: frozenset[Result] = frozenset({"new", "replaced"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrived:
    """One package that was offered, and what became of it.

    ``new``: it is the current one, and there was none. ``replaced``: it took the place of another.
    ``same``: it was the current one already. ``kept``: another one stays the current one. ``left_out``: it
    is for another environment, or was not asked for.
    """

    target: str
    environment: Digest
    manifest: Digest
    result: Result


def decide(
    current: Digest | None,
    arriving: Digest,
    *,
    replace: bool,
    current_fits: Callable[[], bool | None],
    arriving_fits: Callable[[], bool | None],
) -> Result:
    """Pure. ``*_fits``: whether a package fits the sources here; None where that cannot be said.

    What is current stays so, unless it is asked for, or unless the current package does not fit the
    sources here and the arriving one does: content decides, never a time.
    """
    if current is None:
        return "new"
    if current == arriving:
        return "same"
    if replace:
        return "replaced"
    return "replaced" if current_fits() is False and arriving_fits() else "kept"


def check_room(store: DiskStore, wanted: Mapping[Digest, int]) -> None:
    """Early and kindly; a disk that fills up meanwhile is found when it is written to.

    ``wanted``: sizes of objects, by digest. Raises ``StoreError``.
    """
    needed = sum(
        size
        for digest, size in wanted.items()
        if store.object_problem(ObjectRef(name="", sha256=digest, size=size))
    )
    free = shutil.disk_usage(store.layout.root).free
    if needed > free:
        raise StoreError(
            f"{store.location} has {free} bytes left, and the packages need {needed}.",
            remedy="Free some space, or choose another store with PREHEAT_STORE.",
        )


class Arrivals:
    """Decides about packages for one store.

    ``config``: the project whose sources say what fits; None where there is none. ``only``: the
    environments whose packages are taken, None for all; ``targets`` likewise, empty for all.
    """

    def __init__(
        self,
        config: Config | None,
        *,
        replace: bool = False,
        only: frozenset[Digest] | None = None,
        targets: frozenset[str] = frozenset(),
    ) -> None:
        self._config = config
        self._replace = replace
        self._targets = targets
        self.only = only

    def wants(self, target: str, environment: Digest) -> bool:
        """Whether a package of this name is taken at all."""
        asked = not self._targets or target in self._targets
        return asked and (self.only is None or environment in self.only)

    def judge(self, store: DiskStore, manifest: Manifest) -> Arrived:
        """What is to become of a package. Reads the store and, where packages compete, the sources."""
        digest = sha256(encode(manifest))
        environment = environment_digest(manifest.environment)
        result: Result = "left_out"
        if self.wants(manifest.target, environment):
            result = self._decided(store, manifest, digest, environment)
        return Arrived(
            target=manifest.target, environment=environment, manifest=digest, result=result
        )

    def _decided(
        self, store: DiskStore, manifest: Manifest, digest: Digest, environment: Digest
    ) -> Result:
        try:
            found = store.read_package(manifest.target, environment)
        except CorruptedError:
            return "new"  # what is there cannot be loaded
        current = None if found is None else found[1]
        return decide(
            None if found is None else found[0].manifest,
            digest,
            replace=self._replace,
            current_fits=lambda: (
                None if current is None else self._fits(store, current, there=True)
            ),
            arriving_fits=lambda: self._fits(store, manifest, there=False),
        )

    def _fits(self, store: DiskStore, manifest: Manifest, *, there: bool) -> bool | None:
        config = self._config
        targets = config.targets if config is not None else ()
        target = next((one for one in targets if one.name == manifest.target), None)
        if config is None or target is None:
            return None
        # Here: the sources are only read where two packages compete.
        from preheatd.inventory import Inventory
        from preheatd.state import State, state_path

        inventory = Inventory(store, State(state_path(store.layout.root, os.environ)))
        if there:
            environment = environment_digest(manifest.environment)
            return inventory.fits(config, manifest, target, environment)
        return manifest.factory == target.factory and not inventory.check(config, manifest, target)
