"""The environment variables that a target's processes get: pure functions over mappings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
