"""The paths that a configuration names: from where they count, and what stands in for those it leaves out."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import ConfigurationError
from preheat.store.location import split_stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def store_path(written: str | None, project: Path, environ: Mapping[str, str]) -> Path:
    """Where the store is: PREHEAT_STORE, the key ``store``, CACHE_DIRECTORY, else the user's cache.

    The same answer as ``preheat.store.find_store`` gives to a worker of this project; that one does
    not know a file given with ``--config``.
    """
    if named := split_stores(environ.get("PREHEAT_STORE", "")):
        return path_of(Path.cwd(), named[0])
    if written is not None:
        return path_of(project, written)
    if first := environ.get("CACHE_DIRECTORY", "").partition(":")[0]:
        return Path(first).absolute()
    import platformdirs  # here: most configurations say where the store is

    return platformdirs.user_cache_path("preheat").absolute()


def layer_paths(
    written: Sequence[str], project: Path, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """The layers below the store: the rest of PREHEAT_STORE where that is set, else the key ``layers``."""
    if named := split_stores(environ.get("PREHEAT_STORE", "")):
        return tuple(path_of(Path.cwd(), one) for one in named[1:])
    return tuple(path_of(project, one) for one in written)


def watched_paths(entries: Sequence[str], file: Path, project: Path) -> Iterable[Path]:
    """The key ``watch``. Raises ``ConfigurationError`` for one that is not there."""
    for index, entry in enumerate(entries):
        path = path_of(project, entry)
        if not path.exists():
            raise ConfigurationError(f"{file}: `watch[{index}]` does not exist: {path}.")
        yield path


def interpreter_of(written: str | None, project: Path, environ: Mapping[str, str]) -> str:
    """The interpreter's path. It need not be there: that is the trouble of its targets alone."""
    if written is None:
        return sys.executable
    if os.sep in written:
        # Not resolved: a virtual environment is found by the path of its symbolic link.
        return str(path_of(project, written))
    return shutil.which(written, path=environ.get("PATH")) or written


def path_of(base: Path, written: str) -> Path:
    """One path as written, from ``base``; ``~`` is a home."""
    if written.startswith("~"):
        return Path(os.path.normpath(base / Path(written).expanduser()))
    return Path(os.path.normpath(os.path.join(base, written)))  # noqa: PTH118 - a quarter of the time
