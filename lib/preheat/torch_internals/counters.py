"""What torch itself counts in this process."""

from __future__ import annotations

import sys


def graphs_compiled() -> int:
    """How many graphs Dynamo compiled in this process; 0 where the compiler was never imported."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    return int(utils.counters["stats"]["unique_graphs"])
