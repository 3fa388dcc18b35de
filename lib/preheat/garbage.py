"""Work that makes many objects at once, without searches for garbage in the middle of it."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Python's collector of garbage waits for the end of the block, which must be short.

    The thousands of objects of a syntax tree, an import or an image are all in use, or gone by themselves;
    the collector would look through them, and in a process with torch through 200,000 others, for longer
    than the work itself takes. Not promised: that it stays off when another thread switches it on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
