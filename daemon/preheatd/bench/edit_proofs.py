"""Really fresh proofs of one form alone, which the daemon never makes: it proves all forms at once."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.job import Job, ProvenEvent, decode_event
from preheat.store import DiskStore, copy_package
from preheatd.bench.edit_project import PACKAGE, TARGET
from preheatd.bench.processes import FailedError, call, environment_in
from preheatd.caches import CompilerCaches
from preheatd.surroundings import search_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class FormProofs:
    """Proves the published package of a project again, form by form."""

    def __init__(self, project: Path, environment: Mapping[str, str]) -> None:
        self._project = project
        self._work = project / "proofs"
        self._variables = environment_in(project, environment)
        self.seconds: dict[str, list[float]] = {}
        store = DiskStore(project / "store")
        (ref,) = store.refs(TARGET)
        manifest = store.read_manifest(ref.manifest)
        staged = DiskStore(self._work / "staging", create=True)
        copy_package(store, staged, manifest)
        staged.publish(manifest)
        self._forms = tuple(form.kind for form in manifest.forms)
        self._environment = ref.environment

    def prove(self) -> None:
        """Prove each form once, in a process of its own. Raises ``FailedError``."""
        for form in self._forms:
            self.seconds.setdefault(form, []).append(self._prove(form))

    def median(self, form: str) -> float | None:
        """The median time of a proof of this form; None where there was none."""
        return statistics.median(self.seconds[form]) if self.seconds.get(form) else None

    def _prove(self, form: str) -> float:
        caches = CompilerCaches(self._work / "caches")
        shutil.rmtree(caches.base, ignore_errors=True)
        job = Job(
            target=TARGET,
            factory=f"{PACKAGE}.warm:{TARGET}",
            project=str(self._project),
            staging=str(self._work / "staging"),
            environment=self._environment,
            device="cpu",
            search_path=search_path(self._variables, self._project, self._project),
            forms=(form,),
        )
        file = self._work / "proof.json"
        file.write_bytes(msgspec.json.encode(job))
        variables = {**self._variables, **caches.prepare().variables()}
        began = time.monotonic()
        output = call((sys.executable, "-m", "preheat.verify", str(file)), self._project, variables)
        seconds = time.monotonic() - began
        if not any(isinstance(decode_event(line), ProvenEvent) for line in output.splitlines()):
            raise FailedError(f"the {form} form was not proven")
        return seconds
