"""What ``preheat bench edit`` measured, as frozen data, and what follows from it: medians, ratios, aims.

*F* stands for what an edit costs without a zygote: the build process and the proof process, both really
fresh, with warm compiler caches. It is measured for each program and each kind of edit.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from preheatd.bench.figures import Machine, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROGRAMS = {
    "mlp": "two linear layers",
    "bert": "BERT-like: embeddings, 2 layers, d=128",
    "blocks": "12 equal transformer blocks, d=256",
    "per-block": "the same 12 blocks, of which torch compiles one for all",
}
EDITS = {
    "constant": "a constant of the helper: the graph changes",
    "code": "code of the helper: the graph stays the same",
}
WAYS = {"fresh": "fresh processes", "forked": "forked from a zygote"}

# By program: the most that an edit may cost, as a part of F.
_MOST_OF_F = {
    "mlp": {"constant": 1 / 4, "code": 1 / 8},
    "bert": {"constant": 1 / 2.3, "code": 1 / 3.5},
    "blocks": {"constant": 0.7, "code": 1 / 2.5},
    "per-block": {"constant": 1 / 3},
}
_MOST_BY_THE_DAEMON = 0.03
_MOST_OF_A_FRESH_PROOF = 1 / 4
_MOST_OF_A_DYNAMO_PROOF = 0.5
_MOST_ZYGOTE_MB = 450.0


class EditSample(msgspec.Struct, frozen=True, kw_only=True):
    """One edit.

    ``seconds``: from the writing of the file until the daemon says that the package is published.
    ``build_seconds`` and ``proof_seconds``: how much of that the processes of both stages ran.
    ``phases``: what the build process says of itself. ``forked``: the processes were.
    """

    seconds: float
    build_seconds: float
    proof_seconds: float
    phases: dict[str, float]
    forked: bool

    @property
    def own_seconds(self) -> float:
        """The daemon's own part: everything but build and proof."""
        return self.seconds - self.build_seconds - self.proof_seconds

    @property
    def process_seconds(self) -> float:
        """Build and proof together."""
        return self.build_seconds + self.proof_seconds


class EditFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of edit in one way, over all rounds; ``fastest`` and ``slowest`` are of ``seconds``."""

    edit: str
    way: str
    rounds: int
    median: EditSample
    own_seconds: float
    fastest: float
    slowest: float


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """One program. ``failure`` says why it has no figures.

    ``lean_proof_seconds`` and ``dynamo_proof_seconds``: the median of a really fresh proof of this form
    alone, null where the package lacks it. ``zygote_bytes``: the memory of the zygote's two processes.
    """

    program: str
    edits: tuple[EditFigures, ...] = ()
    lean_proof_seconds: float | None = None
    dynamo_proof_seconds: float | None = None
    zygote_bytes: int | None = None
    failure: str = ""

    def of(self, edit: str, way: str) -> EditFigures | None:
        """The figures of one kind of edit in one way."""
        return next((one for one in self.edits if (one.edit, one.way) == (edit, way)), None)

    def fresh_seconds(self, edit: str) -> float | None:
        """F of this kind of edit."""
        fresh = self.of(edit, "fresh")
        return fresh.median.process_seconds if fresh else None


class EditResults(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one command measured."""

    command: str
    date: str
    rounds: int
    machine: Machine
    programs: tuple[ProgramResult, ...]

    def of(self, program: str) -> ProgramResult | None:
        """The result of a program, when it was measured."""
        return next((one for one in self.programs if one.program == program), None)


def summarize(edit: str, way: str, samples: Iterable[EditSample]) -> EditFigures:
    """The median of each number over the rounds, of which there is one at least."""
    samples = tuple(samples)
    seconds = [one.seconds for one in samples]
    names = dict.fromkeys(name for one in samples for name in one.phases)
    median = EditSample(
        seconds=statistics.median(seconds),
        build_seconds=statistics.median(one.build_seconds for one in samples),
        proof_seconds=statistics.median(one.proof_seconds for one in samples),
        phases={
            name: statistics.median(one.phases.get(name, 0.0) for one in samples) for name in names
        },
        forked=all(one.forked for one in samples),
    )
    return EditFigures(
        edit=edit,
        way=way,
        rounds=len(samples),
        median=median,
        own_seconds=statistics.median(one.own_seconds for one in samples),
        fastest=min(seconds),
        slowest=max(seconds),
    )


def of_fresh(result: ProgramResult, figures: EditFigures) -> float | None:
    """The time from edit to package, as a part of F."""
    return _ratio(figures.median.seconds, result.fresh_seconds(figures.edit))


def by_daemon(result: ProgramResult, figures: EditFigures) -> float | None:
    """The daemon's own part, as a part of F."""
    return _ratio(figures.own_seconds, result.fresh_seconds(figures.edit))


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def aims(results: EditResults) -> tuple[Target, ...]:
    """The aims of the project that were measured; all of them are upper limits."""
    found = [aim for result in results.programs for aim in _aims_of(result)]
    whole, parts = results.of("blocks"), results.of("per-block")
    if whole and parts and (forked := parts.of("constant", "forked")):
        seconds, limit = forked.median.seconds, _MOST_OF_F["per-block"]["constant"]
        value = _ratio(seconds, whole.fresh_seconds("constant"))
        found += _aim("per-block, constant: of the F of `blocks`", value, limit)
    sizes = [one.zygote_bytes for one in results.programs if one.zygote_bytes]
    if sizes:
        found += _aim("zygote: MB of both processes", max(sizes) / 1e6, _MOST_ZYGOTE_MB)
    return tuple(found)


def _aims_of(result: ProgramResult) -> Iterator[Target]:
    for edit in EDITS:
        fresh, forked = result.of(edit, "fresh"), result.of(edit, "forked")
        if fresh is None or forked is None:
            continue
        name = f"{result.program}, {edit}"
        if limit := _MOST_OF_F[result.program].get(edit):
            yield from _aim(f"{name}: of F", of_fresh(result, forked), limit)
        value = by_daemon(result, forked)
        yield from _aim(f"{name}: the daemon's own part of F", value, _MOST_BY_THE_DAEMON)
        proof = _ratio(forked.median.proof_seconds, fresh.median.proof_seconds)
        yield from _aim(f"{name}: forked proof of a fresh one", proof, _MOST_OF_A_FRESH_PROOF)
    forms = _ratio(result.lean_proof_seconds, result.dynamo_proof_seconds)
    what = f"{result.program}: proof of the lean form of that of the dynamo form"
    yield from _aim(what, forms, _MOST_OF_A_DYNAMO_PROOF)


def _aim(name: str, value: float | None, limit: float) -> Iterator[Target]:
    if value is not None:
        yield Target(name=name, value=value, limit=limit, at_least=False)


def problems(results: EditResults) -> tuple[str, ...]:
    """What is wrong: a program without figures, or processes that were not forked."""
    found = [f"{one.program}: {one.failure}" for one in results.programs if one.failure]
    for result in results.programs:
        for one in result.edits:
            if one.median.forked != (one.way == "forked"):
                found.append(f"{result.program}, {one.edit}, {one.way}: not all builds were")
    return tuple(found)
