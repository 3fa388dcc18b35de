"""The two kinds of watchdog observers that are used, with what watchdog keeps to itself made known."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from watchdog.observers.api import BaseObserver
from watchdog.observers.inotify import InotifyEmitter
from watchdog.observers.inotify_c import InotifyFD
from watchdog.observers.polling import PollingObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from watchdog.observers.inotify_c import CallbackId, Mask, WatchCallback, WatchDescriptor

POLL_SECONDS = 1.0
LIMIT_ERRORS = frozenset({errno.ENOSPC, errno.EMFILE})


class _TellingInotify(InotifyFD):
    """Tells when a watch could not be placed because of a limit.

    watchdog raises that for the directory it was asked for, and is silent about those below it: their
    files would be unwatched without a sign.
    """

    def __init__(self, on_limit: Callable[[OSError], None]) -> None:
        super().__init__()
        self._on_limit = on_limit

    def add_callback(
        self, path: bytes, mask: Mask, callback: WatchCallback, id_: CallbackId
    ) -> WatchDescriptor:
        try:
            return super().add_callback(path, mask, callback, id_)
        except OSError as error:
            if error.errno in LIMIT_ERRORS:
                self._on_limit(error)
            raise


class _NativeObserver(BaseObserver):
    def __init__(self, inotify: InotifyFD) -> None:
        super().__init__(InotifyEmitter, inotify_fd=inotify)
        self._inotify = inotify

    def on_thread_stop(self) -> None:
        super().on_thread_stop()
        self._inotify.stop()
        if self._inotify.is_alive():
            self._inotify.join()


def native(on_limit: Callable[[OSError], None]) -> BaseObserver:
    """An observer on inotify; ``on_limit`` is called in its threads. Raises ``OSError``."""
    inotify = _TellingInotify(on_limit)
    inotify.start()
    return _NativeObserver(inotify)


def polling() -> BaseObserver:
    """An observer that looks at everything once a second."""
    return PollingObserver(timeout=POLL_SECONDS)
