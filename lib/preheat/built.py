"""What a build has made: its objects in the staging store, and the manifest that describes them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.manifest import BuildRecord, Form, Manifest, ObjectRef, SpecRecord
from preheat.version import VERSION

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator

    from preheat.job import Job
    from preheat.manifest import Environment, Settings, Sources
    from preheat.process import Events
    from preheat.recording import Recorder
    from preheat.recording.calls import CallWatch
    from preheat.spec import Spec
    from preheat.store import DiskStore
    from preheat.torch_internals.capture import Capture
    from preheat.torch_internals.image_writer import WrittenImage


class Clock:
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


class Built:
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
        clock: Clock,
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


def _stored(store: DiskStore, name: str, content: bytes | Path) -> ObjectRef:
    sha256, size = store.put_object(content)
    return ObjectRef(name=name, sha256=sha256, size=size)


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
