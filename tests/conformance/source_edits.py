"""The probing edits of ``source_edits.json``, and what their programs depend on without a compiler.

Each base is imported and called once, eagerly, in a process of its own that is forked from one that has
imported torch; what ran there stands in for what a compiler would have traced: ``conformance.mutations``
decides many small edits so. ``conformance.freshness_table`` makes the probing edits with real packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from preheat.manifest import Sources

DATA = Path(__file__).with_suffix(".json")

RECORD = """
import json, os, sys, traceback
from pathlib import Path
import msgspec
import torch
import torch._dynamo, torch._inductor.config
from preheat.recording import Recorder
from preheat.recording.inherited import inherited_names
from preheat.sources.closure import find_closure

def record(project, base):
    os.environ.update(base.get("env") or {})
    sys.path.insert(0, str(project))
    recorder = Recorder(project)
    with recorder:
        with recorder.watching_files(), recorder.watching_calls() as made:
            exec(base.get("prelude") or "", {"torch": torch})
            module = __import__(base["entry_module"])
            function, arguments = getattr(module, base["entry"])()
        with recorder.watching_calls() as ran:
            output = function(*arguments)
            if hasattr(module, "post"):
                module.post(function, arguments, output)
        modules = recorder.executed_sources()
        files = {str(path): name for name, (path, _) in modules.items()}
        closure = find_closure(
            {name: (path.name == "__init__.py", text) for name, (path, text) in modules.items()},
            [(base["entry_module"], base["entry"]), *made.names(files), *ran.names(files)],
            inherited=inherited_names(modules),
        )
        recorder.variables(closure.variables)
    return msgspec.structs.replace(recorder.sources(), closure=closure)

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            answer = msgspec.json.encode(record(Path(job["project"]), job["base"]))
            Path(job["answer"]).write_bytes(answer)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"base {job['base']['base']} failed")
"""


def load() -> list[dict[str, Any]]:
    """The bases with their edits."""
    bases: list[dict[str, Any]] = json.loads(DATA.read_text())
    return bases


def record(bases: list[dict[str, Any]], directory: Path) -> list[Sources]:
    """The snapshot of each base, closure included."""
    jobs = []
    for index, base in enumerate(bases):
        project = directory / f"base{index}"
        write(project, base["files"])
        about = {key: base.get(key) for key in ("base", "env", "prelude", "entry_module", "entry")}
        jobs.append(
            {"project": str(project), "base": about, "answer": str(directory / f"{index}.json")}
        )
    subprocess.run(
        [sys.executable, "-c", RECORD],
        input="\n".join(map(json.dumps, jobs)),
        text=True,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    return [
        msgspec.json.decode(Path(str(job["answer"])).read_bytes(), type=Sources) for job in jobs
    ]


def write(project: Path, files: dict[str, str]) -> None:
    """Put files into a directory."""
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
