"""Importing the compiler, and preparing it in a process that forks."""

from __future__ import annotations

import contextlib
import importlib
import sys

# Imported by the compiler at its first use. One that a release does not have is left out.
_LATE = (
    "preheat.torch_internals.capture",
    "setuptools",
    "sympy.tensor.tensor",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
    "torch._export.db.logging",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.codegen.memory_planning",
    "torch.distributed.tensor.experimental",
)


def import_compiler() -> None:
    """Import torch and its compiler, so that no user module can stand in for a library of theirs."""
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401


def prepare_compiler() -> None:
    """Import what the compiler imports late, and let it find out once what every process asks anew.

    The processor's instruction set, the digest of torch's own sources, the tables of patterns. No tensor is
    computed and nothing is compiled: a process that had done either could not fork children that work.
    """
    import_compiler()
    for name in _LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if tqdm := sys.modules.get("tqdm"):
        tqdm.tqdm.monitor_interval = 0  # its monitor is a thread
    import torch
    from torch._inductor import codecache, cpu_vec_isa
    from torch._inductor.codegen.common import init_backend_registration
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    cpu_vec_isa.pick_vec_isa()
    codecache.torch_key()
    init_backend_registration()
    joint_graph.lazy_init(torch.device("cpu"))
    post_grad.lazy_init()
    pre_grad.lazy_init()
