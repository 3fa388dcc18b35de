"""The state of a target's sources on disk, to tell whether anything was edited since.

This decides only when to try again and which running build to end. Whether a package is fresh is
decided by ``preheat.sources`` alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
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


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The files of a target, path to digest, and one digest of them all."""

    files: Mapping[str, str]
    digest: str


class SourceFiles:
    """What lies in the directories of many targets at one moment.

    Targets that share directories share the work: a directory is walked once.
    """

    def __init__(self, digests: FileDigests) -> None:
        self._digests = digests
        self._below: dict[Root, dict[str, str]] = {}
        self._shared: dict[tuple[Root, ...], Fingerprint] = {}

    def of(self, roots: Iterable[Root], data_files: Iterable[str] = ()) -> Fingerprint:
        """Each Python file in ``roots`` (the first ``MAX_FILES``) and each data file.

        Whatever is not a readable regular file has the digest ``MISSING``.
        """
        python = self._python(tuple(roots))
        data = {path: self._digests.data(Path(path)) or MISSING for path in data_files}
        if not data:
            return python
        return Fingerprint({**data, **python.files}, _digest([python.digest, data]))

    def _python(self, roots: tuple[Root, ...]) -> Fingerprint:
        found = self._shared.get(roots)
        if found is None:
            below = itertools.chain.from_iterable(self._of_root(root).items() for root in roots)
            files = dict(itertools.islice(below, MAX_FILES))
            found = self._shared[roots] = Fingerprint(files, _digest(files))
        return found

    def _of_root(self, root: Root) -> dict[str, str]:
        if root not in self._below:
            paths = itertools.islice(python_files([root]), MAX_FILES)
            self._below[root] = {
                path: self._digests.sha256(Path(path)) or MISSING for path in paths
            }
        return self._below[root]


def python_files(roots: Iterable[Root]) -> Iterator[str]:
    """The Python files in ``roots``; hidden directories and installed packages are left out."""
    for root in roots:
        for folder, names, files in os.walk(root.path):
            kept = [name for name in names if name[0] != "." and name not in SKIPPED_DIRECTORIES]
            names[:] = kept if root.recursive else []
            yield from (f"{folder}/{file}" for file in files if file.endswith(".py"))


def moved(before: Mapping[str, str], digests: FileDigests) -> bool:
    """Whether one of these files is another one now."""
    for path, digest in before.items():
        file = Path(path)
        now = digests.sha256(file) if path.endswith(".py") else digests.data(file)
        if (now or MISSING) != digest:
            return True
    return False


def sources_state(target: Target, sources: Fingerprint) -> str:
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
        *(target.executor.configured() if target.executor else ()),
    ]
    return _digest([configured, sources.digest])


def _digest(value: object) -> str:
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:32]
