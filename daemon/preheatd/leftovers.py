"""Files that killed daemons, commands and builds left half-made below the state directory.

The next command that builds removes them. Nothing here decides what is right: whatever it removes is
made again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING

from preheat.store.files import Files
from preheat.store.temporary import is_leftover, process_space, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

DAMAGED_SUFFIX = ".damaged"
# What Python's tempfile and a C++ compiler make in TMPDIR, and what inductor renames to its place.
_OF_COMPILERS = "tmp/cc*"
_TEMPORARY = ("tmp/tmp*", _OF_COMPILERS, "inductor/**/.*.tmp")


def temporary_beside(path: Path) -> Path:
    """A name for a file that will be renamed to ``path``; its writer can be told from it."""
    return path.with_name(f".{temporary_name()}")


def sweep_records(directories: Iterable[Path]) -> int:
    """Remove records that were never finished and whose writer is gone. Says how many."""
    now, exists = time.time(), Files().process_exists
    removed = 0
    for path in (path for directory in directories for path in directory.glob(".*")):
        with contextlib.suppress(OSError):
            age_seconds = now - path.lstat().st_mtime
            name = path.name.removeprefix(".")
            if is_leftover(name, age_seconds, space=process_space(), process_exists=exists):
                path.unlink()
                removed += 1
    return removed


def sweep_compilers(caches: Path, building: Callable[[], bool]) -> int:
    """Remove what C++ compilers of ended builds left below ``caches``, unless somebody builds. Says how much.

    For a daemon, whose idle processes may have other temporary files.
    """
    with contextlib.suppress(OSError):
        seen = list(caches.glob(f"*/{_OF_COMPILERS}"))
        return 0 if not seen or building() else _remove(seen)
    return 0


def sweep_caches(caches: Path, in_use: Callable[[], bool]) -> int:
    """Remove what killed compilers left below ``caches``, unless somebody builds. Says how much.

    Whatever is seen before ``in_use`` says no belongs to nobody: a build that begins later makes
    files of other names.
    """
    seen = list(_temporary(caches))
    return 0 if not seen or in_use() else _remove(seen)


def _remove(seen: list[Path]) -> int:
    for path in seen:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return len(seen)


def _temporary(caches: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from caches.glob(f"*{DAMAGED_SUFFIX}")
        for directory in caches.iterdir():
            for pattern in _TEMPORARY:
                yield from directory.glob(pattern)
