"""Whether user code has a module that a fresh process would import in the place of a loaded library."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def shadowed(entries: list[str]) -> str:
    """A file of user code that a fresh process would import in the place of a library that is loaded here."""
    loaded = {name for name in sys.modules if "." not in name}
    for entry in entries:
        for name in sorted(loaded.intersection(_importable(Path(entry)))):
            file = getattr(sys.modules[name], "__file__", None)
            if file is None or not Path(file).is_relative_to(entry):
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
