"""Whether each target would load here, or on another node, before a job begins; nothing is built.

The same survey and the same plan as everywhere; only failures and running builds do not matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError, StoreError, UntrustedStoreError
from preheat.store import DiskStore
from preheat.store.keys import signing_of
from preheat.verdict import Reason, Verdict
from preheatd.executors.asking import Everywhere
from preheatd.executors.naming import stored_name
from preheatd.inventory import Inventory
from preheatd.layers import Layers
from preheatd.plan import make_plan
from preheatd.probe import ProbeAnswer, ProbeError, Prober, Question, ask
from preheatd.state import State, state_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preheatd.config import Config
    from preheatd.plan import Decision

FORMAT = 1
MAX_WRITTEN_BYTES = 32 * 1024 * 1024


class WrittenEnvironments(msgspec.Struct, frozen=True, kw_only=True):
    """What ``preheat environment --json`` prints. ``targets``: for each which of ``answers`` is its own."""

    format: int = FORMAT
    host: str
    answers: tuple[ProbeAnswer, ...]
    targets: dict[str, int] = {}
    failed: dict[str, str] = {}

    def of(self, target: str) -> ProbeAnswer | None:
        """The answer for a target; for one that is not named, the only one that there is."""
        number = self.targets.get(target)
        if number is not None and 0 <= number < len(self.answers):
            return self.answers[number]
        return self.answers[0] if len(self.answers) == 1 else None

    def answer(self, target: str, source: str, remedy: str = "") -> ProbeAnswer | ProbeError:
        """The answer for a target, or why ``source``, where this was read from, has none."""
        name = stored_name(target)
        why = self.failed.get(name, "it has several interpreters, and none for this target")
        return self.of(name) or ProbeError(
            f"{source} says no environment for `{name}`: {why}.", remedy=remedy
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit:
    """Whether one target would load. ``store``: the store or layer that has the package."""

    target: str
    environment: str
    hit: bool
    verdict: Verdict
    reasons: tuple[Reason, ...]
    store: str | None


def _of_this_node(
    config: Config, state: State, environ: Mapping[str, str]
) -> Mapping[str, ProbeAnswer | ProbeError]:
    prober = Prober(state)
    everywhere = Everywhere(prober)
    known = prober.known(config.here().targets, config.project, environ)
    if known is not None:
        return {**known, **everywhere.written(config.targets)}
    import asyncio  # here: it takes longer to import than everything else takes

    return asyncio.run(everywhere.environments(config.targets, config.project, environ))


async def environments(config: Config | None, environ: Mapping[str, str]) -> WrittenEnvironments:
    """The environments of this node: those of the configuration's targets, or this interpreter's.

    Imports no torch where the answers are known already. Raises ``ProbeError`` without a configuration.
    """
    host = socket.gethostname()
    if config is None:
        import asyncio

        question = Question(
            sys.executable, await asyncio.to_thread(Path.cwd), tuple(sorted(environ.items()))
        )
        return WrittenEnvironments(host=host, answers=(await ask(question),))
    prober = Prober(_notes(config, environ))
    answered = await prober.environments(config.here().targets, config.project, environ)
    distinct = list(
        {id(one): one for one in answered.values() if isinstance(one, ProbeAnswer)}.values()
    )
    return WrittenEnvironments(
        host=host,
        answers=tuple(distinct),
        targets={
            name: distinct.index(one)
            for name, one in answered.items()
            if isinstance(one, ProbeAnswer)
        },
        failed={name: str(one) for name, one in answered.items() if isinstance(one, ProbeError)},
    )


def _notes(config: Config, environ: Mapping[str, str]) -> State:
    """Where answers of interpreters are kept; without a place for it they are asked each time."""
    state = State(state_path(config.store, environ))
    with contextlib.suppress(StoreError):
        state.prepare()
    return state


def read_written(path: Path) -> WrittenEnvironments:
    """What another node's ``preheat environment --json`` printed. Raises ``ConfigurationError``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_WRITTEN_BYTES + 1)
        written = msgspec.json.decode(data, type=WrittenEnvironments)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.", remedy="") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _not_written(path, str(error)) from error
    if len(data) > MAX_WRITTEN_BYTES:
        raise _not_written(path, f"it has more than {MAX_WRITTEN_BYTES} bytes")
    if written.format != FORMAT:
        raise _not_written(path, f"it has format {written.format}, and this version knows {FORMAT}")
    return written


def _not_written(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not what `preheat environment --json` prints: {why}.",
        remedy="Run that command on the other node, with the same version of preheat.",
    )


def would_hit(
    config: Config,
    environ: Mapping[str, str],
    layers: Sequence[Path] = (),
    *,
    against: WrittenEnvironments | None = None,
    name: str = "",
) -> tuple[Hit, ...]:
    """Whether each target would load; from the store, else from the first of ``layers`` that has it.

    ``against``: the environments of another node; the sources are compared with those here all the same.
    Not covered: what a worker's own code changes after its start, and code that it imported before an edit.
    """
    state = _notes(config, environ)
    answers: Mapping[str, ProbeAnswer | ProbeError] = (
        _of_this_node(config, state, environ)
        if against is None
        else {target.name: against.answer(target.name, name) for target in config.targets}
    )
    hits: dict[str, Hit] = {}
    for place in (config.store, *layers):
        left = tuple(
            one for one in config.targets if one.name not in hits or not hits[one.name].hit
        )
        if not left:
            break
        chosen = dataclasses.replace(config, targets=left, layers=())  # one place at a time
        for hit in _in_one(chosen, place, state, answers, environ):
            if hit.hit or hit.target not in hits:
                hits[hit.target] = hit
    found = tuple(hits[target.name] for target in config.targets)
    if not layers or all(one.hit for one in found):
        return found
    troubles = Layers(layers, signing_of(environ)).troubles()
    return tuple(
        one if one.hit else dataclasses.replace(one, reasons=(*one.reasons, *troubles))
        for one in found
    )


def _in_one(
    config: Config,
    place: Path,
    state: State,
    answers: Mapping[str, ProbeAnswer | ProbeError],
    environ: Mapping[str, str],
) -> tuple[Hit, ...]:
    # Signatures count as they do for a worker: as variables and known places say.
    store = DiskStore(place, signing=signing_of(environ))
    try:
        survey = Inventory(store, state, environ=environ).look(config, answers)
    except StoreError as error:
        verdict = Verdict.UNTRUSTED if isinstance(error, UntrustedStoreError) else Verdict.MISSING
        reasons = (Reason(kind="store_not_usable", detail=str(error)),)
        return tuple(
            Hit(
                target=one.name,
                environment="",
                hit=False,
                verdict=verdict,
                reasons=reasons,
                store=None,
            )
            for one in config.targets
        )
    # A remembered failure or a running build says nothing about the package that is there.
    facts = tuple(
        dataclasses.replace(one, failure=None, building=False) if one.environment else one
        for one in survey.facts
    )
    plan = make_plan(facts, time.time())
    return tuple(_hit(one, place) for one in plan.decisions)


def _hit(decision: Decision, place: Path) -> Hit:
    hit = decision.verdict is Verdict.FRESH
    return Hit(
        target=decision.target,
        environment=decision.environment,
        hit=hit,
        verdict=decision.verdict,
        reasons=() if hit else decision.reasons,
        store=str(place) if hit else None,
    )
