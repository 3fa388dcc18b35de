"""Builds the packages of whole projects in forked processes, for tests whose subject comes after the build.

Each build and proof is the product's own code, in a process that nothing else has used; what is saved is
the import of the compiler, which takes longer than all the rest.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import msgspec

from preheat.job import Job
from preheatd.config import load_config
from preheatd.surroundings import search_path
from support.capture import COMPILER_MODULES, WORKER_MODULES
from support.proving import STAGE_SECONDS, Provers
from support.zygote import Zygote

if TYPE_CHECKING:
    from pathlib import Path

    from preheatd.config import Target
    from support.project import Project


class Forge:
    """Two processes that fork; enter it first. They are started when they are needed.

    ``directory``: for logs and compiler caches.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def warm(self, project: Project) -> None:
        """Build, prove and publish every target of a project. Raises ``AssertionError`` when one fails."""
        config = load_config(project.root / "preheat.toml")
        # Here, because several threads are going to ask for them.
        assert self._environment and self._compiler
        with ThreadPoolExecutor(2) as pool:
            failed = list(pool.map(functools.partial(self._build, project), config.targets))
        assert not any(failed), "\n".join(filter(None, failed))

    def _build(self, project: Project, target: Target) -> str:
        """Why it failed, or nothing."""
        directory = self._directory / f"{next(self._numbers)}-{target.name}"
        directory.mkdir()
        assert not target.env, "its processes would have to be started with these variables"
        job = Job(
            target=target.name,
            factory=target.factory,
            project=str(project.root),
            staging=str(directory / "staging"),
            environment=self._environment,
            device="cpu",
            search_path=search_path(project.environment, project.root, target.cwd),
            tolerance=dict(target.tolerance),
        )
        built = self._call(self._compiler, "build", msgspec.to_builtins(job), directory)
        if built["failed"]:
            return f"{target.name}: {built['failed']}"
        failed = self._provers.publish(job, project.store_path, directory)
        return f"{target.name}: {failed}" if failed else ""

    def _call(self, zygote: Zygote, stage: str, argument: Any, directory: Path) -> Any:
        log, function = directory / f"{stage}.log", f"support.capture_stages:{stage}"
        return zygote.call(function, argument, log=log, seconds=STAGE_SECONDS)

    @property
    def _provers(self) -> Provers:
        return Provers(self._worker, self._compiler)

    @functools.cached_property
    def _compiler(self) -> Zygote:
        return self._started(COMPILER_MODULES)

    @functools.cached_property
    def _worker(self) -> Zygote:
        return self._started(WORKER_MODULES)

    def _started(self, modules: tuple[str, ...]) -> Zygote:
        caches = self._directory / "caches"
        environment = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(caches),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TMPDIR": os.fspath(self._directory),
        }
        return self._stack.enter_context(Zygote(modules, environment))

    @functools.cached_property
    def _environment(self) -> str:
        return str(self._call(self._worker, "environment", None, self._directory))
