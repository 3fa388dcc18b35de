"""The one place where load and state machine ask for a collection, and for a package with a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.errors import BusyError
from preheat.store.collection import Rules
from preheat.store.leases import LeasedPackage, read_leased

if TYPE_CHECKING:
    from preheat.store import DiskStore

# Only what a ref names, or somebody has loaded, is to stay.
NOTHING_EARLIER = 0


def collect(store: DiskStore, grace_seconds: float) -> int:
    """Collect all that no ref names and that is older than that. Says how many packages and objects went."""
    rules = Rules(keep_generations=NOTHING_EARLIER, grace_seconds=grace_seconds)
    try:
        return len(store.collector().collect(rules).deleted)
    except BusyError:
        return 0  # another one is at it


def read(store: DiskStore, target: str, environment: str) -> LeasedPackage | None:
    """As a worker reads it."""
    return read_leased(store, target, environment)
