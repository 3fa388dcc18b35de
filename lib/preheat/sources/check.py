"""Whether anything that a package depends on changed, and what: content decides, never times."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.sources.files import UNREADABLE, FileDigests
from preheat.sources.locate import project_directory, root_directory
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preheat.manifest import DataFile, Digest, ModuleSource, Sources, Variable
    from preheat.sources.locate import Locate


def check(
    sources: Sources,
    locate: Locate,
    *,
    project: Path | None = None,
    digests: FileDigests | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Reason, ...]:
    """Compare a snapshot with the present. An empty tuple: unchanged.

    ``locate`` says where a module's file is now; where it does not know, the recorded place counts.
    ``project`` is where the project lies now; by default it is told from the modules' places. Pass the
    same ``digests`` again and again to read only files that changed. ``environ``: default
    ``os.environ``. Kinds of reasons: ``module_edited``, ``module_deleted``, ``module_shadowed``,
    ``data_changed``, ``data_deleted``, ``data_appeared``, ``variable_changed``.

    Raises nothing for files that cannot be read: they count as changed. Not promised: that a module
    imported before an edit is the one on disk (``edited_since_start`` is for that).
    """
    checker = _Checker(
        sources,
        locate,
        project_directory(sources, locate) if project is None else project,
        FileDigests() if digests is None else digests,
    )
    variables = os.environ if environ is None else environ
    return (*checker.modules(), *checker.data_files(), *_variables(sources.variables, variables))


def variable_digest(value: str | None) -> Digest | None:
    """How a variable's value is recorded; None stands for a variable that is not set.

    Not promised: secrecy of values that are few enough to be tried one by one.
    """
    if value is None:
        return None
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def recognisable(path: Path, project: Path | None) -> str:
    """A path as a person knows it: relative to the project where it lies below it."""
    if project is not None and path.is_relative_to(project):
        return str(path.relative_to(project))
    return str(path)


def _variables(variables: tuple[Variable, ...], environ: Mapping[str, str]) -> Iterator[Reason]:
    for variable in variables:
        now = variable_digest(environ.get(variable.name))
        if now != variable.sha256:
            what = "not set now" if now is None else "set to another value"
            detail = "set now, was not" if variable.sha256 is None else what
            yield Reason(kind="variable_changed", symbol=variable.name, detail=detail)


class _Checker:
    """One comparison: the arguments of ``check`` with their defaults filled in."""

    def __init__(
        self, sources: Sources, locate: Locate, project: Path | None, digests: FileDigests
    ) -> None:
        self._sources = sources
        self._locate = locate
        self._project = project
        self._digests = digests

    def modules(self) -> Iterator[Reason]:
        for module in self._sources.modules:
            reason = self._module(module)
            if reason is not None:
                yield reason

    def data_files(self) -> Iterator[Reason]:
        for data in self._sources.data_files:
            path = self._recorded(data.root, data.path)
            if path is None:
                yield Reason(
                    kind="data_deleted", file=data.path, detail="the project was not found"
                )
                continue
            reason = self._data(data, path)
            if reason is not None:
                yield reason

    def _module(self, module: ModuleSource) -> Reason | None:
        recorded = self._recorded(module.root, module.path)
        path = self._locate(module) or recorded
        digest = None if path is None else self._digests.sha256(path)
        if path is None or digest is None:
            file = module.path if recorded is None else self._name(recorded)
            return Reason(kind="module_deleted", file=file, symbol=module.module)
        if digest == module.file_sha256 or self._digests.module(path) == module.digest:
            return None
        detail = "cannot be read" if digest == UNREADABLE else ""
        kind = "module_edited"
        if recorded is not None and path != recorded and recorded.is_file():
            kind = "module_shadowed"
            detail = f"import finds this file before {self._name(recorded)}"
        return Reason(kind=kind, file=self._name(path), symbol=module.module, detail=detail)

    def _data(self, data: DataFile, path: Path) -> Reason | None:
        digest = self._digests.data(path)
        if digest == data.sha256:
            return None
        if data.sha256 is None:
            return self._appeared(path)
        kind = "data_deleted" if digest is None else "data_changed"
        detail = "cannot be read" if digest == UNREADABLE else ""
        return Reason(kind=kind, file=self._name(path), detail=detail)

    def _appeared(self, path: Path) -> Reason:
        if path.suffix == ".py":
            detail = "import finds this file now; it was not there"
            return Reason(kind="module_shadowed", file=self._name(path), detail=detail)
        return Reason(kind="data_appeared", file=self._name(path))

    def _recorded(self, root: int, path: str) -> Path | None:
        if self._project is not None:
            return root_directory(self._sources, self._project, root) / path
        where = Path(self._sources.roots[root]) / path
        return where if where.is_absolute() else None

    def _name(self, path: Path) -> str:
        return recognisable(path, self._project)
