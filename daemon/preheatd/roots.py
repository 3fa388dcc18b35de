"""Which directories to watch: those that hold what the packages depend on.

Directories, never files: an editor replaces a file by another one, and only the directory tells.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from preheat.manifest import Manifest, Sources
    from preheatd.config import Config, Target


@dataclasses.dataclass(frozen=True, order=True)
class Root:
    """A directory, and whether everything below it counts too."""

    path: Path
    recursive: bool


def target_roots(
    config: Config, target: Target, manifest: Manifest | None, search_path: Iterable[str]
) -> tuple[Root, ...]:
    """Where the sources of one target are, as configured, else as known or guessed.

    Before the first package only the factory's own top-level package can be known.
    """
    if config.watch is not None:
        return tuple(_explicit(path) for path in config.watch)
    found = list(_module_roots(target.module, (config.project, *map(Path, search_path))))
    if manifest is not None:
        found += _source_roots(config.project, manifest.sources)
    return minimal(found)


def watched_roots(config: Config, targets: Iterable[tuple[Root, ...]]) -> tuple[Root, ...]:
    """Every directory to watch for all targets, each existing and none twice.

    The project directory itself and the parents are included, not what is below them: there a
    directory that was moved away or removed comes back.
    """
    wanted = [root for roots in targets for root in roots]
    parents = [Root(root.path.parent, False) for root in wanted if root.recursive]
    own = [Root(config.project, False), Root(config.file.parent, False)]
    return minimal(_existing(root) for root in (*wanted, *parents, *own))


def look_at_roots(
    config: Config, targets: Iterable[tuple[Root, ...]]
) -> tuple[tuple[Root, ...], tuple[Path, ...]]:
    """``watched_roots`` and ``missing_roots`` in one step: both look at the disk."""
    targets = tuple(targets)
    return watched_roots(config, targets), missing_roots(config, targets)


def missing_roots(config: Config, targets: Iterable[tuple[Root, ...]]) -> tuple[Path, ...]:
    """The directories of sources that are not there, and the project's own."""
    wanted = {root.path for roots in targets for root in roots if root.recursive}
    wanted.add(config.project)
    return tuple(sorted(path for path in wanted if not path.is_dir()))


def minimal(roots: Iterable[Root]) -> tuple[Root, ...]:
    """The same directories without those that lie in another one."""
    unique = set(roots)
    deep = {root.path for root in unique if root.recursive}
    return tuple(
        sorted(
            root
            for root in unique
            if not any(parent in deep for parent in root.path.parents)
            and (root.recursive or root.path not in deep)
        )
    )


def source_files(project: Path, sources: Sources) -> frozenset[str]:
    """The absolute paths of everything that a package's snapshot names."""
    modules = (root_path(project, sources, one.root) / one.path for one in sources.modules)
    data = (root_path(project, sources, one.root) / one.path for one in sources.data_files)
    return frozenset(os.path.normpath(path) for path in (*modules, *data))


def data_paths(project: Path, sources: Sources) -> frozenset[str]:
    """The absolute paths of its data files alone, those that did not exist included."""
    paths = (root_path(project, sources, one.root) / one.path for one in sources.data_files)
    return frozenset(os.path.normpath(path) for path in paths)


def root_path(project: Path, sources: Sources, index: int) -> Path:
    """A root of the snapshot as an absolute path. An index that does not exist is the project's."""
    known = 0 <= index < len(sources.roots)
    return project / sources.roots[index] if known else project


def _explicit(path: Path) -> Root:
    return Root(path.parent, False) if path.is_file() else Root(path, True)


def _module_roots(module: str, places: Iterable[Path]) -> Iterator[Root]:
    top = module.partition(".")[0]
    for place in places:
        if (place / top).is_dir():
            yield Root(place / top, True)
        if (place / f"{top}.py").is_file():
            yield Root(place, False)


def _source_roots(project: Path, sources: Sources) -> Iterator[Root]:
    for one in sources.modules:
        base = root_path(project, sources, one.root)
        top, *below = Path(one.path).parts
        yield Root(base / top, True) if below else Root(base, False)
    for path in data_paths(project, sources):
        yield Root(Path(path).parent, False)


def _existing(root: Root) -> Root:
    """The root, or the nearest directory above it that exists, to see it come into being."""
    if root.path.is_dir():
        return root
    return next((Root(up, False) for up in root.path.parents if up.is_dir()), root)
