"""The recorder: everything that a build process executes, reads and asks for, from user code's side."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from preheat.recording.calls import CallWatch, watching_calls
from preheat.recording.files import FileWatch, unwatched
from preheat.recording.imports import RecordingFinder
from preheat.recording.snapshot import Snapshot
from preheat.recording.variables import watching_variables
from preheat.sources.check import check
from preheat.sources.files import FileDigests
from preheat.sources.locate import find_module, project_locator
from preheat.sources.places import Places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from preheat.manifest import Digest, Sources
    from preheat.sources.units import Closure
    from preheat.verdict import Reason


class Recorder:
    """Records the snapshot of one build.

    Install it (``with``, or ``install`` and ``finish``) before any user code is imported. A module is
    recorded by the bytes that were executed, so an edit during the build cannot hide: the snapshot
    keeps what ran, and every later comparison with the disk names the edit.

    ``search_path``: directories of user code besides the project; ``ignore``: directories whose files
    never count, such as staging and caches; ``variables``: names that count in any case.

    Not promised: code that is executed without import and without a file (``exec`` of computed text),
    and what ``preheat.recording.files`` and ``.variables`` say they do not see. Only one recorder can
    be installed in a process at a time.
    """

    def __init__(
        self,
        project: Path,
        *,
        search_path: Iterable[str | Path] = (),
        ignore: Iterable[str | Path] = (),
        variables: Iterable[str] = (),
    ) -> None:
        self._project = Path(os.path.abspath(project))  # noqa: PTH100 - keeps symbolic links
        self._places = Places.of_this_process(
            self._project,
            search_path=[self._project / entry for entry in search_path],
            ignored=[self._project / entry for entry in ignore],
        )
        self._names = tuple(variables)
        self._snapshot = Snapshot(self._project)
        self._digests = FileDigests()
        self._finder = RecordingFinder(self, self._places)
        self._late: dict[str, Path] = {}
        self._recording = False

    @property
    def late_modules(self) -> tuple[str, ...]:
        """User modules that are recorded from their file and not by the bytes that were executed.

        Those imported before the recorder was installed, or by an import hook of the user's own. For
        these alone an edit during the build can hide.
        """
        return tuple(sorted(self._late))

    def install(self) -> None:
        """Begin to record imports and the given variables."""
        for name in self._names:
            self._snapshot.variable(name, os.environ.get(name))
        self._recording = True
        self._sweep()
        finders: list[Any] = sys.meta_path
        place = finders.index(PathFinder) if PathFinder in finders else len(finders)
        finders.insert(place, self._finder)

    def finish(self) -> None:
        """Stop recording; user modules that nobody reported are taken from ``sys.modules``."""
        if self._recording:
            self._sweep()
            self._recording = False
            sys.meta_path[:] = [one for one in sys.meta_path if one is not self._finder]

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    @contextlib.contextmanager
    def watching_files(self) -> Iterator[None]:
        """Record the files and environment variables that are asked for inside the block as well.

        For the import and the construction of the target, not for tracing or compilation.
        """
        watch = FileWatch(self._places, self)
        with watching_variables(self._places, self._snapshot.variable), watch.watching():
            yield

    def sources(self) -> Sources:
        """The snapshot so far. Deterministic: the same record gives the same value."""
        if self._recording:
            self._sweep()
        return self._snapshot.sources()

    def executed_files(self) -> dict[Path, str]:
        """The files of user modules, absolute, each with the name of its module."""
        return self._snapshot.executed_files()

    def executed_sources(self) -> dict[str, tuple[Path, bytes]]:
        """Module -> its file and the very bytes that were executed; for ``find_closure``.

        Modules that were executed twice, with different bytes or from two files, are left out.
        """
        if self._recording:
            self._sweep()
        return self._snapshot.executed_sources()

    def executed_texts(self) -> dict[Digest, bytes]:
        """The bytes that were executed, by their sha256."""
        return self._snapshot.executed_texts()

    def variables(self, names: Iterable[str]) -> None:
        """Record environment variables that turned out to count, with their values of now."""
        for name in names:
            self._snapshot.variable(name, os.environ.get(name))

    @contextlib.contextmanager
    def watching_calls(self) -> Iterator[CallWatch]:
        """Collect which functions of user modules run inside the block, in all threads.

        For the import, the construction and the eager runs; never around tracing or compilation.
        """
        with watching_calls() as watch:
            yield watch

    def unchanged(self, closure: Closure | None = None) -> tuple[Reason, ...]:
        """Compare the snapshot with the disk and the environment now. Empty: unchanged.

        With the ``closure``, edits outside of it are no change.
        """
        sources = self.sources()
        if closure is not None:
            sources = msgspec.structs.replace(sources, closure=closure)
        with unwatched():
            return check(
                sources,
                project_locator(self._project),
                project=self._project,
                digests=self._digests,
            )

    def executed(self, module: str, path: Path, source: bytes) -> None:
        """A module's bytes are about to be executed."""
        if self._recording:
            self._snapshot.executed(module, path, source)

    def found_without_loader(self, module: str, path: Path) -> None:
        """A module will be executed by a loader that does not tell what it reads."""
        if self._recording:
            self._from_file(module, path)

    def read(self, path: Path) -> None:
        """A file is about to be read or was looked for: its digest is taken now."""
        if self._snapshot.wants(path):
            with unwatched():
                sha256 = self._digests.data(path)
                self._snapshot.read(path, sha256, 0 if sha256 is None else self._digests.size(path))

    def absent(self, paths: Iterable[Path]) -> None:
        """Files that import looks for: those that do not exist are recorded as missing."""
        for path in paths:
            if not path.exists():
                self._snapshot.read(path, None)

    def written(self, path: Path) -> None:
        """The process itself writes this file."""
        self._snapshot.written(path)

    def _sweep(self) -> None:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            # Some modules that are made by hand carry a bare file name: those have no file.
            if not isinstance(file, str) or not file.endswith(".py") or not os.path.isabs(file):  # noqa: PTH117
                continue
            path = Path(os.path.normpath(file))
            if self._places.is_user_code(path) and not self._snapshot.has_executed(path):
                self._from_file(name, path)

    def _from_file(self, name: str, path: Path) -> None:
        self._late[name] = path
        with unwatched(), contextlib.suppress(OSError):
            if find_module(name) == path:
                self._snapshot.executed(name, path, path.read_bytes())
            else:
                # No other process would find it by this name (``__main__``, or loaded by hand).
                self.read(path)
