"""The build process: ``python -m preheat.build JOB.json``.

Imports the target's factory, runs every example eagerly and then compiled, and publishes the unproven
package to the job's staging store. One process a build; the daemon starts it and reads its events.
"""

from __future__ import annotations

import datetime
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from preheat.built import Built, Clock
from preheat.compiler_variables import cpp_compilers
from preheat.errors import (
    BuildError,
    EnvironmentDiffersError,
    PreheatError,
    RefusedError,
    TargetError,
)
from preheat.exercise import Outcome, classes_of, exercise, find_factory, make_spec
from preheat.job import BuiltEvent, Job
from preheat.manifest import environment_digest
from preheat.process import Events, recording_user_code, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.manifest import Environment
    from preheat.spec import Spec
    from preheat.torch_internals.capture import Capture

OUTCOMES_NAME = "outcomes.pt"
CLASSES_NAME = "classes.json"
# By the wall clock, as the times of files are.
_STARTED_AT = time.time()


def main(job: Job, events: Events) -> None:
    """Build one target. Raises ``PreheatError`` for everything that is the user's to mend."""
    began = datetime.datetime.now(datetime.UTC)
    clock = Clock(events)
    clock.phase("start")
    _need_compiler()
    from preheat.torch_internals.compiler import import_compiler

    import_compiler()
    from preheat.environment import capture, capture_settings
    from preheat.kinds.registry import module_of
    from preheat.recording.libraries import loaded_before_user_code, loaded_names

    environment = capture(job.device)
    _check_environment(job, environment)
    clock.phase("import")
    loaded_before = loaded_before_user_code()
    recorder = recording_user_code(job)
    with recorder:
        with recorder.watching_files(), recorder.watching_calls() as constructed:
            factory = find_factory(job.factory, job.target)
            spec = make_spec(factory, job.target)
        settings = capture_settings()
        clock.phase("eager")
        with recorder.watching_calls() as ran:
            eager = _run_eagerly(spec, job.target)
        loaded = loaded_names() - loaded_before
        # Examples may have changed the module in place: compile what the factory makes.
        del spec
        spec = make_spec(factory, job.target)
        built = _compile(job, spec, clock, eager)
        built.loaded = loaded | module_of(spec.backend)
        built.calls = (constructed, ran)
        clock.phase("package", _from_caches(built.kernels))
        manifest = built.manifest(job, environment, settings, recorder, clock, began)
    built.publish(job, manifest)
    events.send(BuiltEvent(manifest=manifest))


def _from_caches(kernels: Mapping[str, str]) -> str:
    """What the compiler found in its caches, in words; empty where it found nothing.

    A kernel was compiled before if its file is older than this process.
    """
    from preheat.torch_internals.counters import cache_answers

    answers = cache_answers()
    old = sum(Path(path).stat().st_mtime < _STARTED_AT for path in kernels.values())
    if kernels:
        answers["kernels"] = (old, len(kernels) - old)
    if not any(hits for hits, _ in answers.values()):
        return ""
    said = (f"{hits} of {hits + misses} {name}" for name, (hits, misses) in answers.items())
    return f"compiled before: {', '.join(said)}"


def _need_compiler() -> None:
    """Fail with words before torch fails with a stack trace."""
    import os

    candidates = cpp_compilers(os.environ)
    if not any(shutil.which(name) for name in candidates):
        raise BuildError(
            f"No C++ compiler was found (looked for {', '.join(candidates)}).",
            remedy="Install one (Debian: apt install g++), or set CXX.",
        )


def _check_environment(job: Job, environment: Environment) -> None:
    found = environment_digest(environment)
    if found != job.environment:
        raise EnvironmentDiffersError(
            f"The build process for {job.target!r} finds environment {found}, and "
            f"{job.environment} was asked for."
        )


def _run_eagerly(spec: Spec, target: str) -> list[_Eager]:
    """Run each example without compilation."""
    found = []
    for index, example in enumerate(spec.calls()):
        try:
            outcome = exercise(spec, spec.fn, example)
        except Exception as error:
            raise TargetError(
                f"Target {target!r}: example {index} fails without compilation: "
                f"{type(error).__name__}: {error}."
            ) from error
        found.append(_Eager(outcome.random, classes_of(outcome)))
    return found


class _Eager(NamedTuple):
    """Of one example without compilation: whether it draws random numbers, and classes of tensors."""

    random: bool
    classes: dict[str, str]


def _dynamo_form(capture: Capture) -> tuple[bytes | None, tuple[str, ...], dict[str, str]]:
    """The dynamo form's bytes and the kinds of code in it, or why there is none."""
    from preheat.torch_internals.payload import dump

    try:
        payload = capture.payload()
    except RefusedError as error:
        if not capture.graphs():
            raise
        return None, (), {"dynamo": error.message}
    return dump(payload), tuple(dict.fromkeys(one.kind for one in payload.backends.values())), {}


def _compile(job: Job, spec: Spec, clock: Clock, eager: list[_Eager]) -> Built:
    from preheat.torch_internals.identifiers import first_identifier
    from preheat.torch_internals.options import settled

    spec = settled(spec)
    clock.phase("trace")
    capture = _capture(spec, first_identifier(job.target, job.environment))
    outcomes: dict[int, Outcome] = {}
    classes: dict[int, dict[str, str]] = {}
    with capture.active():
        for index, example in enumerate(spec.calls()):
            clock.phase("trace", f"example {index + 1} of {len(spec.examples)}")
            try:
                outcome = exercise(spec, capture.compiled, example)
            except PreheatError:
                raise
            except Exception as error:
                raise BuildError(
                    f"Target {job.target!r}: example {index} fails when compiled, and runs without: "
                    f"{type(error).__name__}: {error}."[:4000]
                ) from error
            if eager[index].random:
                outcomes[index] = outcome
            given = eager[index].classes
            classes[index] = {
                where: name
                for where, name in classes_of(outcome).items()
                if given.get(where, name) != name
            }
        clock.phase("kernels")
        payload, code, without = _dynamo_form(capture)
        image = capture.image()
        if image.refusals:
            without["lean"] = "; ".join(image.refusals)
        if payload is None and image.refusals:
            raise RefusedError(f"{without['dynamo']} Nor is there a lean form: {without['lean']}.")
    if outcomes:
        _save_outcomes(job, outcomes)
    # torch.compile itself loses the class of some tensors with __torch_function__.
    (Path(job.staging).parent / CLASSES_NAME).write_bytes(msgspec.json.encode(classes))
    return Built(spec, payload, code, capture, image, without)


def _capture(spec: Spec, identifier: int) -> Capture:
    if spec.output == "aoti":
        from preheat.torch_internals.aoti_capture import LibraryCapture

        return LibraryCapture(spec, identifier)
    from preheat.torch_internals.capture import Capture

    return Capture(spec, identifier)


def _save_outcomes(job: Job, outcomes: dict[int, Outcome]) -> None:
    """Random programs are compared with the build's own results, not with eager's other numbers."""
    import torch

    path = Path(job.staging).parent / OUTCOMES_NAME
    torch.save({index: dict(outcome.tensors) for index, outcome in outcomes.items()}, path)


if __name__ == "__main__":
    run(main, sys.argv)
