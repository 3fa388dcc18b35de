"""Hints that something changed below some directories; the only module that touches watchdog.

Events only hint: they may be lost, doubled or about files that do not matter. Whoever is hinted looks
at the content. Lost events are told apart from none: an overflow of the kernel's queue and a watch
that could not be placed both ask for a rescan, and the second one for polling as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)

from preheatd import events, observers
from preheatd.mounts import needs_polling
from preheatd.settle import Burst
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from watchdog.observers.api import BaseObserver

    from preheatd.roots import Root

# Opened and closed-without-writing are left out: our own reads would wake us.
# Created is needed: a rename or link into the tree sends nothing else.
EVENT_FILTER: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileModifiedEvent,
    FileClosedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]

# watchdog says that the kernel dropped events only here, and that it could not rebuild its watches
# after that only there.
OVERFLOW_LOGGERS = ("watchdog.observers.inotify_c", "watchdog.observers.inotify")

_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances",
}
_MAX_PATHS = 20_000
# watchdog keeps an event for half a second, in case the other half of a move comes.
_ON_THEIR_WAY_SECONDS = 1.0
_IGNORED_SUFFIXES = (".pyc", ".pyo", "/__pycache__", "/.git")
_IGNORED_PARTS = ("/__pycache__/", "/.git/", "/.hg/")


@dataclasses.dataclass(frozen=True)
class Hints:
    """What was heard since the last time. ``rescan``: and more that was not heard."""

    paths: frozenset[str] = frozenset()
    rescan: bool = False


class Watcher:
    """Watches directories and collects hints; ``wait`` returns when there are some.

    ``native`` and ``polling`` make observers; ``native`` is given what to call when a watch could not
    be placed. ``ignored``: directories whose events do not matter, such as the store. ``count``: how
    many touched paths were heard of so far.
    """

    def __init__(
        self,
        emit: events.Emit,
        *,
        ignored: Iterable[str] = (),
        native: Callable[[Callable[[OSError], None]], BaseObserver] = observers.native,
        polling: Callable[[], BaseObserver] = observers.polling,
        is_remote: Callable[[str], bool] = needs_polling,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._emit = emit
        self._ignored = tuple(f"{path}/" for path in ignored)
        self._native, self._polling, self._is_remote = native, polling, is_remote
        self._clock = clock
        self._heard = asyncio.Event()
        self._paths: set[str] = set()
        self._first = self._latest = 0.0
        self._rescan = False
        self.count = 0
        self._limit: OSError | None = None
        self._observers: list[BaseObserver] = []
        self._roots: tuple[Root, ...] = ()
        self._retiring: dict[asyncio.Task[None], list[BaseObserver]] = {}
        self._handler = _Handler(self._note)
        self._log_handler = _OverflowHandler(self._overflowed)
        for name in OVERFLOW_LOGGERS:
            logging.getLogger(name).addHandler(self._log_handler)

    @property
    def mode(self) -> str:
        """``native``, or ``polling`` since a limit was met; ``off`` before the first ``arm``."""
        if not self._observers:
            return "off"
        return "native" if self._limit is None else "polling"

    @property
    def is_alive(self) -> bool:
        """Whether every thread that has to listen is running."""
        return bool(self._observers) and all(
            observer.is_alive() and all(emitter.is_alive() for emitter in observer.emitters)
            for observer in self._observers
        )

    async def arm(self, roots: Sequence[Root]) -> None:
        """Watch exactly these directories from now on. What happened before is for the caller to scan.

        The new watches are placed before the old ones are taken away, so nothing falls between; when
        it raises ``OSError``, the old ones stay.
        """
        await uncancelled(self._replace(tuple(roots)))
        self._emit(
            events.Event(
                action=events.WATCH_ARMED, detail=f"{len(self._roots)} directories, {self.mode}"
            )
        )

    async def _replace(self, roots: tuple[Root, ...]) -> None:
        new = await asyncio.to_thread(self._place, roots)
        old, self._observers, self._roots = self._observers, new, roots
        if old:
            # Events from before the new watches may still be on their way through the old ones.
            task = asyncio.create_task(self._retire(old), name="old watches")
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, old: list[BaseObserver]) -> None:
        await asyncio.sleep(_ON_THEIR_WAY_SECONDS)
        await asyncio.to_thread(_stop, old)

    async def wait(self) -> None:
        """Return as soon as there are hints."""
        await self._heard.wait()

    def burst(self) -> Burst:
        """The hints so far, as ``settle`` wants them."""
        return Burst(self._first, self._latest, len(self._paths))

    def take(self) -> Hints:
        """The hints so far; those that come later are for the next time."""
        self._heard.clear()
        paths, self._paths = self._paths, set()
        rescan, self._rescan = self._rescan, False
        return Hints(frozenset(paths), rescan or len(paths) >= _MAX_PATHS)

    def moved_roots(self, paths: Iterable[str]) -> bool:
        """Whether a watched directory itself came, went or moved: then ``arm`` again."""
        roots = {str(root.path) for root in self._roots}
        return any(path in roots for path in paths)

    async def close(self) -> None:
        """Stop watching. Hints that come meanwhile are dropped."""
        for name in OVERFLOW_LOGGERS:
            logging.getLogger(name).removeHandler(self._log_handler)
        old, self._observers = self._observers, []
        for task, retiring in list(self._retiring.items()):
            task.cancel()
            old += retiring
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await asyncio.to_thread(_stop, old)

    # Called in other threads from here on.

    def _place(self, roots: tuple[Root, ...]) -> list[BaseObserver]:
        remote = [root for root in roots if self._is_remote(str(root.path))]
        local = [root for root in roots if root not in remote]
        placed: list[BaseObserver] = []
        if self._limit is None and local:
            native = self._start(self._native_observer, local)
            if native is not None:
                placed.append(native)
        if self._limit is not None:
            # Found while placing, perhaps on a directory far down: watchdog itself goes on without it.
            _stop(placed)
            placed, remote = [], list(roots)
        if remote:
            poller = self._start(self._polling, remote)
            if poller is not None:
                placed.append(poller)
        return placed

    def _native_observer(self) -> BaseObserver:
        return self._native(self._met_limit)

    def _start(
        self, make: Callable[[], BaseObserver], roots: Iterable[Root]
    ) -> BaseObserver | None:
        observer: BaseObserver | None = None
        try:
            observer = make()
            observer.start()
            for root in roots:
                self._schedule(observer, root)
        except OSError as error:
            if observer is not None:
                _stop([observer])
            if error.errno not in _LIMITS:
                raise
            self._met_limit(error)
            return None
        return observer

    def _schedule(self, observer: BaseObserver, root: Root) -> None:
        try:
            observer.schedule(
                self._handler, str(root.path), recursive=root.recursive, event_filter=EVENT_FILTER
            )
        except (FileNotFoundError, NotADirectoryError):
            # Gone since it was chosen; its parent is watched too and will tell when it is back.
            self._call(self._ask_for_rescan)

    def _met_limit(self, error: OSError) -> None:
        if self._limit is None:
            self._limit = error
            self._call(self._report_limit, error)

    def _note(self, path: str) -> None:
        # On the observer's thread: a slow handler lets watchdog's queue grow without bound.
        if self._is_ignored(path):
            return
        self._call(self._hear, path)

    def _overflowed(self, message: str) -> None:
        self._call(self._report_overflow, message)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _is_ignored(self, path: str) -> bool:
        return (
            path.endswith(_IGNORED_SUFFIXES)
            or any(part in path for part in _IGNORED_PARTS)
            or f"{path}/".startswith(self._ignored)
        )

    # Called in the loop again.

    def _hear(self, path: str) -> None:
        self._latest = self._clock()
        self.count += 1
        if not self._heard.is_set():
            self._first = self._latest
            self._heard.set()
        if len(self._paths) < _MAX_PATHS:
            self._paths.add(path)

    def _ask_for_rescan(self) -> None:
        self._rescan = True
        if not self._heard.is_set():
            self._first = self._latest = self._clock()
            self._heard.set()

    def _report_overflow(self, message: str) -> None:
        self._emit(events.Event(action=events.WATCH_OVERFLOW, detail=f"{message}: rescanning"))
        self._ask_for_rescan()

    def _report_limit(self, error: OSError) -> None:
        setting = _LIMITS[error.errno or errno.ENOSPC]
        detail = (
            f"{os.strerror(error.errno or errno.ENOSPC)}: the kernel's limit {setting} is used up. "
            f"Raise it with `sysctl {setting}=...`. Polling until the next start."
        )
        self._emit(events.Event(action=events.WATCH_POLLING, detail=detail))
        self._ask_for_rescan()


def _stop(observers_: Iterable[BaseObserver]) -> None:
    for observer in observers_:
        observer.stop()
        if observer.is_alive():
            observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def on_any_event(self, event: FileSystemEvent) -> None:
        # An atomic save names the real file only as the destination of a move.
        for path in (event.src_path, event.dest_path):
            if path:
                self._note(os.fsdecode(path))


class _OverflowHandler(logging.Handler):
    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())
