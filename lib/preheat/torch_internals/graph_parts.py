"""Build side: the graphs of an image in their order: forward graphs, then the backward ones they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preheat.image.values import UnportableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preheat.image.surroundings import Surroundings, Training
    from preheat.torch_internals.graph_capture import AnyGraph, BackendCall


def check_complete(call: BackendCall) -> None:
    """Raises ``UnportableError`` unless the call left one forward graph and what belongs to it."""
    backward = [graph for graph in call.graphs if graph.backward]
    if call.refusals:
        raise UnportableError("; ".join(dict.fromkeys(call.refusals)))
    if len(call.graphs) - len(backward) != 1 or len(call.surroundings) != 1:
        raise UnportableError("a graph was not compiled as a whole")
    if len(backward) != (call.training is not None):
        raise UnportableError("it is trained, and its backward pass cannot be compiled ahead")


def forward(call: BackendCall) -> AnyGraph:
    """The graph that bytecode calls."""
    return next(graph for graph in call.graphs if not graph.backward)


def backwards(calls: Sequence[BackendCall]) -> Iterator[AnyGraph]:
    """The backward graphs, in the order of their calls."""
    return (graph for call in calls for graph in call.graphs if graph.backward)


def joined(calls: Sequence[BackendCall]) -> Iterator[tuple[Surroundings, Training | None]]:
    """What is around each forward graph, with the position of its backward graph in the image."""
    position = len(calls)
    for call in calls:
        surroundings, training = call.surroundings[0], call.training
        if call.arguments:
            surroundings = msgspec.structs.replace(surroundings, arguments=call.arguments)
        if training is not None:
            training = msgspec.structs.replace(training, backward=position)
            position += 1
        yield surroundings, training
