"""Imports the compiler, and asks it what it would ask in every process, for processes that fork."""

from __future__ import annotations

import importlib

import torch
import torch._inductor.compile_fx
import tqdm
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.codegen.common import init_backend_registration
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

# Its monitor is a thread, and a process that forks must have none.
tqdm.tqdm.monitor_interval = 0

LATE = (
    "preheat.build",
    "preheat.recording",
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

for late in LATE:
    importlib.import_module(late)
cpu_vec_isa.pick_vec_isa()
codecache.torch_key()
init_backend_registration()
joint_graph.lazy_init(torch.device("cpu"))
post_grad.lazy_init()
pre_grad.lazy_init()
