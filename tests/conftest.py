"""Fixtures that cost minutes, made once for all tests."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from support import container, figures, lean, spread
from support.forge import Forge
from support.project import Project
from support.walkthrough import Walkthrough
from support.zoo import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_configure() -> None:
    """What hypothesis tries is the same in every run, unless PREHEAT_FAULT=full; slowness is no failure."""
    if importlib.util.find_spec("hypothesis") is None:  # on a machine with a GPU
        return
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "preheat", deadline=None, derandomize=not figures.FULL, suppress_health_check=slow
    )
    settings.load_profile("preheat")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In each of several processes the same order; one process alone keeps that of the files."""
    if hasattr(config, "workerinput"):
        # A complaint here would not be seen; see pytest_xdist_node_collection_finished.
        items.sort(key=lambda item: spread.turn_of(item.nodeid))
    else:
        spread.check_names(item.nodeid for item in items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: object, ids: list[str]) -> None:
    spread.check_names(ids)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return spread.make_scheduler(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes hands its figures over."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = figures.of_this_run()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """None come from a process that crashed."""
    for name, found in getattr(node, "workeroutput", {}).get("figures", {}).items():
        figures.note(name, **found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What fault tests tried, and what came of it."""
    for line in figures.lines():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiler caches that all projects of a session share, so that each kernel compiles once."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Builds packages in forked processes."""
    with Forge(tmp_path_factory.mktemp("forge")) as made:
        yield made


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Project:
    """Many kinds of targets, warmed. Tests only load from it; they never edit it."""
    project = Project(tmp_path_factory.mktemp("zoo") / "project", FILES)
    forge.warm(project)
    return project


@pytest.fixture(scope="session")
def lean_project(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Project:
    """Programs that show what lean images do. Tests only load from it; they never edit it."""
    project = Project(tmp_path_factory.mktemp("lean") / "project", lean.FILES)
    forge.warm(project)
    return project


@pytest.fixture(scope="session")
def walkthrough(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Walkthrough:
    """The beginning of docs/jobs.md, followed on two machines. Tests only read what it left."""
    if container.REASON:
        pytest.skip(f"no container can be made here: {container.REASON}")
    walk = Walkthrough(tmp_path_factory.mktemp("walkthrough"), caches)
    walk.walk()
    return walk
