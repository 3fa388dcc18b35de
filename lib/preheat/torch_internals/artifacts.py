"""What torch keeps of a compiled graph for a package (``BundledAOTAutogradCacheArtifact``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.errors import RefusedError
from preheat.torch_internals.bypasses import BypassLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def artifact_of(name: str) -> Any:
    """The artifact of the graph that bytecode calls by this name.

    Raises ``RefusedError`` with torch's own reason when there is none.
    """
    from torch._dynamo.precompile_context import PrecompileContext

    artifact = PrecompileContext.serialize_artifact_by_key(name)
    if artifact is None:
        raise RefusedError(BypassLog.last or "torch kept no artifact of a compiled graph")
    if any(getattr(graph, "torchbind_constants", None) for graph in _graphs(artifact)):
        # torch packages such a graph and leaves the object out.
        raise RefusedError("a graph holds a TorchBind object")
    return artifact


def _graphs(artifact: Any) -> Iterator[Any]:
    for name in ("compiled_fw", "compiled_bw"):
        yield getattr(getattr(artifact.content, name, None), "result", None)


def restored(artifact: Any, settings: Mapping[str, Any]) -> Any:
    """The callable of an artifact, under Inductor's ``settings`` of the target."""
    import torch._inductor.config as inductor_config

    from preheat.torch_internals.wrappers import executing_in_memory

    with inductor_config.patch(dict(settings)), executing_in_memory():
        return artifact.after_deserialization()
