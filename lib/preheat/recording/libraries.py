"""Which installed libraries a build used: told from the modules it loaded and the code it traced."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.manifest import Library, LibraryFile, sha256
from preheat.sources.libraries import InstalledVersions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Their versions are part of the environment, by which a package is found at all.
_IN_ENVIRONMENT = frozenset({"torch", "triton", "functorch", "torchgen", "preheat", "preheatd"})


_remembered: frozenset[str] | None = None


def loaded_names() -> frozenset[str]:
    """Top-level names of all modules that are loaded now."""
    return frozenset(name.partition(".")[0] for name in sys.modules)


def remember_loaded() -> None:
    """In a zygote: what is imported from here on is imported for the sake of user code."""
    global _remembered
    _remembered = loaded_names()


def loaded_before_user_code() -> frozenset[str]:
    """Top-level names that the compiler has loaded for itself; ask before any user code is imported."""
    return loaded_names() if _remembered is None else _remembered


def record_libraries(
    loaded: frozenset[str], traced_files: Iterable[str], user_names: frozenset[str]
) -> tuple[tuple[Library, ...], tuple[LibraryFile, ...]]:
    """Distributions of the modules that user code loaded, or that were traced; and the traced files.

    ``loaded``: top-level names that user code loaded; what the compiler loads for itself belongs to
    torch's own version. ``user_names``: those of user modules, which are recorded by their text.
    """
    files = tuple(_library_files(traced_files))
    traced = {file.path.partition("/")[0].removesuffix(".py") for file in files}
    names = {*loaded, *traced} - user_names - _IN_ENVIRONMENT
    return tuple(_distributions(names - sys.stdlib_module_names)), files


def _distributions(names: set[str]) -> list[Library]:
    providers: Mapping[str, list[str]] = (
        importlib.metadata.packages_distributions() if names else {}
    )
    wanted = {distribution for name in names for distribution in providers.get(name, ())}
    # Asked as readers ask it, so that both spell a version the same way.
    versions = InstalledVersions()
    path = [Path(entry) for entry in sys.path if _holds_libraries(entry)]
    return [
        Library(distribution=distribution, version=version)
        for distribution in sorted(wanted)
        if (version := versions.version(distribution, path)) is not None
    ]


def _library_files(traced_files: Iterable[str]) -> list[LibraryFile]:
    """Traced files below an import path entry that holds libraries, by their path in it."""
    entries = [Path(entry) for entry in sys.path if _holds_libraries(entry)]
    found = {}
    for name in traced_files:
        path = Path(name)
        entry = next((e for e in entries if path.is_relative_to(e)), None)
        if entry is None:
            continue
        relative = path.relative_to(entry)
        if relative.parts[0] in _IN_ENVIRONMENT or not path.is_file():
            continue
        found[str(relative)] = LibraryFile(path=str(relative), sha256=sha256(path.read_bytes()))
    return [found[key] for key in sorted(found)]


def is_library(name: str) -> bool:
    """Whether an imported module was found where libraries are installed, and is none of torch's."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    if name.partition(".")[0] in _IN_ENVIRONMENT:
        return False
    return any(file.startswith(f"{entry}/") for entry in sys.path if _holds_libraries(entry))


def _holds_libraries(entry: str) -> bool:
    return Path(entry).name in ("site-packages", "dist-packages")
