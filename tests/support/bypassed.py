"""Programs that torch's caches and packages pass over, one for each reason that a program can bring about.

A module each where a setting of the whole process is the reason. And what becomes of a program when torch
gives any other reason, in each of the ways in which it can.
"""

from __future__ import annotations

from typing import Any

FILES = {
    "bypassed_model.py": """
        import functools

        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


        @torch._dynamo.allow_in_graph
        def outside(x):
            return x.cos() + 1


        def unknown_function(x):
            return outside(x.sin()) * 2


        def plain(x):
            return x.sin() * 2 + x.cos()


        saving = functools.partial(
            create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
        )


        class Checkpointed(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def inner(self, x):
                return self.linear(x).sin()

            def forward(self, x):
                return checkpoint(self.inner, x, use_reentrant=False, context_fn=saving) * 2
    """,
    "cases/spec.py": """
        import preheat
        import torch


        def spec(fn, **options):
            return preheat.Spec(fn, examples=[(torch.randn(4, 8),)], **options)
    """,
    "cases/programs.py": """
        import preheat
        import torch

        import bypassed_model as model
        from cases.spec import spec


        @preheat.target
        def unknown_function():
            return spec(model.unknown_function, grad=False)


        @preheat.target
        def checkpointed():
            return spec(model.Checkpointed(), backward=True)


        @preheat.target
        def optimizer():
            module = torch.nn.Linear(8, 8)
            made = torch.optim.SGD(module.parameters(), lr=0.1)
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
            return preheat.Spec(made.step, examples=[()], grad=False)
    """,
    "cases/without_cache.py": """
        import preheat
        import torch._inductor.config

        import bypassed_model as model
        from cases.spec import spec

        torch._inductor.config.fx_graph_cache = False


        @preheat.target
        def without_cache():
            return spec(model.plain, grad=False)
    """,
    "cases/own_pass.py": """
        import preheat
        import torch._inductor.config

        import bypassed_model as model
        from cases.spec import spec


        torch._inductor.config.post_grad_custom_post_pass = lambda graph: None


        @preheat.target
        def own_pass():
            return spec(model.plain, grad=False)
    """,
    "cases/own_estimator.py": """
        import preheat
        import torch._functorch.config

        import bypassed_model as model
        from cases.spec import spec

        torch._functorch.config.activation_memory_budget_runtime_estimator = lambda node: 1.0


        @preheat.target
        def own_estimator():
            return spec(model.plain, grad=False)
    """,
    "cases/constant_folding.py": """
        import preheat
        import torch._inductor.config

        import bypassed_model as model
        from cases.spec import spec

        torch._inductor.config.aot_inductor.use_runtime_constant_folding = True


        @preheat.target
        def constant_folding():
            return spec(model.plain, grad=False)
    """,
    "cases/bisected.py": """
        import preheat
        from torch._inductor.compiler_bisector import CompilerBisector

        import bypassed_model as model
        from cases.spec import spec

        CompilerBisector.bisection_enabled = True


        @preheat.target
        def bisected():
            return spec(model.plain, grad=False)
    """,
}

# Where each program is, and the beginning of torch's reason. Of those in REFUSED nothing is published.
PROGRAMS = {
    "unknown_function": ("programs", "Unsupported call_function target"),
    "checkpointed": ("programs", "SAC context_fn does not have a cache_hash attribute"),
    "optimizer": ("programs", "Graph contains named parameters due to static addresses."),
    "without_cache": ("without_cache", "FX graph cache is not enabled"),
    "own_pass": ("own_pass", "Unsupported post grad custom pass"),
    "own_estimator": (
        "own_estimator",
        "activation_memory_budget_runtime_estimator is a raw callable",
    ),
    "constant_folding": ("constant_folding", "Runtime constant folding"),
    "bisected": ("bisected", "compiler bisector enabled"),
}
REFUSED = {"optimizer"}

LATER = "a reason of a later torch"
WAYS = ("AOTAutograd", "Inductor", "pickling", "Dynamo", "guards")


def given(way: str) -> list[Any]:
    """What becomes of a program for which torch gives ``LATER`` as its reason: refusals of both forms."""
    import torch

    from preheat import Spec
    from preheat.errors import RefusedError
    from preheat.torch_internals.capture import Capture

    _give(way)
    x = torch.ones(4, 8)
    spec = Spec(lambda x: x.sin() * 2 + x.cos(), examples=[(x,)], grad=False)
    capture = Capture(spec, 10**6)
    with capture.active(), torch.no_grad():
        torch.testing.assert_close(capture.compiled(x), spec.fn(x))
        try:
            capture.payload()
        except RefusedError as error:
            return [error.message, list(capture.image().refusals)]
        return ["", list(capture.image().refusals)]


def _give(way: str) -> None:
    import types

    from torch._dynamo import guards, output_graph
    from torch._dynamo.exc import PackageError
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor.codecache import BypassFxGraphCache, FxGraphCache

    def raising(error: Exception) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise error

        return fail

    places: dict[str, tuple[Any, str, Any]] = {
        "AOTAutograd": (
            autograd_cache,
            "check_cacheable",
            raising(autograd_cache.BypassAOTAutogradCache(LATER)),
        ),
        "Inductor": (
            FxGraphCache,
            "_check_can_cache",
            staticmethod(raising(BypassFxGraphCache(LATER))),
        ),
        "pickling": (
            autograd_cache,
            "pickle",
            types.SimpleNamespace(
                **{**vars(autograd_cache.pickle), "dumps": raising(TypeError(LATER))}
            ),
        ),
        "guards": (
            guards.CheckFunctionManager,
            "serialize_guards",
            raising(PackageError(LATER)),
        ),
    }
    if way == "Dynamo":
        original: Any = output_graph.OutputGraph.call_user_compiler

        def bypassing(graph: Any, *args: Any, **kwargs: Any) -> Any:
            graph.bypass_package(LATER)
            return original(graph, *args, **kwargs)

        places[way] = (output_graph.OutputGraph, "call_user_compiler", bypassing)
    owner, name, value = places[way]
    assert hasattr(owner, name)
    setattr(owner, name, value)
