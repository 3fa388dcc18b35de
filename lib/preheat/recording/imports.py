"""Recording what import executes: the bytes themselves, and the places where it found nothing."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preheat.recording.callers import asked_by_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType, ModuleType

    from preheat.recording.recorder import Recorder
    from preheat.sources.places import Places


class RecordingLoader(SourceFileLoader):
    """Executes a source file and reports the very bytes; neither reads nor writes bytecode files."""

    def __init__(self, name: str, path: str, report: Callable[[str, Path, bytes], None]) -> None:
        super().__init__(name, path)
        self._report = report

    def get_code(self, fullname: str) -> CodeType:
        """Read, report, compile: in this order, so that a file that does not compile counts too."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        self._report(fullname, Path(path), source)
        code: CodeType = self.source_to_code(source, path)
        return code


class RecordingFinder:
    """Stands first among the path finders and lets the others find.

    User modules that Python's own loader would load get a ``RecordingLoader``. Those with another
    loader keep it and are recorded from their file. Not promised: seeing what a finder in front of
    this one finds; the recorder looks through ``sys.modules`` for those.
    """

    records_imports = True

    def __init__(self, recorder: Recorder, places: Places) -> None:
        self._recorder = recorder
        self._places = places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the finders behind this one find, with the loader exchanged."""
        spec = self._from_the_others(name, path, target)
        if (spec is not None and self._is_user(spec.origin)) or asked_by_user(self._places):
            self._note_absent(name, path, spec)
        return None if spec is None else self._recorded(spec)

    def _from_the_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            if hasattr(finder, "find_spec"):
                spec: ModuleSpec | None = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _recorded(self, spec: ModuleSpec) -> ModuleSpec:
        loader = spec.loader
        if spec.origin is None or not spec.has_location:
            self._note_namespace(spec)
        elif not self._is_user(spec.origin):
            pass
        elif type(loader) is SourceFileLoader:
            spec.loader = RecordingLoader(loader.name, loader.path, self._recorder.executed)
        elif spec.origin.endswith(".py") and Path(spec.origin).is_file():
            self._recorder.found_without_loader(spec.name, Path(spec.origin))
        else:
            # An extension module, bytecode without source, or a member of an archive.
            self._recorder.read(Path(getattr(loader, "archive", spec.origin)))
        return spec

    def _note_namespace(self, spec: ModuleSpec) -> None:
        """A namespace package: an ``__init__.py`` that appears would be executed."""
        for location in spec.submodule_search_locations or ():
            if self._places.in_project(location):
                self._recorder.absent([Path(location) / "__init__.py"])

    def _note_absent(self, name: str, path: Sequence[str] | None, spec: ModuleSpec | None) -> None:
        """Record the files that import would prefer to what it found, if they came to exist."""
        last = name.rpartition(".")[2]
        origin = None if spec is None else spec.origin
        found = None if origin is None else Path(origin)
        for entry in self._user_entries(sys.path if path is None else path):
            # A package wins over a module of the same name in the same directory.
            for candidate in (entry / last / "__init__.py", entry / f"{last}.py"):
                if candidate == found:
                    return
                self._recorder.absent([candidate])
            if found is not None and found.is_relative_to(entry / last):
                return
            if found is not None and found.parent == entry:
                return

    def _user_entries(self, entries: Iterable[str]) -> list[Path]:
        paths = [Path(entry).absolute() for entry in entries if isinstance(entry, str)]
        return [path for path in paths if self._places.in_project(path) and path.is_dir()]

    def _is_user(self, origin: str | None) -> bool:
        return (
            origin is not None
            and origin not in ("built-in", "frozen")
            and self._places.is_user_code(origin)
        )
