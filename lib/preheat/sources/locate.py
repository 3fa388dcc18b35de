"""Where a recorded module's file is now: one answer for the daemon, one for a worker."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from preheat.manifest import ModuleSource, Sources

    Locate = Callable[[ModuleSource], Path | None]


def root_directory(sources: Sources, project: Path, root: int) -> Path:
    """The directory that ``roots[root]`` names for a project that lies at ``project``."""
    return project / sources.roots[root] if sources.roots[root] else project


class ProjectLocator:
    """See ``project_locator``. Two with the same ``key`` answer the same."""

    def __init__(self, project: Path, search_path: Iterable[str | Path]) -> None:
        self._project = project
        self._entries = [project, *(project / entry for entry in search_path)]
        self.key = tuple(map(str, self._entries))

    def __call__(self, module: ModuleSource) -> Path | None:
        if module.root != 0:
            return None
        recorded = self._project / module.path
        return recorded if recorded.is_file() else _search(self._entries, module.module)


def project_locator(project: Path, search_path: Iterable[str | Path] = ()) -> ProjectLocator:
    """For the daemon: the file below the project where the build found the module.

    When it is gone, the module is looked for below the project and the entries of ``search_path``
    (relative ones start at the project): a file that only moved to another entry is not an edit.
    None for modules of other roots: ``check`` knows where those were.
    """
    return ProjectLocator(project, search_path)


def import_locator(
    modules: Mapping[str, ModuleType] | None = None, search_path: Sequence[str] | None = None
) -> Locate:
    """For a worker: the file that this process imported the module from, or would import.

    Parents are never imported for it. Defaults: ``sys.modules`` and ``sys.path``.
    """
    known = sys.modules if modules is None else modules

    def locate(module: ModuleSource) -> Path | None:
        path = _file_of(loaded_module(module, known))
        return _find(module.module, known, search_path) if path is None else path

    return locate


def loaded_module(module: ModuleSource, known: Mapping[str, ModuleType]) -> ModuleType | None:
    """The module of this process that was recorded as ``module``, under its name or as ``__main__``."""
    loaded = known.get(module.module)
    if loaded is None and _runs_as_main(known.get("__main__"), module):
        return known["__main__"]
    return loaded


def find_module(name: str, search_path: Sequence[str] | None = None) -> Path | None:
    """The file that a fresh import of ``name`` would take, without importing its parents."""
    return _find(name, {}, search_path)


def project_directory(sources: Sources, locate: Locate) -> Path | None:
    """Where the project lies in this process, told from the place of its modules, or None."""
    for module in sources.modules:
        path = locate(module) if module.root == 0 else None
        parts = Path(module.path).parts
        if path is not None and path.parts[-len(parts) :] == parts:
            return Path(*path.parts[: -len(parts)])
    return None


def _search(entries: Iterable[Path], name: str) -> Path | None:
    """A module's file as import finds it: a package before a module, regular before namespace."""
    places = list(entries)
    *parents, last = name.split(".")
    for parent in parents:
        places = _package_places(places, parent)
    for place in places:
        for candidate in (place / last / "__init__.py", place / f"{last}.py"):
            if candidate.is_file():
                return candidate
    return None


def _package_places(places: Iterable[Path], name: str) -> list[Path]:
    portions = []
    for place in places:
        if (place / name / "__init__.py").is_file():
            return [place / name]
        if (place / f"{name}.py").is_file():
            return []
        if (place / name).is_dir():
            portions.append(place / name)
    return portions


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).absolute() if isinstance(file, str) else None


def _runs_as_main(main: ModuleType | None, module: ModuleSource) -> bool:
    """Whether ``__main__`` is this module under another name (``python -m``, or a script)."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return bool(spec.name in (module.module, f"{module.module}.__main__"))
    path = _file_of(main)
    parts = Path(module.path).parts
    return path is not None and path.parts[-len(parts) :] == parts


def _find(
    name: str, known: Mapping[str, ModuleType], search_path: Sequence[str] | None
) -> Path | None:
    """Step from package to package by their search locations; a loaded parent's own win."""
    places = None if search_path is None else list(search_path)
    parents = name.split(".")
    spec = None
    for depth in range(1, len(parents) + 1):
        step = ".".join(parents[:depth])
        loaded = known.get(step)
        if depth < len(parents) and loaded is not None and hasattr(loaded, "__path__"):
            places = list(loaded.__path__)
            continue
        spec = _spec(step, places)
        if spec is None:
            return None
        if depth < len(parents):
            if spec.submodule_search_locations is None:
                return None
            places = list(spec.submodule_search_locations)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    return Path(spec.origin).absolute()


def _spec(name: str, places: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    found = importlib.machinery.PathFinder.find_spec(name, places)
    if found is not None:
        return found
    # Editable installs put finders of their own behind PathFinder.
    for finder in sys.meta_path:
        # Classes are Python's own; a finder that records would take this question for an import.
        if isinstance(finder, type) or getattr(finder, "records_imports", False):
            continue
        with contextlib.suppress(Exception):  # a foreign finder; not finding is an answer
            found = finder.find_spec(name, places)
            if found is not None:
                return found
    return None
