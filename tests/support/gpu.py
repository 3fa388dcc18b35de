"""Targets of one project on a GPU, built side by side and waited for one by one.

A daemon builds one target at a time on a GPU. Here each target has a command and a state directory of its
own, and all have one store.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from support.project import Done, Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JOBS = 4
# For this project's preheat.toml: builds of this suite do not wait for each other's work on the GPU.
TOGETHER = "[politeness]\ngpu_memory_below = 1.0\ngpu_utilisation_below = 1.0\n"


@dataclasses.dataclass
class Warming:
    """``project``, and what becomes of each of its targets."""

    project: Project
    done: dict[str, Future[Done]]

    def need(self, *targets: str) -> Project:
        """The project once these targets are built. Fails with what the build said of one that is not."""
        for target in targets:
            done = self.done[target].result()
            print(done.out, done.err)  # noqa: T201  the figures are wanted
            assert done.code == 0, done.out + done.err
        return self.project


def needs(*targets: str) -> pytest.MarkDecorator:
    """Marks a test by the targets that are built for it."""
    return pytest.mark.needs(*targets)


def warming(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory, files: Mapping[str, str]
) -> Iterator[Warming]:
    """Builds what the tests of this module that were chosen need; for a fixture of the module."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    project = Project(factory.mktemp("gpu") / "project", files)
    chosen = (item for item in request.session.items if item.path == request.path)
    marks = (mark for item in chosen for mark in item.iter_markers("needs"))
    targets = dict.fromkeys(target for mark in marks for target in mark.args)
    with ThreadPoolExecutor(JOBS) as pool:
        yield Warming(project, {one: pool.submit(_warm, project, one) for one in targets})


def _warm(project: Project, target: str) -> Done:
    own = {
        "PREHEAT_STATE": str(project.root / f"state-{target}"),
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
    }
    return project.preheat("warm", "--json", target, env=own)


def needed(request: pytest.FixtureRequest, warming: Warming) -> Project:
    """The project with what this test needs; for a fixture of each test."""
    targets = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    return warming.need(*targets)
