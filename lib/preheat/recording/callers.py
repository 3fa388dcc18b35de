"""Who asked: the nearest frame that is not plumbing of the standard library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from preheat.sources.places import Places

_PLUMBING = frozenset(
    {"_collections_abc", "collections.abc", "genericpath", "ntpath", "os", "posixpath"}
)
_PLUMBING_PACKAGES = ("importlib", "_frozen_importlib", "pathlib", "preheat.recording")


def asked_by_user(places: Places) -> bool:
    """Whether user code made the current call, directly or through the standard library's plumbing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_plumbing(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return False
    file: object = frame.f_code.co_filename
    if str(file).startswith("<"):  # made by exec(): its globals tell whose it is
        file = frame.f_globals.get("__file__")
    return isinstance(file, str) and places.is_user_code(file)


def _is_plumbing(name: object) -> bool:
    return isinstance(name, str) and (
        name in _PLUMBING
        or any(name == one or name.startswith(f"{one}.") for one in _PLUMBING_PACKAGES)
        or name == "_frozen_importlib_external"
    )
