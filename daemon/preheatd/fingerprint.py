"""The state of a target's sources on disk, to tell whether anything was edited since.

This decides only when to try again and which running build to end. Whether a package is fresh is
decided by ``preheat.sources`` alone.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from preheat.sources.files import FileDigests
    from preheatd.config import Target
    from preheatd.roots import Root

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules", "site-packages"})
MAX_FILES = 50_000
MISSING = "missing"


def source_digests(
    digests: FileDigests, roots: Iterable[Root], data_files: Iterable[str]
) -> dict[str, str]:
    """Path to digest of each Python file in ``roots`` (the first ``MAX_FILES``) and of each data file.

    Whatever is not a readable regular file has the digest ``MISSING``.
    """
    found = {path: digests.data(Path(path)) or MISSING for path in data_files}
    for path in python_files(roots):
        if len(found) >= MAX_FILES:
            break
        found[path] = digests.sha256(Path(path)) or MISSING
    return found


def python_files(roots: Iterable[Root]) -> Iterator[str]:
    """The Python files in ``roots``; hidden directories and installed packages are left out."""
    for root in roots:
        for folder, names, files in os.walk(root.path):
            kept = [name for name in names if name[0] != "." and name not in SKIPPED_DIRECTORIES]
            names[:] = kept if root.recursive else []
            yield from (f"{folder}/{file}" for file in files if file.endswith(".py"))


def sources_state(target: Target, files: Mapping[str, str]) -> str:
    """One digest of a target's files and of what its configuration says about the build."""
    configured = [
        target.factory,
        target.python,
        str(target.cwd),
        sorted(target.env.items()),
        target.timeout,
        target.device,
        sorted(target.tolerance.items()),
        target.memory_limit,
    ]
    data = msgspec.json.encode([configured, files], order="deterministic")
    return hashlib.sha256(data).hexdigest()[:32]
