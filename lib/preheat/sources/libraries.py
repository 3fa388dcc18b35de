"""Installed libraries that a package depends on: versions, and the files that were traced.

A library is pinned by its distribution's version. Somebody may still patch an installed file, so each
library file whose code went into a graph is pinned by its content as well.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preheat.manifest import Library, LibraryFile, Sources
    from preheat.sources.files import FileDigests

_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-.*)?\.(dist|egg)-info$")


def normalised(name: str) -> str:
    """A distribution's name in the one spelling that installers compare (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class InstalledVersions:
    """Versions of distributions by directory; a directory is listed again when it changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, dict[str, str]]] = {}

    def version(self, distribution: str, library_path: Iterable[Path]) -> str | None:
        """The version that import would find first, or None."""
        name = normalised(distribution)
        for directory in library_path:
            if (version := self._versions(directory).get(name)) is not None:
                return version
        return None

    def _versions(self, directory: Path) -> dict[str, str]:
        try:
            stamp = directory.stat().st_mtime_ns
            known = self._known.get(directory)
            if known is not None and known[0] == stamp:
                return known[1]
            names = [entry.name for entry in directory.iterdir()]
        except OSError:
            return {}
        found = {}
        for name in names:
            if match := _METADATA.match(name):
                found[normalised(match["name"])] = match["version"]
        self._known[directory] = (stamp, found)
        return found


def library_differences(
    sources: Sources,
    library_path: Sequence[str | Path],
    digests: FileDigests,
    versions: InstalledVersions,
    *,
    only_known: bool = False,
) -> tuple[Reason, ...]:
    """Libraries that are not what the build used. Kind: ``library_changed``.

    ``library_path``: where import looks for libraries, in its order. ``only_known``: say nothing about
    what is not found there, because the caller does not know the whole path.
    """
    path = [Path(entry) for entry in library_path]
    return (
        *_versions_changed(sources.libraries, path, versions, only_known),
        *_files_changed(sources.library_files, path, digests, only_known),
    )


def _versions_changed(
    libraries: Iterable[Library], path: list[Path], versions: InstalledVersions, only_known: bool
) -> Iterator[Reason]:
    for library in libraries:
        here = versions.version(library.distribution, path)
        if here == library.version or (here is None and only_known):
            continue
        now = here or "not installed"
        yield Reason(
            kind="library_changed",
            symbol=library.distribution,
            detail=f"built with {library.version}, here {now}",
            built=library.version,
            here=now,
        )


def _files_changed(
    files: Iterable[LibraryFile], path: list[Path], digests: FileDigests, only_known: bool
) -> Iterator[Reason]:
    for file in files:
        found = next((place / file.path for place in path if (place / file.path).is_file()), None)
        if found is None and only_known:
            continue
        if found is not None and digests.sha256(found) == file.sha256:
            continue
        yield Reason(
            kind="library_changed",
            file=file.path,
            detail="not found" if found is None else "the installed file was changed",
        )
