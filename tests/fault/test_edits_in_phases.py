"""An edit lands as soon as a build says that it begins a phase, for every phase: nothing is poisoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support import figures
from support.small import WORKER
from support.watched import watched

if TYPE_CHECKING:
    from support.project import Project

PHASES = ("start", "import", "eager", "trace", "kernels", "package", "proof")
TRIED = PHASES if figures.FULL else ("kernels", "proof")


def factor(project: Project, value: float) -> None:
    text = (project.root / "app/model.py").read_text()
    old = text.split("FACTOR = ")[1].split()[0]
    project.edit("app/model.py", f"FACTOR = {old}", f"FACTOR = {value}")


def test_an_edit_in_every_phase_poisons_nothing(small_project: Project) -> None:
    project, loads = small_project, 0
    with watched(project) as daemon:
        for number, phase in enumerate(TRIED):
            factor(project, 3.0 + number)
            while daemon.wait("build_phase").get("phase") != phase:
                pass
            factor(project, 3.5 + number)
            done = project.python(WORKER)  # while the superseded build ends
            assert done.code == 0 or "MissError" in done.err, done.err
            assert done.code != 0 or done.json()["right"]
            project.until_fresh(f"fresh after an edit in {phase}")
            done = project.python(WORKER)
            assert done.code == 0, done.err
            assert done.json()["right"]
            loads += 2
    figures.note("edits in every phase", phases=len(TRIED), loads=loads, poisoned=0)
