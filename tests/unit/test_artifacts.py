"""What torch keeps of a graph for a package, and what of it would not be whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from preheat.errors import RefusedError
from preheat.torch_internals.artifacts import artifact_of


def kept(monkeypatch: pytest.MonkeyPatch, forward: Any, backward: Any = None) -> Any:
    from torch._dynamo.precompile_context import PrecompileContext

    parts = {"compiled_fw": forward, "compiled_bw": backward}
    content = SimpleNamespace(**{k: v and SimpleNamespace(result=v) for k, v in parts.items()})
    artifact = SimpleNamespace(content=content)
    monkeypatch.setattr(PrecompileContext, "serialize_artifact_by_key", lambda _: artifact)
    return artifact


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_graph_with_a_torchbind_object_is_refused(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """torch's bytes of it would lack the object."""
    plain = SimpleNamespace(torchbind_constants={})
    bound = SimpleNamespace(torchbind_constants={"foo": object()})
    graphs = (bound, None) if place == "forward" else (plain, bound)
    kept(monkeypatch, *graphs)
    with pytest.raises(RefusedError, match="TorchBind"):
        artifact_of("graph")


def test_other_graphs_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = kept(monkeypatch, SimpleNamespace(torchbind_constants={}))
    assert artifact_of("graph") is artifact
