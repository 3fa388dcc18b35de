"""Build side: AOTAutograd's cache of compiled graphs answers the next build of the same graph.

Dynamo gives each graph that it compiles a random name, and torch makes that name a part of the cache's key
as soon as the graph is to go into a package: no build would ever find what another one has left. The
name decides nothing of what is compiled; what comes from the cache is filed under its new name by torch
itself. Every package passes its proof, wherever its graphs come from.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def graphs_found_again() -> Iterator[None]:
    """Leave the random name out of the cache's keys inside the block."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler

    original: Any = AOTAutogradCachePickler._reduce_aot_config

    def reduce(pickler: Any, config: Any) -> Any:
        return original(pickler, dataclasses.replace(config, precompile_backend_id=None))

    with replaced(AOTAutogradCachePickler, "_reduce_aot_config", reduce):
        yield
