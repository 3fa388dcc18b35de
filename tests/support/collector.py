"""The one place where load and state machine ask for a collection of what no ref names any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preheat.store import DiskStore

# Packages are collected as soon as nothing needs them.
WHY_NOT = "this version of preheat has no collection: only left-over temporary files are removed"


def collect(store: DiskStore) -> int | None:
    """Collect with the shortest grace that is safe; how many objects went, None where nothing can."""
    return None
