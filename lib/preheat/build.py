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
from preheat.manifest import (
    BuildRecord,
    Form,
    Manifest,
    ObjectRef,
    SpecRecord,
    environment_digest,
)
from preheat.process import Events, recording_user_code, run
from preheat.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preheat.manifest import Environment, Settings, Sources
    from preheat.recording import Recorder
    from preheat.recording.calls import CallWatch
    from preheat.spec import Spec
    from preheat.store import DiskStore
    from preheat.torch_internals.capture import Capture
    from preheat.torch_internals.image_writer import WrittenImage

OUTCOMES_NAME = "outcomes.pt"
CLASSES_NAME = "classes.json"
# By the wall clock, as the times of files are.
_STARTED_AT = time.time()


class _Clock:
    """Seconds by phase."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._phase = "start"
        self._since = time.monotonic()
        self.seconds: dict[str, float] = {}

    def phase(self, name: str, detail: str = "") -> None:
        self.stop()
        self._phase = name
        self._events.phase(name, detail)

    def stop(self) -> None:
        """Count the time of the phase so far."""
        now = time.monotonic()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._since = now


def main(job: Job, events: Events) -> None:
    """Build one target. Raises ``PreheatError`` for everything that is the user's to mend."""
    began = datetime.datetime.now(datetime.UTC)
    clock = _Clock(events)
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


class _Built:
    """What compiling one target gave."""

    def __init__(
        self,
        spec: Spec,
        payload: bytes | None,
        code: tuple[str, ...],
        capture: Capture,
        image: WrittenImage,
        without: dict[str, str],
    ) -> None:
        self.spec = spec
        self.payload = payload
        self.code = code
        self.kernels = capture.kernels()
        self.image = image
        self.without = without
        self.traced = capture.traced()
        self.graphs = capture.graphs()
        self.loaded: frozenset[str] = frozenset()
        self.calls: tuple[CallWatch, ...] = ()

    def manifest(
        self,
        job: Job,
        environment: Environment,
        settings: Settings,
        recorder: Recorder,
        clock: _Clock,
        began: datetime.datetime,
    ) -> Manifest:
        """Store the objects in the staging store and describe them."""
        from preheat.live import record_live
        from preheat.recording.texts import keep_texts
        from preheat.store import DiskStore

        store = DiskStore(Path(job.staging), create=True)
        forms = tuple(self._forms(store))
        sources = keep_texts(
            self._sources(job, recorder), recorder.executed_texts(), store.put_object
        )
        files = {str(path): module for path, module in recorder.executed_files().items()}
        clock.stop()
        return Manifest(
            target=job.target,
            factory=job.factory,
            environment=environment,
            settings=settings,
            spec=_spec_record(self.spec),
            sources=sources,
            live=record_live(self.traced, files),
            forms=forms,
            without=self.without,
            build=BuildRecord(
                preheat=VERSION,
                started_at=began.isoformat(timespec="seconds"),
                seconds={name: round(value, 3) for name, value in clock.seconds.items()},
                graphs=self.graphs,
                kernels=len(self.kernels),
            ),
        )

    def _forms(self, store: DiskStore) -> Iterator[Form]:
        """Each form with its objects; kernels are shared between forms."""
        from preheat.image import format as image_format
        from preheat.torch_internals import dynamo_form

        kernels = {
            dynamo_form.KERNEL_PREFIX + digest: _stored(
                store, dynamo_form.KERNEL_PREFIX + digest, Path(path)
            )
            for digest, path in sorted(self.kernels.items())
        }
        if self.payload is not None:
            payload = _stored(store, dynamo_form.PAYLOAD_NAME, self.payload)
            yield Form(
                kind=dynamo_form.KIND,
                format=dynamo_form.FORMAT,
                objects=(payload, *kernels.values()),
                code=self.code,
            )
        if not self.image.refusals:
            parts = [_stored(store, name, data) for name, data in self.image.objects.items()]
            used = [kernels[name] for name in self.image.kernels]
            yield Form(
                kind=image_format.KIND,
                format=image_format.FORMAT,
                objects=(*parts, *used),
                code=self.image.code,
            )

    def _sources(self, job: Job, recorder: Recorder) -> Sources:
        """The snapshot, with the libraries and the pieces of user modules that count."""
        from preheat.recording.calls import roots_of
        from preheat.recording.inherited import inherited_names
        from preheat.recording.libraries import record_libraries
        from preheat.sources.closure import find_closure

        executed = recorder.executed_sources()
        files = {str(path): module for module, (path, _) in executed.items()}
        module, _, factory = job.factory.partition(":")
        closure = find_closure(
            {name: (path.name == "__init__.py", text) for name, (path, text) in executed.items()},
            [
                (module, factory),
                *(root for watch in self.calls for root in watch.names(files)),
                *roots_of(self.traced, files),
            ],
            inherited=inherited_names(executed),
        )
        recorder.variables(closure.variables)
        sources = recorder.sources()
        user_names = frozenset(m.module.partition(".")[0] for m in sources.modules)
        traced = dict.fromkeys(code.co_filename for code in self.traced)
        libraries, library_files = record_libraries(self.loaded, traced, user_names)
        return msgspec.structs.replace(
            sources, libraries=libraries, library_files=library_files, closure=closure
        )

    def publish(self, job: Job, manifest: Manifest) -> None:
        """Point the staging store's ref to the manifest."""
        from preheat.store import DiskStore

        DiskStore(Path(job.staging), create=True).publish(manifest)


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


def _stored(store: DiskStore, name: str, content: bytes | Path) -> ObjectRef:
    sha256, size = store.put_object(content)
    return ObjectRef(name=name, sha256=sha256, size=size)


def _compile(job: Job, spec: Spec, clock: _Clock, eager: list[_Eager]) -> _Built:
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
    return _Built(spec, payload, code, capture, image, without)


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


def _spec_record(spec: Spec) -> SpecRecord:
    options = {
        key: value
        for key, value in (spec.options or {}).items()
        if isinstance(value, (bool, int, float, str, type(None)))
    }
    return SpecRecord(
        grad=spec.grad_enabled,
        backward=spec.backward,
        mode=spec.mode,
        dynamic=spec.dynamic,
        fullgraph=spec.fullgraph,
        backend=spec.backend,
        options=options,
        examples=len(spec.examples),
        output=spec.output,
    )


if __name__ == "__main__":
    run(main, sys.argv)
