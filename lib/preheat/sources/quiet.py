"""Parsing text without the warnings that parsing may give."""

from __future__ import annotations

import contextlib
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
