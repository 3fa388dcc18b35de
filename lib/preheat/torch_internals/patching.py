"""Replacing an attribute of torch for a while."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` inside the block.

    Raises ``AttributeError`` when ``owner`` does not define ``name`` itself: then torch has changed.
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner!r} defines no {name!r}: this torch is not one that is known")
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
