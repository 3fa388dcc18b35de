"""Build every base for real, edit it in place, and load the package in a process that sees the edit.

``load_all`` starts ``python -m conformance.loaded_edits JOB.json``. That process imports torch and its
compiler and never computes anything; each build, proof and worker is forked from it, so that it costs
what it does and not what its imports cost. Builds and proofs are those of ``preheat.build`` and
``preheat.verify``; workers call ``preheat.load`` as anybody does.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.edited_worker import TARGET, WARM, Loaded, work
from conformance.forked import (
    TESTS,
    cache_variables,
    ended,
    forget_caches,
    fork,
    import_what_compiling_imports,
    start_anew,
)
from preheat.job import BuiltEvent, FailedEvent, Job, ProvenEvent, decode_event
from preheat.sources.check import check
from preheat.sources.locate import project_locator
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from preheat.manifest import Manifest

BUILD_LIMIT_SECONDS = 300
WORKER_LIMIT_SECONDS = 90
THREADS = 2  # not 1, so that a worker with one thread is another one on every machine
AT_ONCE = 2

_FACTORY = """\
import preheat
import {module}


{run}def program():
    fn, args = {module}.{entry}()
    backward = any(arg.requires_grad for arg in args)
    return preheat.Spec(fn, examples=[args], backward=backward{options})
"""
_RUN = """\
def run(compiled, *args):
    return {module}.post(compiled, args, compiled(*args))


"""


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """One edit: what its text alone decides, and what a worker did."""

    decided: tuple[Reason, ...]
    loaded: Loaded


class Based(msgspec.Struct, frozen=True, kw_only=True):
    """One base: why it was not built, or how the unedited program and each edit were loaded."""

    refused: str = ""
    unedited: Edited | None = None
    edits: tuple[Edited, ...] = ()
    seconds: dict[str, float] = {}


def load_all(
    bases: list[dict[str, Any]], directory: Path, caches: Path | None = None
) -> list[Based]:
    """Build each base and load each of its edits. ``caches``: of the compiler, to be shared."""
    job = directory / "bases.json"
    job.write_text(json.dumps({"directory": str(directory), "bases": bases}))
    shared = directory / "caches" if caches is None else caches
    shared.mkdir(parents=True, exist_ok=True)
    own_path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.run(
        [sys.executable, "-m", "conformance.loaded_edits", str(job)],
        cwd=TESTS,
        env={
            **os.environ,
            **cache_variables(shared),
            "PYTHONPATH": os.pathsep.join(own_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": str(THREADS),
            "OPENBLAS_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        check=True,
    )
    return [
        msgspec.json.decode((_place(directory, index) / "answer.json").read_bytes(), type=Based)
        for index in range(len(bases))
    ]


def _place(directory: Path, index: int) -> Path:
    return directory / f"built{index}"


def main(job: Path) -> None:
    """Serve all bases, some at a time, those with most edits first."""
    from preheat.torch_internals.compiler import import_compiler

    import_compiler()
    import preheat.build
    import preheat.verify
    import preheat.worker  # noqa: F401

    import_what_compiling_imports(job.with_suffix(".modules"))
    asked = json.loads(job.read_text())
    bases, directory = asked["bases"], Path(asked["directory"])
    # Children would otherwise write to the pages that they share.
    gc.collect()
    gc.freeze()
    running = 0
    for index in sorted(range(len(bases)), key=lambda index: -len(bases[index]["edits"])):
        if running == AT_ONCE:
            _wait_for_one()
            running -= 1
        fork(functools.partial(serve, bases[index], _place(directory, index)))
        running += 1
    for _ in range(running):
        _wait_for_one()


def _wait_for_one() -> None:
    _, status = os.wait()
    if status:
        raise SystemExit(f"a base's process ended with {os.waitstatus_to_exitcode(status)}")


def serve(base: dict[str, Any], place: Path) -> None:
    """Everything about one base; computes nothing itself."""
    began = time.monotonic()
    place.mkdir()
    write_program(place / "project", base, {})
    manifest, refused = build(base, place)
    built = time.monotonic()
    if manifest is None:
        answer = Based(refused=refused, seconds={"build": built - began})
    else:
        unedited, *edits = [
            load_edited(base, edit, manifest, place) for edit in ({}, *base["edits"])
        ]
        seconds = {"build": built - began, "load": time.monotonic() - built}
        answer = Based(unedited=unedited, edits=tuple(edits), seconds=seconds)
    (place / "answer.json").write_bytes(msgspec.json.encode(answer))


def write_program(project: Path, base: Mapping[str, Any], edit: Mapping[str, Any]) -> None:
    """The program as it is after an edit, and nothing else, with the factory of its target."""
    shutil.rmtree(project, ignore_errors=True)
    files = {**base["files"], **edit.get("write", {}), f"{WARM}.py": factory_text(base)}
    for name, text in files.items():
        if name not in edit.get("delete", ()):
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def factory_text(base: Mapping[str, Any]) -> str:
    """The module that declares a base's target, as a person would write it."""
    module = base["entry_module"]
    text = base["files"][f"{module}.py"]
    post = "\ndef post(" in text
    options = ", run=run" if post else ""
    options += f", **{module}.KW" if "\nKW = " in text else ""
    run = _RUN.format(module=module) if post else ""
    return _FACTORY.format(module=module, entry=base["entry"], run=run, options=options)


def build(base: Mapping[str, Any], place: Path) -> tuple[Manifest | None, str]:
    """Build, prove and publish. The manifest, or why there is none."""
    import preheat.build
    import preheat.verify
    from preheat.environment import capture
    from preheat.manifest import environment_digest
    from preheat.store import DiskStore, copy_package

    job = Job(
        target=TARGET,
        factory=f"{WARM}:program",
        project=str(place / "project"),
        staging=str(place / "work" / "staging"),
        environment=environment_digest(capture("cpu")),
        device="cpu",
    )
    (place / "work").mkdir()
    (place / "work" / "job.json").write_bytes(msgspec.json.encode(job))
    found: dict[type, Any] = {}
    for stage in (preheat.build, preheat.verify):
        status = ended(functools.partial(_stage, stage, base, place))
        lines = (place / f"{stage.__name__}.events").read_bytes().splitlines()
        found |= {type(event): event for event in map(decode_event, lines)}
        if FailedEvent in found:
            return None, f"{found[FailedEvent].kind}: {found[FailedEvent].message}"
        if status:
            return None, f"crash: {stage.__name__} ended with {status}"
    proven: ProvenEvent = found[ProvenEvent]
    manifest: Manifest = found[BuiltEvent].manifest.proven(proven.proof, proven.without)
    store = DiskStore(place / "store", create=True)
    copy_package(DiskStore(Path(job.staging)), store, manifest)
    store.publish(manifest)
    return manifest, ""


def _stage(stage: ModuleType, base: Mapping[str, Any], place: Path) -> None:
    """A build or proof process."""
    from preheat.process import run

    events, log = (place / f"{stage.__name__}.{kind}" for kind in ("events", "log"))
    start_anew(events, log, base.get("env") or {}, BUILD_LIMIT_SECONDS)
    if stage.__name__ == "preheat.verify":
        forget_caches(place / "work" / "empty")
    run(stage.main, [stage.__name__, str(place / "work" / "job.json")])


def load_edited(
    base: Mapping[str, Any], edit: Mapping[str, Any], manifest: Manifest, place: Path
) -> Edited:
    """Make the edit, decide it from its text, and let a worker load the package."""
    project, answer, log = place / "project", place / "loaded.json", place / "worker.log"
    write_program(project, base, edit)
    variables = {**(base.get("env") or {}), **(edit.get("env") or {})}
    decided = check(
        manifest.sources,
        project_locator(project),
        project=project,
        environ={**os.environ, **variables},
    )

    def worker() -> None:
        start_anew(place / "worker.out", log, variables, WORKER_LIMIT_SECONDS)
        forget_caches(place / "empty")
        answer.write_bytes(msgspec.json.encode(work(base, edit, place)))

    answer.unlink(missing_ok=True)
    # A worker that starts in the very moment of an edit cannot know which text it will import.
    time.sleep(0.05)
    status = ended(worker)
    if status:
        said = log.read_text(errors="replace").strip()[-500:]
        return Edited(decided=decided, loaded=Loaded(crash=f"ended with {status}: {said}"))
    return Edited(decided=decided, loaded=msgspec.json.decode(answer.read_bytes(), type=Loaded))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
