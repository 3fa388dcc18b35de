"""The proof process: ``python -m preheat.verify JOB.json``.

A fresh interpreter loads the staged package through the worker's own ``load``, runs every example,
and accepts it only when nothing was compiled and the results agree with eager.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.build import OUTCOMES_NAME
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
from preheat.manifest import Proof
from preheat.process import Events, recording_user_code, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.loaded import LoadReport
    from preheat.spec import Spec


def main(job: Job, events: Events) -> None:
    """Prove one staged package. Raises ``ProofError`` when it is not accepted."""
    began = time.monotonic()
    events.phase("proof", "import")
    import torch

    from preheat.store import DiskStore
    from preheat.worker import load

    recording_user_code(job).install()
    factory = find_factory(job.factory, job.target)
    wanted_spec = make_spec(factory, job.target)
    loaded_spec = make_spec(factory, job.target)
    if wanted_spec.fn is loaded_spec.fn and isinstance(wanted_spec.fn, torch.nn.Module):
        wanted_spec = _copied(wanted_spec)
    events.phase("proof", "load")
    store = DiskStore(Path(job.staging))
    with warnings.catch_warnings():
        try:
            model = load(
                job.target,
                loaded_spec.fn,
                store=store,
                on_miss="error",
                device=job.device,
                unproven=True,
            )
        except MissError as error:
            raise ProofError(f"The package does not load: {error.message}") from error
    compiled = _compiled_by_torch()
    load_seconds = model.preheat.load_seconds
    if model.preheat.form not in ("dynamo", "lean"):
        raise ProofError(f"The package was not used: {model.preheat}.")
    tolerance = {**TOLERANCE, **job.tolerance}
    built = built_outcomes(Path(job.staging))
    worst = 0.0
    for index in range(len(loaded_spec.examples)):
        events.phase("proof", f"example {index + 1} of {len(loaded_spec.examples)}")
        difference, graphs = _prove(index, wanted_spec, loaded_spec, model, built, tolerance)
        worst, compiled = max(worst, difference), compiled + graphs
    report: LoadReport = model.preheat
    compiled += report.frames_compiled
    if report.form not in ("dynamo", "lean") or report.misses or compiled:
        raise ProofError(
            f"The package loads, but {max(report.misses, compiled)} frames had to be compiled or left "
            f"the package: {report}."
        )
    events.send(
        ProvenEvent(
            proof=Proof(
                frames_compiled=compiled,
                max_error=worst,
                examples=len(loaded_spec.examples),
                against="compiled" if built else "eager",
                seconds=round(time.monotonic() - began, 3),
                load_seconds=round(load_seconds, 4),
            )
        )
    )


def _prove(
    index: int,
    wanted_spec: Spec,
    loaded_spec: Spec,
    model: object,
    built: Mapping[int, Outcome],
    tolerance: Mapping[str, tuple[float, float]],
) -> tuple[float, int]:
    """The largest difference, and how many graphs torch compiled for the loaded program.

    Those of the eager run do not count: some operators compile themselves wherever they are called.
    """
    what = f"example {index}"
    example, loaded_example = wanted_spec.calls()[index], loaded_spec.calls()[index]
    eager = exercise(wanted_spec, wanted_spec.fn, example)
    before = _compiled_by_torch()
    try:
        actual = exercise(loaded_spec, model, loaded_example)  # type: ignore[arg-type]
    except MissError as error:
        raise ProofError(f"{what} is not covered by the package: {error.message}") from error
    compiled = _compiled_by_torch() - before
    if index in built:
        compare_shapes(eager, actual, what)
        eager, what = built[index], f"{what} (against the build's own result)"
    return compare(eager, actual, tolerance, what), compiled


def _copied(spec: Spec) -> Spec:
    """The factory hands out one global module: eager gets a copy, so that changes in place count once."""
    import copy
    import dataclasses

    return dataclasses.replace(spec, fn=copy.deepcopy(spec.fn))


def built_outcomes(staging: Path) -> dict[int, Outcome]:
    """What the build computed for examples that draw random numbers, by example."""
    import torch

    path = staging.parent / OUTCOMES_NAME
    if not path.exists():
        return {}
    saved = torch.load(path, weights_only=True)
    return {index: Outcome(tuple(tensors.items()), (), True) for index, tensors in saved.items()}


def _compiled_by_torch() -> int:
    """Graphs that torch's own counters say were compiled in this process."""
    from preheat.torch_internals.counters import graphs_compiled

    return graphs_compiled()


if __name__ == "__main__":
    run(main, sys.argv)
