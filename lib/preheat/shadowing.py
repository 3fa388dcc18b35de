"""Whether user code has a module that stands, or would stand, in the place of a loaded library."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_OWN = frozenset({"preheat", "preheatd"})


def shadowed(project: str, search_path: Iterable[str]) -> str:
    """Why a forked process is not like a fresh one, in which user code comes first; empty when it is.

    A module of the project must not be loaded yet, nor one that another would take the place of. Modules
    that were loaded from ``search_path`` count as libraries.
    """
    loaded = {name for name in sys.modules if "." not in name} - _OWN
    for entry in (project, *search_path):
        for name in sorted(loaded.intersection(_importable(Path(entry)))):
            file = getattr(sys.modules[name], "__file__", None)
            from_here = file is not None and Path(file).parent in (Path(entry), Path(entry, name))
            if entry == project or not from_here:
                return f"{entry} has a module named {name}, as a library is"
    return ""


def _importable(directory: Path) -> set[str]:
    """Names of modules and packages in a directory of the import path."""
    with contextlib.suppress(OSError):
        return {
            path.name.partition(".")[0]
            for path in directory.iterdir()
            if path.suffix in (".py", ".so") or (path / "__init__.py").is_file()
        }
    return set()
