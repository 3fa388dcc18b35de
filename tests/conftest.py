"""Fixtures that cost minutes, made once for all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support import container, figures, lean
from support.project import Project
from support.walkthrough import Walkthrough
from support.zoo import FILES

if TYPE_CHECKING:
    from pathlib import Path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What fault tests tried, and what came of it."""
    for line in figures.lines():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiler caches that all projects of a session share, so that each kernel compiles once."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    """Many kinds of targets, warmed. Tests only load from it; they never edit it."""
    project = Project(tmp_path_factory.mktemp("zoo") / "project", FILES, caches)
    done = project.preheat("warm", "--json")
    assert done.code == 0, done.out + done.err
    return project


@pytest.fixture(scope="session")
def lean_project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    """Programs that show what lean images do. Tests only load from it; they never edit it."""
    project = Project(tmp_path_factory.mktemp("lean") / "project", lean.FILES, caches)
    done = project.preheat("warm", "--json")
    assert done.code == 0, done.out + done.err
    return project


@pytest.fixture(scope="session")
def walkthrough(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Walkthrough:
    """The beginning of docs/jobs.md, followed on two machines. Tests only read what it left."""
    if container.REASON:
        pytest.skip(f"no container can be made here: {container.REASON}")
    walk = Walkthrough(tmp_path_factory.mktemp("walkthrough"), caches)
    walk.walk()
    return walk
