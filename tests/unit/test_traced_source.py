"""Traced graphs as Python text: what they hold and name travels, or refuses the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from preheat.errors import CorruptedError, IncompatibleError, RefusedError
from preheat.formats import KINDS, other_format, unknown_kind
from preheat.image.alone import TracedGraphs, decode_traced, encode_traced
from preheat.image.graphs import load_traced
from preheat.image.values import UnportableError
from preheat.kinds import registry
from preheat.manifest import Form
from preheat.torch_internals.graph_capture import BackendCall, Surroundings, TracedGraph
from preheat.torch_internals.traced_source import write_traced
from preheat.torch_internals.traced_writer import traced_graphs


def graph_of(**attributes: Any) -> tuple[torch.fx.GraphModule, torch.fx.Graph]:
    module = torch.nn.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module, torch.fx.Graph()  # type: ignore[return-value]


def adding(value: Any) -> torch.fx.GraphModule:
    """A graph that adds what its module holds."""
    module, graph = graph_of(held=value)
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.add, (x, graph.get_attr("held"))),))
    return torch.fx.GraphModule(module, graph)


def loaded(graph: torch.fx.GraphModule, kind: str = "eager") -> Any:
    call = BackendCall(
        graphs=[TracedGraph(kind, False, write_traced(graph))], surroundings=[Surroundings()]
    )
    constants, graphs = traced_graphs([call])
    data = encode_traced(TracedGraphs(graphs=graphs, constants=constants))
    return load_traced(decode_traced(data), 0)


@pytest.mark.parametrize("kind", ["eager", "aot_eager"])
def test_a_constant_of_a_graph_travels(kind: str) -> None:
    graph = adding(torch.arange(3.0))
    (output,) = loaded(graph, kind)(torch.ones(3))
    assert torch.equal(output, torch.arange(3.0) + 1)


def test_eager_graphs_run_under_the_callers_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    (output,) = loaded(adding(torch.ones(3)))(x)
    output.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(3))
    (constant,) = loaded(adding(torch.ones(3)), "aot_eager")(x)
    assert not constant.requires_grad


def test_the_graphs_of_an_operator_travel() -> None:
    inner = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    other = torch.fx.symbolic_trace(lambda x: (x.cos(),))
    module, graph = graph_of(yes=inner, no=other)
    flag, x = graph.placeholder("flag"), graph.placeholder("x")
    branches = graph.get_attr("yes"), graph.get_attr("no")
    chosen = graph.call_function(torch.ops.higher_order.cond, (flag, *branches, (x,)))
    graph.output(chosen)
    run = loaded(torch.fx.GraphModule(module, graph))
    x_value = torch.linspace(0, 1, 4)
    (sine,), (cosine,) = run(torch.tensor(True), x_value), run(torch.tensor(False), x_value)
    assert torch.equal(sine, x_value.sin()) and torch.equal(cosine, x_value.cos())


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (torch.nn.Parameter(torch.ones(3)), "a Parameter that is no constant"),
        (torch.ones(3, requires_grad=True), "that is no constant"),
        (object(), "no name leads to"),
    ],
)
def test_what_has_no_meaning_elsewhere_refuses_a_graph(held: Any, why: str) -> None:
    with pytest.raises(UnportableError, match=why):
        write_traced(adding(held))


def test_a_module_that_is_called_as_a_whole_refuses_a_graph() -> None:
    with pytest.raises(UnportableError, match="calls the module 'fc'"):
        model = torch.nn.Sequential()
        model.add_module("fc", torch.nn.Linear(2, 2))
        write_traced(torch.fx.symbolic_trace(model))


@pytest.mark.parametrize("data", [b"", b"\x93", b"\x90", encode_traced(TracedGraphs((), b""))])
def test_damaged_bytes_are_no_graph(data: bytes) -> None:
    with pytest.raises(CorruptedError):
        decode_traced(data)


def test_every_known_kind_has_a_module_that_implements_it() -> None:
    for name in KINDS:
        kind = registry.find(name)
        assert kind.name == name
        assert kind.describe()
        for method in ("prepare", "write", "load"):
            assert callable(getattr(kind, method))
    assert set(registry._MODULES) == set(KINDS)


@pytest.mark.parametrize("name", ["holographic", "custom/holographic"])
def test_an_unknown_kind_is_a_reason(name: str) -> None:
    with pytest.raises(IncompatibleError) as raised:
        registry.find(name)
    assert raised.value.reasons == (unknown_kind(name),)


def test_a_form_is_judged_by_its_kinds() -> None:
    from preheat.formats import FORMATS

    form = Form(kind="lean", format=FORMATS["lean"], objects=(), code=("eager", "holographic"))
    reason = other_format(form)
    assert reason is not None and (reason.kind, reason.symbol) == ("unknown_kind", "holographic")
    # Whoever brings a backend may be installed for another interpreter than the one that judges.
    custom = Form(kind="lean", format=FORMATS["lean"], objects=(), code=("custom/holographic",))
    assert other_format(custom) is None


def test_a_backend_that_nothing_stores_is_refused_with_a_remedy() -> None:
    with pytest.raises(RefusedError, match="makes no artifact") as raised:
        registry.of_backend("cudagraphs")
    assert "preheat.kinds" in str(raised.value)
