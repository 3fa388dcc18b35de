"""Build side: whether a graph of a lean image is captured as one CUDA graph in the worker, or why not.

torch's own reasons come first; a graph that torch would capture in parts, or as a part of a tree with other
graphs, runs without.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("preheat.build")


def captured(graph: Any, options: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The static inputs of a graph (torch's ``CompiledFxGraph``) that is captured; None for others.

    ``options`` are what Inductor was called with. The reason against it goes to the log of the build.
    """
    static = tuple(graph.fx_kwargs.get("static_input_idxs") or ())
    why = _why_not(graph, options, static)
    if why is None:
        return static
    if why:
        _log.warning("A graph runs without CUDA graphs in the lean form: %s.", why)
    return None


def _why_not(graph: Any, options: Mapping[str, Any], static: tuple[int, ...]) -> str | None:
    """None for a graph that is captured; "" where nobody asked for it."""
    if graph.disabled_cudagraphs_reason:
        return str(graph.disabled_cudagraphs_reason)
    if not options.get("cudagraphs") or graph.cudagraph_info is None:
        return ""
    if graph.cudagraph_info.cudagraph_fail_reasons:
        return ", ".join(graph.cudagraph_info.cudagraph_fail_reasons)
    if not graph.fx_kwargs.get("is_inference"):
        return "what its backward pass needs would have to outlive the next call"
    if len(graph.partition_maps or ()) > 1:
        return f"torch captures it in {len(graph.partition_maps)} partitions"
    if set(graph.device_types) != {"cuda"}:
        return f"it has operations on {', '.join(sorted(set(graph.device_types) - {'cuda'}))}"
    if not set(graph.mutated_input_idxs) <= set(static):
        return "it changes an input in place that is no parameter or buffer"
    return None
