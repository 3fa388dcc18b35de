"""Whether anything that a package depends on changed, and what: content decides, never times."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.sources.files import UNREADABLE, FileDigests
from preheat.sources.locate import project_directory, root_directory
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from preheat.manifest import DataFile, Digest, ModuleSource, Sources, Variable
    from preheat.sources.compare import Change
    from preheat.sources.locate import Locate
    from preheat.sources.recorded import UsableClosure
    from preheat.sources.selection import Surroundings
    from preheat.sources.units import ModuleUnits


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
    ``os.environ``. Kinds of reasons: ``symbol_edited``, ``symbol_deleted``, ``symbol_added``,
    ``order_changed``, ``module_edited``, ``module_deleted``, ``module_shadowed``, ``data_changed``,
    ``data_deleted``, ``data_appeared``, ``variable_changed``.

    With a closure in the snapshot, of a file that changed only the pieces in the closure count; without
    one, or where a module's parts cannot be told apart, the whole module does (``module_edited``).

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


def recorded_path(sources: Sources, project: Path | None, root: int, path: str) -> Path | None:
    """Where a recorded file lies, or None where that depends on a project that was not found."""
    if project is not None:
        return root_directory(sources, project, root) / path
    where = Path(sources.roots[root]) / path
    return where if where.is_absolute() else None


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
        self._elsewhere: set[Path] = set()
        self._locator: Hashable = getattr(locate, "key", None)

    @functools.cached_property
    def _closure(self) -> UsableClosure | None:
        # Workers whose files are unchanged never get here, nor to the imports below.
        from preheat.sources.recorded import usable_closure

        return usable_closure(self._sources)

    def modules(self) -> tuple[Reason, ...]:
        """Packages that know the same of the same files share the answer, at one moment."""
        closure, shared = self._sources.closure, self._digests.shared
        if shared is None or closure is None or not closure.state or self._locator is None:
            return tuple(self._modules())
        sources = self._sources
        key = (self._locator, self._project, closure.state, sources.roots, sources.modules)
        if key not in shared:
            shared[key] = tuple(self._modules()), frozenset(self._elsewhere)
        reasons, elsewhere = shared[key]
        self._elsewhere.update(elsewhere)
        return reasons

    def _modules(self) -> Iterator[Reason]:
        for module in self._sources.modules:
            place = self._place(module)
            if place[2] != module.file_sha256 or place[1] is not place[0]:
                yield from self._module(module, *place)

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

    def _place(self, module: ModuleSource) -> tuple[Path | None, Path | None, Digest | None]:
        """Where the build found a module, where it is now, and the digest of what is there."""
        key, places = None, self._digests.places
        if places is not None and self._locator is not None:
            root = self._sources.roots[module.root]
            key = (self._locator, self._project, root, module.path, module.module)
            known = places.get(key)
            if known is not None:
                return known
        recorded = self._recorded(module.root, module.path)
        path = self._locate(module)
        if path is None or path == recorded:
            path = recorded
        place = (recorded, path, None if path is None else self._digests.sha256(path))
        if places is not None and key is not None:
            places[key] = place
        return place

    def _module(
        self, module: ModuleSource, recorded: Path | None, path: Path | None, digest: Digest | None
    ) -> Iterator[Reason]:
        if path is None or digest is None:
            file = module.path if recorded is None else self._name(recorded)
            yield Reason(kind="module_deleted", file=file, symbol=module.module)
            return
        if path is not recorded:
            self._elsewhere.add(path)
        if digest == module.file_sha256 and path.name == Path(module.path).name:
            return  # as a package instead of a module, the same text may import other things
        if digest == UNREADABLE:
            yield self._whole(module, path, "cannot be read")
        elif recorded is not None and path is not recorded and recorded.is_file():
            if any(self._changes(module, path, digest)):
                detail = f"import finds this file before {self._name(recorded)}"
                yield Reason(
                    kind="module_shadowed",
                    file=self._name(path),
                    symbol=module.module,
                    detail=detail,
                )
        else:
            yield from self._changes(module, path, digest)

    def _changes(self, module: ModuleSource, path: Path, digest: Digest) -> Iterator[Reason]:
        """What differs in a file whose bytes differ."""
        closure = self._closure
        units = None if closure is None else closure.units.get(module.module)
        if closure is None or units is None or units.whole is not None:
            if self._digests.module(path) != module.digest:
                yield self._whole(module, path, "")
            return
        if closure.text:
            yield self._whole(module, path, "the program reads its own text")
            return
        from preheat.sources.recorded import change_reason

        for change in self._compared(units, path, digest, closure.around):
            if change.symbol is None and change.kind == "module_edited":
                yield self._whole(module, path, change.detail)
            else:
                yield change_reason(change, module.module, self._name(path))

    def _compared(
        self, units: ModuleUnits, path: Path, digest: Digest, around: Surroundings
    ) -> tuple[Change, ...]:
        """The changes of one module; packages that know the same of it share the answer."""
        package = path.name == "__init__.py"
        key = (units.state, digest, package)
        known = self._digests.changes.get(key) if units.state else None
        if known is None:
            from preheat.sources.compare import file_changes

            known = file_changes(units, path, self._digests, around)
            self._digests.changes[key] = known
        return known

    def _whole(self, module: ModuleSource, path: Path, detail: str) -> Reason:
        return Reason(
            kind="module_edited", file=self._name(path), symbol=module.module, detail=detail
        )

    def _data(self, data: DataFile, path: Path) -> Reason | None:
        digest = self._digests.data(path)
        if digest == data.sha256:
            return None
        if data.sha256 is None:
            if self._closure is not None and path in self._elsewhere:
                return None  # a recorded module lies there now, and was compared
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
        return recorded_path(self._sources, self._project, root, path)

    def _name(self, path: Path) -> str:
        return recognisable(path, self._project)
