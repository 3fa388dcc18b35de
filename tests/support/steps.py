"""Programs that each need one step of loading Inductor's wrapper, a check of it, and the loader without it.

All of it runs in forked processes: a check that loads a target and compares, and the same after a step was
left out, when it must fail.
"""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = {
    "steps_model.py": """
        import torch
        from torch import nn
        from torch.multiprocessing.reductions import StorageWeakRef


        def constant(x):
            # More than eight values: fewer become part of the code.
            return x[:, :1] * torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0])


        class Frozen(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x):
                # Computed from parameters alone: freezing makes a constant of it.
                return (x + (self.linear.weight * 2 + 1).sum(0)).relu()


        class Packed(Frozen):
            def forward(self, x):
                # Freezing stores what it multiplies by in a layout of its own.
                return self.linear(x).relu()


        def views(x):
            return x.t(), x.sin()


        def laid_out(x):
            return x.sin() * 2


        def changed(x):
            x.add_(1)
            return x.sin() * 2


        def rewritten(x):
            # A part of a history is changed outside of the graph.
            x.mul_(2)
            return x.cos()


        def by_size(x):
            return x.sin() * 2 if x.shape[0] > 10 else x.cos() * 3


        def fused(x):
            return x.sin() * 3 + x.cos()


        watched = []
        alive = []


        @torch.library.custom_op("steps::looking", mutates_args=())
        def looking(x: torch.Tensor) -> torch.Tensor:
            alive.append(sum(not one.expired() for one in watched))
            return x * 2


        @looking.register_fake
        def _(x):
            return torch.empty_like(x)


        @torch.library.custom_op("steps::seen", mutates_args=())
        def seen(x: torch.Tensor) -> torch.Tensor:
            made = x * 2
            watched.append(StorageWeakRef(made.untyped_storage()))
            return made


        @seen.register_fake
        def _(x):
            return torch.empty_like(x)


        seen.register_autograd(lambda ctx, gradient: looking(gradient))


        def kept(x):
            return seen(x.sin()).cos()
    """,
    "cases/steps.py": """
        import preheat
        import torch

        import steps_model as model


        def spec(fn, *shapes, **options):
            examples = [(torch.randn(*shape),) for shape in shapes or ((4, 8),)]
            return preheat.Spec(fn, examples=examples, grad=False, **options)


        def trained(fn):
            example = (torch.randn(4, 8, requires_grad=True),)
            return preheat.Spec(fn, examples=[example], backward=True, run=call)


        def call(compiled, x):
            # What the program gets is no leaf.
            output = compiled(x * 1)
            output.sum().backward()
            return output


        @preheat.target
        def constant():
            return spec(model.constant)


        @preheat.target
        def views():
            return spec(model.views)


        @preheat.target
        def laid_out():
            return trained(model.laid_out)


        @preheat.target
        def changed():
            return spec(model.changed)


        @preheat.target
        def rewritten():
            return trained(model.rewritten)


        @preheat.target
        def by_size():
            return spec(model.by_size, (12, 8), (14, 8), dynamic=True)


        @preheat.target
        def fused():
            return spec(model.fused)


        @preheat.target
        def kept():
            return trained(model.kept)


        def torchbind():
            from pathlib import Path

            # A library with a class that torch brings for its own tests.
            torch.ops.load_library(Path(torch.__file__).parent / "lib" / "libtorchbind_test.so")

            @torch._library.register_fake_class("_TorchScriptTesting::_Foo")
            class FakeFoo:
                def __init__(self, x, y):
                    self.x, self.y = x, y

                @classmethod
                def __obj_unflatten__(cls, flattened):
                    return cls(**dict(flattened))

                def add_tensor(self, z):
                    return (self.x + self.y) * z

            foo = torch.classes._TorchScriptTesting._Foo(3, 4)

            class Bound(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.foo = foo

                def forward(self, x):
                    return self.foo.add_tensor(x.sin()) * 2

            return spec(Bound())


        preheat.target(torchbind)
    """,
}

FILES["cases/frozen.py"] = """
    import preheat
    import torch
    import torch._inductor.config

    import steps_model as model

    # As an option of one program it reaches Inductor alone, and not Dynamo.
    torch._inductor.config.freezing = True


    @preheat.target
    def frozen():
        return preheat.Spec(model.Frozen().eval(), examples=[(torch.randn(4, 8),)], grad=False)


    @preheat.target
    def packed():
        return preheat.Spec(model.Packed().eval(), examples=[(torch.randn(4, 8),)], grad=False)
"""

BOTH = ("lean", "dynamo")


def checked(request: dict[str, str]) -> str:
    """What is wrong with a target that was loaded in a form, perhaps ``without`` its step; "" if nothing."""
    import torch

    warnings.simplefilter("ignore")
    sys.path.insert(0, request["project"])
    step, form = request["step"], request["form"]
    torch.manual_seed(1)
    if request.get("without"):
        LEFT_OUT[step, form]()
    try:
        CHECKS[step](_Loader(request["store"], form), importlib.import_module("steps_model"))
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:500] or "fails"
    return ""


class _Loader:
    def __init__(self, store: str, form: str) -> None:
        self.store = store
        self.form = form

    def __call__(self, name: str, fn: Any, on_miss: str = "error") -> Any:
        import preheat

        return preheat.load(name, fn, store=self.store, form=self.form, on_miss=on_miss)


def _is_same(got: Any, wanted: Any) -> None:
    import torch

    torch.testing.assert_close(got, wanted)


def _constant(load: _Loader, model: Any) -> None:
    import torch

    x = torch.randn(4, 8)
    _is_same(load("constant", model.constant)(x), model.constant(x))


def _frozen(load: _Loader, model: Any) -> None:
    """Parameters that are others in the worker, or become others there, get their own numbers."""
    import torch
    import torch._inductor.config

    from preheat.exercise import make_spec

    torch._inductor.config.freezing = True
    program = make_spec(importlib.import_module("cases.frozen").frozen, "frozen").fn
    x = torch.randn(4, 8)
    with torch.no_grad():
        loaded = load("frozen", program, on_miss="eager")
        _is_same(loaded(x), program(x))
        assert loaded.preheat.misses == 0, loaded.preheat.reasons
        program.linear.weight.add_(1)
        _is_same(loaded(x), program(x))
        assert loaded.preheat.misses == 1
        other = load("frozen", program, on_miss="eager")
        _is_same(other(x), program(x))
        assert "weights differ: linear.weight" in str(other.preheat.reasons[0])


def _views(load: _Loader, model: Any) -> None:
    import torch

    x = torch.randn(4, 8)
    got, _ = load("views", model.views)(x)
    assert got.stride() == (1, 8), got.stride()
    assert got._base is x, "no view of what it was made from"


def _laid_out(load: _Loader, model: Any) -> None:
    """A gradient in other strides than the results had in the build."""
    import torch

    x = torch.randn(4, 8, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    gradient = torch.randn(8, 4).t()
    load("laid_out", model.laid_out)(x * 1).backward(gradient)
    model.laid_out(again * 1).backward(gradient)
    _is_same(x.grad, again.grad)


def _changed(load: _Loader, model: Any) -> None:
    import torch

    x = torch.randn(4, 8)
    other, before = x.clone(), x._version
    _is_same(load("changed", model.changed)(x), model.changed(other))
    _is_same(x, other)
    assert x._version > before, "autograd would not notice the change"


def _rewritten(load: _Loader, model: Any) -> None:
    import torch

    x = torch.randn(4, 8, requires_grad=True)
    got, wanted = x * 1, x * 1
    _is_same(load("rewritten", model.rewritten)(got), model.rewritten(wanted))
    _is_same(got, wanted)


def _by_size(load: _Loader, model: Any) -> None:
    import torch

    loaded = load("by_size", model.by_size, on_miss="eager")
    with torch.no_grad():
        for rows in (12, 40, 5):
            x = torch.randn(rows, 8)
            _is_same(loaded(x), model.by_size(x))
        assert loaded.preheat.misses == 1


def _fused(load: _Loader, model: Any) -> None:
    """The kernels come from the package: no compiler is started."""
    import torch
    from torch._inductor.cpp_builder import CppBuilder

    started: list[str] = []
    CppBuilder.build = lambda builder, *_: started.append("a compiler")  # type: ignore[assignment,misc,return-value]
    x = torch.randn(4, 8)
    _is_same(load("fused", model.fused)(x), model.fused(x))
    assert not started


def _kept(load: _Loader, model: Any) -> None:
    """What the backward pass no longer needs is gone while it still runs."""
    import torch

    output = load("kept", model.kept)(torch.randn(4, 8, requires_grad=True) * 1)
    assert [one.expired() for one in model.watched] == [False], "nothing was kept"
    output.sum().backward()
    assert model.alive == [0]


CHECKS: dict[str, Callable[[_Loader, Any], None]] = {
    "constant": _constant,
    "frozen": _frozen,
    "views": _views,
    "laid_out": _laid_out,
    "changed": _changed,
    "rewritten": _rewritten,
    "by_size": _by_size,
    "fused": _fused,
    "kept": _kept,
}


# --- the loaders without a step --------------------------------------------------------------------


def _replace(place: str, value: Any) -> None:
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *inner, name = path.split(".")
    for part in inner:
        owner = getattr(owner, part)
    assert hasattr(owner, name), f"{place} is not there"
    setattr(owner, name, value)


def _without_guards_on_sizes() -> None:
    _replace("preheat.image.guards:Guards._predicate", lambda guards, step: None)
    _replace("preheat.image.guards:Guards._relation", lambda guards, step: None)


def _keeping_arguments() -> None:
    """The backward graph gets a list of its own, and its caller keeps the other."""
    from preheat.image import training

    original = training.differentiable
    training.differentiable = lambda forward, backward, record: original(
        forward, lambda args: backward(list(args)), record
    )


def _torch_keeping_arguments() -> None:
    from torch._inductor.output_code import CompiledFxGraph

    original: Any = CompiledFxGraph.__call__
    _replace(
        "torch._inductor.output_code:CompiledFxGraph.__call__",
        lambda graph, inputs: original(graph, list(inputs)),
    )


def _torch_without_constants() -> None:
    _replace(
        "torch._inductor.output_code:CompiledFxGraphConstants.unwrap", lambda constants, graph: {}
    )


def _torch_compiling_kernels() -> None:
    import contextlib

    _replace(
        "preheat.torch_internals.kernels:KernelLoader.answering",
        lambda loader: contextlib.nullcontext(),
    )


LEFT_OUT: dict[tuple[str, str], Callable[[], None]] = {
    ("constant", "lean"): lambda: _replace(
        "preheat.image.graphs:_constants", lambda image, opener: [{} for _ in image.graphs]
    ),
    ("constant", "dynamo"): _torch_without_constants,
    ("frozen", "lean"): lambda: _replace(
        "preheat.image.load:LoadedImage._compared_weights", lambda image, fn: None
    ),
    ("views", "lean"): lambda: _replace(
        "preheat.image.graphs:_replayed", lambda rule, output, inputs, outputs: output
    ),
    ("views", "dynamo"): lambda: _replace(
        "torch._functorch._aot_autograd.runtime_wrappers:gen_alias_from_base",
        lambda base, output, *_, **__: output,
    ),
    ("laid_out", "lean"): lambda: _replace(
        "preheat.image.training:_as_expected", lambda gradient, tangent: gradient
    ),
    ("changed", "lean"): lambda: _replace(
        "torch.autograd.graph:increment_version", lambda tensors: None
    ),
    ("changed", "dynamo"): lambda: _replace(
        "torch.autograd.graph:increment_version", lambda tensors: None
    ),
    ("rewritten", "lean"): lambda: _replace(
        "preheat.image.graphs:_bring_up_to_date", lambda value, updated, rule: None
    ),
    ("by_size", "lean"): _without_guards_on_sizes,
    ("by_size", "dynamo"): lambda: _replace(
        "torch._dynamo.guards:GuardBuilder.SHAPE_ENV", lambda builder, guard: None
    ),
    ("fused", "lean"): lambda: _replace(
        "preheat.image.graphs:_kernels", lambda graph, opener, device: {}
    ),
    ("fused", "dynamo"): _torch_compiling_kernels,
    ("kept", "lean"): _keeping_arguments,
    ("kept", "dynamo"): _torch_keeping_arguments,
}
