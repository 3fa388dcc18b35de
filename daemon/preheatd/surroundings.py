"""The environment variables that a target's processes get: pure functions over mappings."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from preheat.sources.locate import ProjectLocator, project_locator

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preheatd.caches import CompilerCaches
    from preheatd.config import Target

# What the service manager says to the daemon alone, and where its keys are.
_DAEMON_ONLY_PREFIXES = (
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "LISTEN_",
    "CREDENTIALS_DIRECTORY",
    "PREHEAT_SIGNING_KEY",
)


def target_environment(environ: Mapping[str, str], target: Target, project: Path) -> dict[str, str]:
    """The daemon's environment, the target's ``env`` over it, and the project importable."""
    variables = {
        name: value for name, value in environ.items() if not name.startswith(_DAEMON_ONLY_PREFIXES)
    }
    variables.update(target.env)
    entries = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(project) not in entries:
        entries.insert(0, str(project))
    variables["PYTHONPATH"] = os.pathsep.join(entries)
    return variables


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a target's processes find around them: ``variables``, ``places`` (see ``search_path``)."""

    variables: dict[str, str]
    places: tuple[str, ...]
    locate: ProjectLocator


class SharedSurroundings:
    """The surroundings of targets; those that are configured alike share one answer."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._known: dict[tuple[object, ...], Surroundings] = {}

    def of(self, target: Target, project: Path) -> Surroundings:
        key = (project, target.cwd, tuple(target.env.items()))
        found = self._known.get(key)
        if found is None:
            variables = target_environment(self._environ, target, project)
            places = search_path(variables, project, target.cwd)
            found = Surroundings(variables, places, project_locator(project, places))
            self._known[key] = found
        return found


def counted_variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """Those of a target's ``env`` whose values a worker must have, sorted.

    All but PYTHONPATH: which files it led to is recorded file by file, and a worker that finds the same
    ones in another way is right. (Processes here have the project in it, which no worker needs.)
    """
    return tuple(sorted(env.keys() - {"PYTHONPATH"}))


def search_path(variables: Mapping[str, str], project: Path, cwd: Path) -> tuple[str, ...]:
    """The directories of PYTHONPATH that modules are found in after the project, absolute."""
    entries = variables.get("PYTHONPATH", "").split(os.pathsep)
    found = (os.path.normpath(cwd / entry) for entry in entries if entry)
    return tuple(dict.fromkeys(entry for entry in found if entry != str(project)))


def with_caches(variables: Mapping[str, str], caches: CompilerCaches) -> dict[str, str]:
    """The same with a compiler's caches. TMPDIR is one of them: the precompiled header follows it."""
    return {**variables, **caches.variables()}


def installed_directories(python: Path) -> list[Path]:
    """Where an interpreter's libraries are installed: its own directories, then its base's.

    Not promised: directories that ``.pth`` files or variables add; only the interpreter knows those.
    """
    prefixes = dict.fromkeys((python.parent.parent, python.resolve().parent.parent))
    return [
        path
        for prefix in prefixes
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")
        for path in sorted(prefix.glob(pattern))
    ]
