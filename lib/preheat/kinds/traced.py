"""Graphs that were traced and not compiled: ``backend="eager"`` and ``backend="aot_eager"``.

Their code is Python that calls torch's operators. Tracing costs seconds for a large model, and a traced
program calls less Python; so it is worth keeping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preheat.kinds.interface import Made, Place
    from preheat.torch_internals.graph_capture import BackendCall


class _TracedKind:
    name = ""

    def prepare(self, made: Made) -> BackendCall:
        from preheat.image.values import UnportableError
        from preheat.torch_internals.graph_parts import check_complete

        if made.call is None:
            raise RefusedError(f"nothing was recorded of the graph {made.name!r}")
        try:
            check_complete(made.call)
        except UnportableError as error:
            raise RefusedError(str(error)) from error
        return made.call

    def write(self, prepared: BackendCall) -> bytes:
        from preheat.image.alone import TracedGraphs, encode_traced
        from preheat.torch_internals.traced_writer import traced_graphs

        constants, graphs = traced_graphs([prepared])
        return encode_traced(TracedGraphs(graphs=graphs, constants=constants))

    def load(self, data: bytes, place: Place) -> TracedCode:
        from preheat.image.alone import decode_traced

        return TracedCode(decode_traced(data), place.device)


class EagerKind(_TracedKind):
    """What Dynamo traced, operator by operator as the program calls them."""

    name = "eager"

    def describe(self) -> str:
        return "a graph that Dynamo traced, run operator by operator"


class AotEagerKind(_TracedKind):
    """What AOTAutograd traced of that: functional operators, with the backward pass as a graph."""

    name = "aot_eager"

    def describe(self) -> str:
        return "a graph that AOTAutograd traced, run operator by operator"


class TracedCode:
    """One traced graph, its backward graph included."""

    def __init__(self, graphs: Any, device: int) -> None:
        self._graphs = graphs
        self._device = device
        self._call: Callable[..., Any] | None = None

    def post_load(self) -> None:
        from preheat.image.graphs import load_traced

        self._call = load_traced(self._graphs, self._device)
        self._graphs = None

    def __call__(self, *args: Any) -> Any:
        assert self._call is not None, "post_load comes before the first call"
        return self._call(*args)

    def release(self) -> None:
        """It holds nothing but its constants, which go with it."""


TRACED: Sequence[str] = (EagerKind.name, AotEagerKind.name)
