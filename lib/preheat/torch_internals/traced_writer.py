"""Build side: traced graphs as the records of an image."""

from __future__ import annotations

import itertools
import marshal
from typing import TYPE_CHECKING

import msgspec

from preheat.image.constants import write_constants
from preheat.image.format import Graph
from preheat.image.surroundings import Surroundings
from preheat.torch_internals.graph_capture import CustomGraph, TracedGraph
from preheat.torch_internals.graph_parts import backwards, forward, joined
from preheat.torch_internals.traced_source import ENTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preheat.image.format import ConstantTensor
    from preheat.image.surroundings import Training
    from preheat.torch_internals.graph_capture import AnyGraph, BackendCall


def traced_graph(
    graph: AnyGraph,
    surroundings: Surroundings,
    training: Training | None,
    constants: tuple[ConstantTensor, ...],
) -> Graph:
    """The record of a graph that Inductor did not make."""
    if isinstance(graph, CustomGraph):
        return _graph(graph.kind, graph.data, surroundings)
    assert isinstance(graph, TracedGraph)
    return msgspec.structs.replace(
        _graph(graph.kind, marshal.dumps(graph.source.code), surroundings),
        names=graph.source.names,
        constants=constants,
        training=training,
    )


def _graph(kind: str, code: bytes, surroundings: Surroundings) -> Graph:
    return Graph(
        kind=kind,
        code=code,
        entry=ENTRY,
        kernels=(),
        names=(),
        standins=(),
        constants=(),
        aligned=(),
        mutated=(),
        surroundings=surroundings,
    )


def traced_graphs(calls: Sequence[BackendCall]) -> tuple[bytes, tuple[Graph, ...]]:
    """The constants' bytes and the records: forward graphs, then backward ones."""
    graphs = [*(forward(call) for call in calls), *backwards(calls)]
    constants, tensors = write_constants([graph.constants for graph in graphs])
    around = itertools.chain(joined(calls), itertools.repeat((Surroundings(), None)))
    records = (
        traced_graph(graph, *parts, records)
        for graph, parts, records in zip(graphs, around, tensors, strict=False)
    )
    return constants, tuple(records)
