"""Which packages of a store a command is about, and which store that is."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from preheat.errors import BundleError, ConfigurationError, StoreError
from preheat.store.location import find_configuration, find_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from preheat.manifest import Digest, Manifest, Ref
    from preheat.store import DiskStore
    from preheatd.config import Config
    from preheatd.probe import ProbeAnswer


def place_of(config_path: Path | None) -> tuple[Path, Config | None]:
    """The store's path, and the configuration if there is one: packages are carried without one as well.

    Raises ``ConfigurationError``.
    """
    if config_path is None and find_configuration() is None:
        return find_store(), None
    from preheatd.config import load_config

    config = load_config(config_path)
    return config.store, config


def selected(
    store: DiskStore, targets: Sequence[str], environments: frozenset[Digest] | None = None
) -> tuple[Ref, ...]:
    """The refs of these targets, all of them without any, in these environments; in a fixed order.

    Raises ``ConfigurationError`` for a target of which the store has no package, and for an empty answer.
    """
    refs = sorted(store.refs(), key=lambda ref: (ref.target, ref.environment))
    known = {ref.target for ref in refs}
    for name in targets:
        if name not in known:
            from preheatd.written import suggest

            raise ConfigurationError(
                f"{store.location} has no package of `{name}`.",
                remedy=suggest(name, known) or "Build it first with `preheat warm`.",
            )
    chosen = tuple(
        ref
        for ref in refs
        if (not targets or ref.target in targets)
        and (environments is None or ref.environment in environments)
    )
    if not chosen:
        where = "" if environments is None else " for an environment of this machine"
        raise ConfigurationError(
            f"{store.location} has no package{where}.", remedy="Build it first with `preheat warm`."
        )
    return chosen


def proven(store: DiskStore, ref: Ref) -> Manifest:
    """The manifest of a package that may be carried elsewhere. Raises ``BundleError``, ``CorruptedError``."""
    manifest = store.read_manifest(ref.manifest)
    if not manifest.is_proven():
        raise BundleError(
            f"The package of {ref.target!r} is not proven.",
            remedy="Build it with `preheat warm` first.",
        )
    return manifest


async def environments_here(config: Config | None) -> dict[str, ProbeAnswer]:
    """What the interpreters of the configuration's targets have, by target; else this interpreter's.

    Raises ``ProbeError`` when none of them answers.
    """
    from preheatd.probe import ProbeAnswer, Prober, Question, ask  # here: they cost time to import
    from preheatd.state import State, state_path

    if config is None:
        import sys
        from pathlib import Path

        question = Question(sys.executable, Path.cwd(), tuple(sorted(os.environ.items())))
        return {sys.executable: await ask(question)}
    state = State(state_path(config.store, os.environ))
    with contextlib.suppress(StoreError):  # without a place for notes they are asked each time
        state.prepare()
    prober = Prober(state)
    targets = config.here().targets
    answers = await prober.environments(targets, config.project, dict(os.environ))
    good = {name: one for name, one in answers.items() if isinstance(one, ProbeAnswer)}
    for answer in answers.values():
        if not good and not isinstance(answer, ProbeAnswer):
            raise answer
    return good


def digests_of(answers: Mapping[str, ProbeAnswer]) -> frozenset[Digest]:
    """The environments, on every device, by digest."""
    found = (digest for one in answers.values() for digest in one.digests.values())
    return frozenset(digest for digest in found if digest)
