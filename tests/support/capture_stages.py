"""What forked processes do for one case: build it, prove it, load and call it as a worker."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.errors import PreheatError
from preheat.job import BuiltEvent, FailedEvent, Job, ProvenEvent
from preheat.policy import PreheatWarning
from preheat.process import Events, failure
from preheat.store import DiskStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preheat.exercise import Outcome
    from preheat.job import Event
    from preheat.spec import Spec

COMPILER = ("torch._dynamo", "torch._inductor", "sympy", "triton")


class Collected(Events):
    """Keeps the last event that is an answer."""

    def __init__(self) -> None:
        self.answer: BuiltEvent | ProvenEvent | FailedEvent | None = None

    def send(self, event: Event) -> None:
        """Keep it, unless it says only that a phase begins."""
        if isinstance(event, (BuiltEvent, ProvenEvent, FailedEvent)):
            self.answer = event


def environment(_: None) -> str:
    """The digest of the environment of forked processes."""
    from preheat.environment import capture, environment_digest

    return environment_digest(capture("cpu"))


def build(job: dict[str, Any]) -> dict[str, Any]:
    """What the build process does for a job: the seconds that it took, or why it failed."""
    from preheat import build as stage

    began = time.monotonic()
    events = _run(stage.main, job)
    return {"seconds": time.monotonic() - began, "failed": _failed(events)}


def prove(job: dict[str, Any]) -> dict[str, Any]:
    """What the proof process does for a job, of the forms that it names: the proof, or why there is none."""
    from preheat import verify as stage

    events = _run(stage.main, job)
    proven = isinstance(events.answer, ProvenEvent)
    return {
        "failed": _failed(events),
        "proven": msgspec.to_builtins(events.answer) if proven else None,
    }


def _run(main: Callable[[Job, Events], None], job: dict[str, Any]) -> Collected:
    events = Collected()
    try:
        main(msgspec.convert(job, Job), events)
    except PreheatError as error:
        traceback.print_exc()
        events.send(failure(error))
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        events.send(FailedEvent(kind="unexpected", message=text))
    return events


def _failed(events: Collected) -> str:
    """Why there is no package, or nothing."""
    if isinstance(events.answer, FailedEvent):
        return f"{events.answer.kind}: {events.answer.message}"
    return ""


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Load every target of a case, call it, and compare with eager: what a worker sees."""
    from preheat.exercise import make_spec
    from preheat.torch_internals.counters import graphs_compiled

    sys.path.insert(0, request["project"])
    module = importlib.import_module(request["module"])
    use = getattr(module, f"use_{request['case']}", None)
    case = _Case(request, {name: getattr(module, name) for name in request["targets"]}, make_spec)
    before = frozenset(sys.modules)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PreheatWarning)
        actual = case.used(use, case.load) if use else case.called(case.load)
    added = sorted(name for name in set(sys.modules) - before if name.startswith(COMPILER))
    graphs = graphs_compiled()
    return {
        **case.summary(),
        "graphs": graphs,
        "said": [str(one.message) for one in said if one.category is PreheatWarning],
        "added": added,
        "different": case.difference(use, actual),
    }


class _Case:
    """The targets of a case in one process."""

    def __init__(
        self, request: dict[str, Any], factories: dict[str, Any], make_spec: Callable[..., Spec]
    ) -> None:
        self._request = request
        self._make_spec = make_spec
        self._factories = factories
        self._specs = self._made()
        self._loaded: list[Any] = []

    def _made(self) -> dict[str, Spec]:
        return {name: self._make_spec(made, name) for name, made in self._factories.items()}

    def load(self, target: str, fn: Any) -> Any:
        import preheat

        loaded = preheat.load(target, fn, store=self._request["store"])
        self._loaded.append(loaded)
        return loaded

    def called(self, load: Callable[[str, Any], Any], *, eager: bool = False) -> list[Outcome]:
        """Every example of every target; all targets are loaded first."""
        from preheat.exercise import exercise

        # Made only now, so that the loaded ones found what a first use finds.
        specs = self._made() if eager else self._specs
        programs = {name: load(name, spec.fn) for name, spec in specs.items()}
        outcomes = []
        for name, spec in specs.items():
            built = self._built(name) if eager else {}
            for index, example in enumerate(spec.calls()):
                outcome = built.get(index) or exercise(spec, programs[name], example)
                outcomes.append(outcome)
        return outcomes

    def used(self, use: Any, load: Callable[[str, Any], Any]) -> list[Outcome]:
        """The larger program that uses the targets."""
        from preheat import Spec
        from preheat.exercise import exercise

        around = Spec(lambda: use(load), examples=[()], grad=False)
        return [exercise(around, around.fn, around.calls()[0])]

    def difference(self, use: Any, actual: list[Outcome]) -> str:
        """How the worker's outcomes differ from eager's, or from the build's where they are random."""
        from preheat.errors import ProofError
        from preheat.exercise import TOLERANCE, compare

        wanted = self.used(use, _itself) if use else self.called(_itself, eager=True)
        try:
            for index, (expected, found) in enumerate(zip(wanted, actual, strict=True)):
                compare(expected, found, TOLERANCE, f"call {index}")
        except ProofError as error:
            return error.message
        return ""

    def _built(self, target: str) -> dict[int, Outcome]:
        from preheat.verify import built_outcomes

        return built_outcomes(Path(self._request["staging"][target]))

    def _without(self, report: Any) -> Iterator[str]:
        """Why the package has no lean form, or why it could not be loaded."""
        if report.form == "dynamo":
            manifest = DiskStore(self._request["store"]).read_manifest(report.manifest)
            yield from manifest.without.values()
            yield from map(str, report.reasons)

    def summary(self) -> dict[str, Any]:
        """What the loads reported, taken together."""
        reports = [loaded.preheat for loaded in self._loaded]
        return {
            "forms": sorted({report.form for report in reports}),
            "reasons": [str(reason) for report in reports for reason in report.reasons],
            "without": sorted({why for report in reports for why in self._without(report)}),
            "misses": sum(report.misses for report in reports),
            "frames_compiled": sum(report.frames_compiled for report in reports),
            "load_seconds": sum(report.load_seconds for report in reports),
        }


def _itself(_target: str, fn: Any) -> Any:
    return fn
