"""Everything that a daemon consists of, killed and stopped at random during random edits."""

from __future__ import annotations

import collections
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from support import figures
from support.chaos import FILES, TARGETS, Chaos, converged, left_files
from support.project import Project, until
from support.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = float(os.environ.get("PREHEAT_CHAOS_SECONDS", "600" if figures.FULL else "15"))
SEED = int(os.environ.get("PREHEAT_CHAOS_SEED", "3"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    project = Project(tmp_path_factory.mktemp("chaos") / "project", FILES, caches)
    done = project.preheat("warm")
    assert done.code == 0, done.err
    return project


@pytest.fixture(scope="module")
def workers() -> Iterator[Zygote]:
    modules = ("torch", "preheat.worker", "preheat.store", "support.chaos_worker")
    with Zygote(modules, {"PYTHONDONTWRITEBYTECODE": "1"}) as zygote:
        yield zygote


class Loads:
    """What workers met."""

    def __init__(self, project: Project, workers: Zygote) -> None:
        self._project = project
        self._workers = workers
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def load(self) -> dict[str, Any]:
        about = {
            "project": str(self._project.root),
            "store": str(self._project.store_path),
            "targets": TARGETS,
        }
        log = self._project.root.parent / "workers.log"
        said: dict[str, Any] = self._workers.call(
            "support.chaos_worker:load_all", about, log=log, seconds=400
        )
        self.counts.update({key: len(value) for key, value in said.items()})
        self.wrong += said["wrong"]
        return said


@pytest.mark.timeout(1500)
def test_it_converges_is_never_wrong_and_leaves_nothing(project: Project, workers: Zygote) -> None:
    chaos, loads = Chaos(project, SEED), Loads(project, workers)
    try:
        chaos.work(SECONDS, lambda: loads.load() and None)
        began = time.monotonic()
        chaos.calm_down()
        converged(project)
        took = time.monotonic() - began
        last = loads.load()
        chaos.end()
        until(lambda: not chaos.processes.all(), "without an orphan")
    finally:
        orphans = chaos.processes.all()
        chaos.kill_all()
    left = [str(path.relative_to(project.root)) for path in left_files(project)]
    figures.note(
        "daemon chaos",
        seconds=SECONDS,
        **dict(sorted(chaos.done.items())),
        published=chaos.log.read_text().count('"action":"build_published"'),
        loads=loads.counts["loaded"],
        refused=loads.counts["refused"],
        unreadable_sources=loads.counts["unreadable"],
        wrong=len(loads.wrong),
        orphans=len(orphans),
        files_left=len(left),
        converged_after_seconds=round(took, 1),
    )
    assert loads.wrong == []
    assert sorted(last["loaded"]) == sorted(TARGETS), last
    assert left == []
