"""What torch itself counts in this process."""

from __future__ import annotations

import sys
from typing import Any

# Where torch counts a cache's answers, by what the cache is called: group of counters, and prefix.
_CACHES = {
    "graphs of AOTAutograd": ("aot_autograd", "autograd_cache"),
    "graphs of Inductor": ("inductor", "fxgraph_cache"),
}


def graphs_compiled() -> int:
    """How many graphs Dynamo compiled in this process; 0 where the compiler was never imported."""
    counters = _counters()
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])


def cache_answers() -> dict[str, tuple[int, int]]:
    """How many graphs the compiler's caches had and had not, for each cache that was asked."""
    counters = _counters()
    if counters is None:
        return {}
    found = {
        name: (int(counters[group][f"{prefix}_hit"]), int(counters[group][f"{prefix}_miss"]))
        for name, (group, prefix) in _CACHES.items()
    }
    return {name: answers for name, answers in found.items() if any(answers)}


def _counters() -> Any:
    utils = sys.modules.get("torch._dynamo.utils")
    return None if utils is None else utils.counters
