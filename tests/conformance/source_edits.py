"""Decide every edit of ``source_edits.json`` from file text, and write the table of the outcomes.

``python tests/conformance/source_edits.py docs/freshness_table.md`` writes the table. Each base is
imported and called once, eagerly, in a process of its own that is forked from one that has imported
torch; what ran there stands in for what a compiler would have traced. No edit is ever executed.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.manifest import Sources
from preheat.sources.check import check
from preheat.sources.locate import project_locator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preheat.verdict import Reason

DATA = Path(__file__).with_suffix(".json")
CONTROL = "noop"

# Other mechanisms than the comparison of sources decide these, each named with its mechanism.
COVERED_ELSEWHERE = {
    "other file, same qualname+line, different body": "another factory is another target: its own key",
    "torch monkeypatched: torch.sin = torch.cos": "identity of what a worker has, compared at load",
    "num_threads 1": "settings of the worker's process, compared at load",
    "deterministic algorithms on": "settings of the worker's process, compared at load",
    "matmul precision high": "settings of the worker's process, compared at load",
    "no_grad changed (grad disabled)": "settings of the worker's process, compared at load",
    "autocast cache": "settings of the worker's process, compared at load",
    "functorch/dynamo config specialize_float": "settings of the worker's process, compared at load",
    "inductor fallback_random=True": "settings of the worker's process, compared at load",
}

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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was decided about one edit."""

    base: str
    name: str
    output_changes: bool | None
    reasons: tuple[Reason, ...]

    @property
    def hit(self) -> bool:
        """Whether the package would be used."""
        return not self.reasons

    @property
    def control(self) -> bool:
        """Whether nothing was edited at all."""
        return self.name == CONTROL

    @property
    def elsewhere(self) -> str:
        """The mechanism that decides this edit, where it is not the comparison of sources."""
        return COVERED_ELSEWHERE.get(self.name, "")

    @property
    def word(self) -> str:
        """How the decision compares with what happens to the output."""
        if self.elsewhere:
            return "covered elsewhere"
        if self.output_changes is None and not self.control:
            return "not measured"
        if self.hit:
            return "WRONG HIT" if self.output_changes else "right hit"
        return "right refusal" if self.output_changes else "over-eager"


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


def decide(base: dict[str, Any], edit: dict[str, Any], sources: Sources, project: Path) -> Outcome:
    """Compare the snapshot with the edited files."""
    files = {**base["files"], **edit["write"]}
    write(project, {name: text for name, text in files.items() if name not in edit["delete"]})
    variables = {**os.environ, **(base.get("env") or {}), **(edit.get("env") or {})}
    reasons = check(sources, project_locator(project), project=project, environ=variables)
    return Outcome(base["base"], edit["name"], edit["output_changes"], reasons)


def outcomes(directory: Path) -> list[Outcome]:
    """Every edit of every base."""
    bases = load()
    found = []
    for number, (base, sources) in enumerate(zip(bases, record(bases, directory), strict=True)):
        for index, edit in enumerate(base["edits"]):
            found.append(decide(base, edit, sources, directory / f"edit{number}-{index}"))
    return found


def summary(found: Iterable[Outcome]) -> dict[str, int]:
    """How many of each."""
    counts = collections.Counter(
        f"control, {one.word}" if one.control else one.word for one in found
    )
    return dict(sorted(counts.items()))


def table(found: list[Outcome]) -> str:
    """The outcomes as a page of documentation."""
    lines = [
        "# Which edits make a package stale",
        "",
        f"{len(found)} probing edits, decided from the text of the files alone (Python "
        f"{sys.version_info[0]}.{sys.version_info[1]}). Written by",
        "`python tests/conformance/source_edits.py docs/freshness_table.md`; what the rule is: see",
        "[freshness](freshness.md).",
        "",
        "| outcome | edits |",
        "|---|---|",
        *(f"| {word} | {count} |" for word, count in summary(found).items()),
        "",
        "| base | edit | output changes | decision | reasons |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        changes = {True: "yes", False: "no", None: ""}[one.output_changes]
        why = one.elsewhere or "; ".join(
            f"{reason.kind} {reason.symbol or reason.file or ''}".strip() for reason in one.reasons
        )
        cells = (one.base, one.name, changes, one.word, why.replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table to the file that is named, or to standard output."""
    with tempfile.TemporaryDirectory() as directory:
        text = table(outcomes(Path(directory)))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
