"""The record that a build process collects, and its form in a manifest."""

from __future__ import annotations

import collections
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.manifest import DataFile, ModuleSource, Sources, Variable
from preheat.sources.check import variable_digest
from preheat.sources.digest import module_digest

if TYPE_CHECKING:
    from preheat.manifest import Digest


@dataclass(frozen=True, order=True)
class Executed:
    """A module and the file whose bytes were executed."""

    module: str
    path: Path
    file_sha256: Digest
    digest: Digest


@dataclass(frozen=True)
class Read:
    """A file that was read; ``sha256`` None: it was looked for and not there."""

    sha256: Digest | None
    size: int


class Snapshot:
    """Collects first sights: what is seen later under the same name never replaces them."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._executed: set[Executed] = set()
        self._executed_paths: set[Path] = set()
        self._bytes: dict[str, dict[Path, bytes]] = {}
        self._read: dict[Path, Read] = {}
        self._variables: dict[str, Digest | None] = {}
        self._written: set[Path] = set()

    def executed(self, module: str, path: Path, source: bytes) -> None:
        """A module's bytes are about to be executed. Executed again with other bytes, both count."""
        path = Path(os.path.abspath(path))  # noqa: PTH100 - keeps symbolic links
        sha256 = hashlib.sha256(source).hexdigest()
        self._executed_paths.add(path)
        self._bytes.setdefault(module, {})[path] = source
        self._executed.add(Executed(module, path, sha256, module_digest(source)))

    def has_executed(self, path: Path) -> bool:
        """Whether some module was executed from this file."""
        return path in self._executed_paths

    def executed_files(self) -> dict[Path, str]:
        """File -> module of everything that was executed."""
        return {one.path: one.module for one in sorted(self._executed)}

    def executed_sources(self) -> dict[str, tuple[Path, bytes]]:
        """Module -> its file and the bytes that were executed, of modules that were executed once."""
        counts = collections.Counter(one.module for one in self._executed)
        return {
            module: next(iter(files.items()))
            for module, files in sorted(self._bytes.items())
            if counts[module] == 1
        }

    def executed_texts(self) -> dict[Digest, bytes]:
        """The bytes that were executed, by their sha256."""
        every = (text for files in self._bytes.values() for text in files.values())
        return {hashlib.sha256(text).hexdigest(): text for text in every}

    def wants(self, path: Path) -> bool:
        """Whether reading this file says something new: not read before, not written by ourselves."""
        return path not in self._read and path not in self._written

    def read(self, path: Path, sha256: Digest | None, size: int = 0) -> None:
        """A file was opened for reading, or looked for in vain."""
        if self.wants(path):
            self._read[path] = Read(sha256, size)

    def written(self, path: Path) -> None:
        """The process writes this file: reading it afterwards is no dependency.

        A file that was looked for before and now is made by the process itself is forgotten; one
        that was read before stays, with the digest of then.
        """
        self._written.add(path)
        before = self._read.get(path)
        if before is not None and before.sha256 is None:
            del self._read[path]

    def variable(self, name: str, value: str | None) -> None:
        """An environment variable was asked for."""
        self._variables.setdefault(name, variable_digest(value))

    def sources(self) -> Sources:
        """The record so far, in a fixed order."""
        modules = [(*self._module_place(one), one) for one in sorted(self._executed)]
        known = [Path(root) for root in {root for root, *_ in modules} - {""}]
        files = [
            (*self._data_place(path, known), read)
            for path, read in sorted(self._read.items())
            if path not in self._executed_paths
        ]
        outside = sorted({root for root, *_ in (*modules, *files)} - {""})
        roots = ("", *outside)
        return Sources(
            roots=roots,
            modules=tuple(
                ModuleSource(
                    module=one.module,
                    root=roots.index(root),
                    path=path,
                    file_sha256=one.file_sha256,
                    digest=one.digest,
                )
                for root, path, one in modules
            ),
            data_files=tuple(
                DataFile(root=roots.index(root), path=path, sha256=read.sha256, size=read.size)
                for root, path, read in files
            ),
            variables=tuple(
                Variable(name=name, sha256=digest)
                for name, digest in sorted(self._variables.items())
            ),
        )

    def _module_place(self, one: Executed) -> tuple[str, str]:
        inside = self._inside(one.path)
        if inside is not None:
            return "", inside
        parts = one.module.split(".")
        depth = len(parts) + (1 if one.path.name == "__init__.py" else 0)
        shown = Path(*one.path.parts[-depth:])
        if tuple(part.removesuffix(".py") for part in shown.parts)[: len(parts)] != tuple(parts):
            shown = Path(one.path.name)  # a file that does not lie where its name says
        return str(Path(*one.path.parts[: -len(shown.parts)])), shown.as_posix()

    def _data_place(self, path: Path, known: list[Path]) -> tuple[str, str]:
        inside = self._inside(path)
        if inside is not None:
            return "", inside
        above = [root for root in known if path.is_relative_to(root)]
        root = max(above, key=lambda one: len(one.parts), default=path.parent)
        return str(root), path.relative_to(root).as_posix()

    def _inside(self, path: Path) -> str | None:
        """The path relative to the project, links followed only where that is needed."""
        if path.is_relative_to(self._project):
            return path.relative_to(self._project).as_posix()
        # Only the project's own links are followed: a link inside of it must stay itself.
        real = Path(os.path.realpath(path.parent)) / path.name
        project = self._project.resolve()
        return real.relative_to(project).as_posix() if real.is_relative_to(project) else None
