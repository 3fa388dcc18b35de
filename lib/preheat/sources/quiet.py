"""Parsing text without the warnings that parsing may give, and without searches for garbage."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# warnings.catch_warnings swaps process-wide state; two of our own threads must not interleave it.
_lock = threading.Lock()


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """No warning from the block is shown or raised (under ``-W error`` one would be an exception).

    Not promised: what other threads do with warnings meanwhile; blocks of preheat wait for each other.
    """
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """The collector of garbage waits for the end of the block, which must be short.

    A syntax tree is thousands of objects that are all in use and then gone by themselves; the collector
    would look through them, and in a process with torch through a million others, again and again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
