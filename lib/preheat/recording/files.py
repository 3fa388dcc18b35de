"""Watching which files are opened or looked for, by an audit hook and a wrapper around ``os.stat``.

Seen: everything that opens through Python (``open``, ``os.open``, ``pathlib``, ``torch.load``,
``numpy.load``), shared libraries that are loaded by their path (``ctypes.CDLL``,
``torch.ops.load_library``), and ``exists``-like questions of user code. Not seen: files that compiled
libraries open by themselves (``safetensors``, SQLite), listings of directories, and other processes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from preheat.recording.callers import asked_by_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.sources.places import Places

_BYTECODE = ".pyc"
_WRITING = os.O_CREAT | os.O_TRUNC | os.O_APPEND


class FileReports(Protocol):
    """Who is told."""

    def read(self, path: Path) -> None:
        """A file is about to be read. It may not exist."""

    def written(self, path: Path) -> None:
        """A file is about to be written."""


class FileWatch:
    """Reports opened files while ``watching`` is entered. One audit hook serves all watches."""

    def __init__(self, places: Places, reports: FileReports) -> None:
        self._places = places
        self._reports = reports

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Report what happens inside the block, in all threads."""
        _install_hook()
        _watches.append(self)
        plain = os.stat
        os.stat = self._watched_stat(plain)
        try:
            yield
        finally:
            os.stat = plain
            _watches.remove(self)

    def opened(self, target: object, mode: object, flags: object) -> None:
        """The audit event ``open``; ``target`` may also be a descriptor."""
        path = _path(target)
        if path is None or path.suffix == _BYTECODE or not self._places.is_data(path):
            return
        if _writes(mode, flags):
            self._reports.written(path)
        elif path.is_file() or (self._places.in_project(path) and not path.exists()):
            self._reports.read(path)

    def loaded(self, target: object) -> None:
        """The audit event ``ctypes.dlopen``, of ``torch.ops.load_library`` as well.

        A bare name is looked for among the system's libraries.
        """
        if isinstance(target, (str, bytes)) and os.sep in os.fsdecode(target):
            self.opened(target, "r", None)

    def _watched_stat(self, plain: Any) -> Any:
        def stat(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(_busy, "on", False) and asked_by_user(self._places):
                with _quietly():
                    self._asked(path)
            return plain(path, *args, **kwargs)

        return stat

    def _asked(self, target: object) -> None:
        path = _path(target)
        if path is None or not self._places.in_project(path) or path.is_dir():
            return
        if path.suffix not in (_BYTECODE, ".py") or not path.exists():
            self._reports.read(path)


_watches: list[FileWatch] = []
_busy = threading.local()
_hook_lock = threading.Lock()
_hook_installed = False


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Files that this thread opens inside the block are not reported."""
    before = getattr(_busy, "on", False)
    _busy.on = True
    try:
        yield
    finally:
        _busy.on = before


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    # What goes wrong here must not become an error of the user's own open().
    with unwatched(), contextlib.suppress(OSError, ValueError):
        yield


def _install_hook() -> None:
    global _hook_installed
    with _hook_lock:
        if not _hook_installed:
            sys.addaudithook(_hook)  # can never be removed: it does nothing without watches
            _hook_installed = True


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watches or event not in ("open", "ctypes.dlopen") or getattr(_busy, "on", False):
        return
    with _quietly():
        for watch in tuple(_watches):
            if event == "open":
                watch.opened(*args)
            else:
                watch.loaded(*args)


def _path(target: object) -> Path | None:
    if isinstance(target, (str, bytes, os.PathLike)):
        # Links stay as they are written: a link that points elsewhere later is a change.
        return Path(os.path.abspath(os.fsdecode(target)))  # noqa: PTH100
    return None


def _writes(mode: object, flags: object) -> bool:
    if isinstance(flags, int) and flags & (os.O_ACCMODE | _WRITING) != os.O_RDONLY:
        return True
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")
