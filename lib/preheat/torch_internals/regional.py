"""torch's regional compilation as a ``torch.compile`` backend; torch registers none by itself."""

from __future__ import annotations

from typing import Any

import torch

# The class that stands for a compiled region in torch's bytes of a graph (``torch/fx/_graph_pickler.py``).
_COMPILED_REGION = b"_OpPrecompiledPickleData"


def regional_backend(graph: Any, inputs: Any, **options: Any) -> Any:
    """Compile the regions that are marked with ``compile_with_inductor``, and run the rest as it is."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.config import patch
    from torch.fx.passes.regional_inductor import regional_inductor

    def compile_graph(traced: Any, example_inputs: Any) -> Any:
        return regional_inductor(traced, *example_inputs)

    # So that torch makes of the result what can be stored.
    with patch(force_autograd_cache=True, bundled_autograd_cache=True):
        return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(graph, inputs)


def is_regional(artifact: Any) -> bool:
    """Whether torch stored a graph with regions, and a region was compiled."""
    from torch._inductor.output_code import RegionalOutputCode

    entry: Any = artifact.content
    code = getattr(entry.compiled_fw, "result", None)
    if not isinstance(code, RegionalOutputCode):
        return False
    stored: Any = code._serialized_graph_module
    return stored is not None and _COMPILED_REGION in stored


def available() -> bool:
    """Whether this torch has regional compilation that can be stored."""
    try:
        from torch._inductor.output_code import RegionalOutputCode  # noqa: F401
    except ImportError:
        return False
    return hasattr(torch.fx.traceback, "annotate")
