"""The proof process: ``python -m preheat.verify JOB.json``.

A fresh interpreter loads the staged package through the worker's own ``load``, runs every example,
and accepts it only when nothing was compiled and the results agree with eager.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.build import CLASSES_NAME, OUTCOMES_NAME
from preheat.errors import MissError, ProofError
from preheat.exercise import (
    TOLERANCE,
    Outcome,
    compare,
    compare_shapes,
    exercise,
    find_factory,
    make_spec,
)
from preheat.job import Job, ProvenEvent
from preheat.manifest import FormProof, Proof
from preheat.process import Events, own_directories, recording_user_code, run
from preheat.recording.libraries import is_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preheat.loaded import LoadReport
    from preheat.spec import Spec
    from preheat.store import DiskStore


def main(job: Job, events: Events) -> None:
    """Prove one staged package, form by form: a package is accepted without the forms that are not.

    Raises ``ProofError`` when no form is accepted.
    """
    began = time.monotonic()
    events.phase("proof", "import")
    from preheat.store import DiskStore
    from preheat.store.signing import UNSIGNED

    recording_user_code(job).install()
    import torch  # noqa: F401 - what it imports is not the factory's

    before = frozenset(sys.modules)
    factory = find_factory(job.factory, job.target)
    libraries = tuple(name for name in _imported(job) if name not in before and is_library(name))
    # Nothing is signed yet: what is proven here was built by the process that asks.
    store = DiskStore(Path(job.staging), signing=UNSIGNED)
    package = store.read_package(job.target, job.environment)
    if package is None:
        raise ProofError(f"The build left no package of {job.target!r}.")
    kinds = [form.kind for form in package[1].forms if not job.forms or form.kind in job.forms]
    built = built_outcomes(Path(job.staging))
    spec = package[1].spec
    # Where gradients flow although none were asked for, the package computes them too.
    backward = spec.grad and not spec.backward and not built
    backward = backward and _has_backward_pass(_two(factory, job.target)[0])
    # The form without a compiler comes first: the other one imports it.
    proofs: list[FormProof] = []
    failures: dict[str, str] = {}
    modules: dict[str, tuple[str, ...]] = {}
    for kind in sorted(kinds, key=lambda kind: kind != "lean"):
        try:
            proofs.append(_prove_form(kind, job, factory, store, built, backward, events))
            modules[kind] = _imported(job)
        except ProofError as error:
            failures[kind] = error.message
    if not proofs:
        raise ProofError(" ".join(failures.values()))
    events.send(
        ProvenEvent(
            proof=Proof(
                forms=tuple(proofs),
                examples=package[1].spec.examples,
                against="compiled" if built else "eager",
                seconds=round(time.monotonic() - began, 3),
            ),
            without={kind: f"proof: {why}" for kind, why in failures.items()},
            modules=modules,
            libraries=libraries,
        )
    )


def _imported(job: Job) -> tuple[str, ...]:
    """All modules that were imported from a file, but for preheat's own; what was compiled has other names
    each time."""
    own = tuple(f"{directory}/" for directory in own_directories(job))
    files = {name: getattr(one, "__file__", None) or "" for name, one in list(sys.modules.items())}
    return tuple(
        name
        for name, file in files.items()
        if file.startswith("/") and not file.startswith(own) and not name.startswith("preheat.")
    )


def _prove_form(
    kind: str,
    job: Job,
    factory: Callable[[], Any],
    store: DiskStore,
    built: Mapping[int, Outcome],
    backward: bool,
    events: Events,
) -> FormProof:
    from preheat.worker import load

    wanted_spec, loaded_spec = _two(factory, job.target)
    if backward:
        wanted_spec, loaded_spec = map(_with_backward_pass, (wanted_spec, loaded_spec))
    events.phase("proof", f"load {kind}")
    before = compiler_modules()
    with warnings.catch_warnings():
        try:
            model = load(
                job.target,
                loaded_spec.fn,
                store=store,
                on_miss="error",
                device=job.device,
                form=kind,  # type: ignore[arg-type]
                unproven=True,
            )
        except MissError as error:
            raise ProofError(f"The {kind} form does not load: {error.message}") from error
    load_seconds = model.preheat.load_seconds
    if model.preheat.form != kind:
        raise ProofError(f"The {kind} form was not used: {model.preheat}.")
    graphs_before = _compiled_by_torch()
    count = len(loaded_spec.examples)
    actual = []
    for index in range(count):
        events.phase("proof", f"{kind} example {index + 1} of {count}")
        actual.append(_run_loaded(index, loaded_spec, model, kind))
    modules = len(compiler_modules() - before)
    report: LoadReport = model.preheat
    compiled = report.frames_compiled + _compiled_by_torch() - graphs_before
    if report.form != kind or report.misses or compiled:
        raise ProofError(
            f"The {kind} form loads, but {max(report.misses, compiled)} frames had to be compiled or "
            f"left the package: {report}."
        )
    tolerance = {**TOLERANCE, **job.tolerance}
    classes = other_classes(Path(job.staging))
    worst = max(
        _agree(index, wanted_spec, outcome, built, tolerance, kind, classes.get(index, {}))
        for index, outcome in enumerate(actual)
    )
    return FormProof(
        form=kind,
        frames_compiled=compiled,
        max_error=worst,
        load_seconds=round(load_seconds, 4),
        modules=modules,
    )


def compiler_modules() -> frozenset[str]:
    """The modules of the compiler that this process has imported."""
    return frozenset(
        name
        for name in sys.modules
        if name.startswith(_COMPILER) and (name + ".").startswith(tuple(f"{c}." for c in _COMPILER))
    )


_COMPILER = ("torch._dynamo", "torch._inductor", "sympy", "triton")


def _run_loaded(index: int, spec: Spec, model: Any, kind: str) -> Outcome:
    try:
        return exercise(spec, model, spec.calls()[index])
    except MissError as error:
        raise ProofError(
            f"Example {index} is not covered by the {kind} form: {error.message}"
        ) from error


def _agree(
    index: int,
    spec: Spec,
    actual: Outcome,
    built: Mapping[int, Outcome],
    tolerance: Mapping[str, tuple[float, float]],
    kind: str,
    classes: Mapping[str, str],
) -> float:
    what = f"example {index}, {kind} form"
    eager = exercise(spec, spec.fn, spec.calls()[index])
    if index in built:
        compare_shapes(eager, actual, what, classes)
        eager, what = built[index], f"{what} (against the build's own result)"
    return compare(eager, actual, tolerance, what, classes)


def _two(factory: Callable[[], Any], target: str) -> tuple[Spec, Spec]:
    """A spec for eager and one to load.

    Where the factory hands out one global module, eager gets a copy, so that changes in place count
    once. The one to load is made last: a factory may leave the modules behind that it made.
    """
    import torch

    wanted, loaded = make_spec(factory, target), make_spec(factory, target)
    if wanted.fn is loaded.fn and isinstance(wanted.fn, torch.nn.Module):
        wanted = dataclasses.replace(wanted, fn=copy.deepcopy(wanted.fn))
    return wanted, loaded


def _has_backward_pass(spec: Spec) -> bool:
    """Whether the examples can be differentiated; one with its own ``run`` does that by itself."""
    if spec.run is not None:
        return False
    spec = _with_backward_pass(spec)
    try:
        for index in range(len(spec.examples)):
            exercise(spec, spec.fn, spec.calls()[index])
    except Exception:
        return False
    return True


def _with_backward_pass(spec: Spec) -> Spec:
    return dataclasses.replace(spec, backward=True)


def built_outcomes(staging: Path) -> dict[int, Outcome]:
    """What the build computed for examples that draw random numbers, by example."""
    import torch

    path = staging.parent / OUTCOMES_NAME
    if not path.exists():
        return {}
    saved = torch.load(path, weights_only=True)
    return {index: Outcome(tuple(tensors.items()), (), True) for index, tensors in saved.items()}


def other_classes(staging: Path) -> dict[int, dict[str, str]]:
    """The classes of tensors to which ``torch.compile`` gives another class than eager, by example."""
    path = staging.parent / CLASSES_NAME
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[int, dict[str, str]])


def _compiled_by_torch() -> int:
    """Graphs that torch's own counters say were compiled in this process."""
    from preheat.torch_internals.counters import graphs_compiled

    return graphs_compiled()


if __name__ == "__main__":
    run(main, sys.argv)
