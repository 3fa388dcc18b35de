"""A project that costs a build, shared by fault tests that leave it as fresh as they found it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.project import Project
from support.small import FILES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def small_project(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Project:
    """One small target, warm."""
    project = Project(tmp_path_factory.mktemp("small") / "project", FILES, caches)
    done = project.preheat("warm")
    assert done.code == 0, done.err
    return project
