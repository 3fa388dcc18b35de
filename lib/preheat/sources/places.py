"""Which files are user code, which are data of the program, and which are neither: by location."""

from __future__ import annotations

import enum
import os
import site
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - only compared with, never written to
_CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
# Installed for development these lie anywhere; they are libraries all the same.
_LIBRARIES = ("preheat", "preheatd", "torch", "triton")


class Kind(enum.Enum):
    """What lies below a directory."""

    PROJECT = "project"
    LIBRARY = "library"
    SYSTEM = "system"
    IGNORED = "ignored"
    ELSEWHERE = "elsewhere"


class Places:
    """Directories by kind; the deepest one above a file decides.

    So a project may lie in the temporary directory or below ``site-packages``, and the interpreter's
    own virtual environment, a store or a cache may lie in the project. A path is taken as it is
    written; where that says nothing, with its symbolic links followed.
    """

    def __init__(self, kinds: Iterable[tuple[Path, Kind]]) -> None:
        self._kinds: dict[Path, Kind] = {}
        for directory, kind in kinds:
            for form in (Path(os.path.abspath(directory)), directory.resolve()):  # noqa: PTH100
                self._kinds[form] = kind
        self._known: dict[str, Kind] = {}

    @classmethod
    def of_this_process(
        cls, project: Path, *, search_path: Iterable[Path] = (), ignored: Iterable[Path] = ()
    ) -> Places:
        """The places of the running interpreter.

        ``search_path``: directories that hold user code besides the project. ``ignored``: directories
        whose files never count (caches, staging).
        """
        return cls(
            [
                *((path, Kind.SYSTEM) for path in _system_directories()),
                *((path, Kind.IGNORED) for path in _temporary_directories()),
                *((path, Kind.PROJECT) for path in search_path),
                *((path, Kind.LIBRARY) for path in _library_directories()),
                (project, Kind.PROJECT),
                *((path, Kind.IGNORED) for path in ignored),
            ]
        )

    def kind(self, path: str | Path) -> Kind:
        """The kind of the deepest listed directory above ``path``."""
        known = self._known.get(str(path))
        if known is None:
            found = self._lookup(Path(os.path.abspath(path)))  # noqa: PTH100 - keeps symlinks
            if found is Kind.ELSEWHERE:
                found = self._lookup(Path(path).resolve())
            known = self._known[str(path)] = found
        return known

    def is_user_code(self, path: str | Path) -> bool:
        """Whether a source file is the user's: not a library's, and not in an ignored directory."""
        return self.kind(path) not in (Kind.LIBRARY, Kind.IGNORED)

    def is_data(self, path: str | Path) -> bool:
        """Whether a file that was read counts as data of the program."""
        return self.kind(path) in (Kind.PROJECT, Kind.ELSEWHERE)

    def in_project(self, path: str | Path) -> bool:
        """Whether a path is below the project or the search path, and counts."""
        return self.kind(path) is Kind.PROJECT

    def _lookup(self, path: Path) -> Kind:
        for directory in (path, *path.parents):
            kind = self._kinds.get(directory)
            if kind is not None:
                return kind
        return Kind.ELSEWHERE


def _system_directories() -> Iterator[Path]:
    yield from map(Path, _SYSTEM)
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        yield Path(prefix)


def _temporary_directories() -> Iterator[Path]:
    yield from map(Path, (*_TEMPORARY, tempfile.gettempdir()))
    yield Path(os.path.expanduser("~/.triton"))  # noqa: PTH111 - Path.home() may raise
    for name in _CACHE_VARIABLES:
        if os.environ.get(name):
            yield Path(os.environ[name])


def _library_directories() -> Iterator[Path]:
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name))
    for installed in (*site.getsitepackages(), site.getusersitepackages()):
        yield Path(installed)
    # A virtual environment may take in another one's libraries.
    yield from (Path(e) for e in sys.path if Path(e).name in ("site-packages", "dist-packages"))
    for prefix in (sys.prefix, sys.base_prefix):
        yield Path(prefix) / "lib"
        yield Path(prefix) / "lib64"
    for name in _LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str):
            yield Path(file).parent
