"""Several programs in one process: instances of one class, parts of a larger program, equal names."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

import preheat
from cases import collision_a, collision_b
from cases.modules import Activated, Blocks, Deep, Plain

if TYPE_CHECKING:
    from torch import Tensor


def patched_forward(self: Plain, x: Tensor) -> Tensor:
    return self.b(torch.tanh(self.a(x)))


class Patched(Plain):
    """Its ``forward`` is replaced after the class is made."""


def sigmoid_forward(self: Plain, x: Tensor) -> Tensor:
    return self.b(torch.sigmoid(self.a(x)))


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def doubling_hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output * 2


@preheat.target
def c49_module_compile_inplace() -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(4, 16),)])


@preheat.target
def c50_regional_inplace() -> preheat.Spec:
    return preheat.Spec(Plain().forward, examples=[(torch.randn(4, 16),)])


def use_c50_regional_inplace(load: Any) -> Tensor:
    module = Blocks()
    for block in module.blocks:
        block.forward = load("c50_regional_inplace", block.forward)
    return module(torch.randn(4, 16))


@preheat.target
def c50b_regional_torchcompile() -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(4, 16),)])


def use_c50b_regional_torchcompile(load: Any) -> Tensor:
    module = Blocks()
    for index, block in enumerate(module.blocks):
        module.blocks[index] = load("c50b_regional_torchcompile", block)
    return module(torch.randn(4, 16))


@preheat.target
def c51_key_collision_two_files__a() -> preheat.Spec:
    return preheat.Spec(collision_a.f, examples=[(torch.randn(8),)])


@preheat.target
def c51_key_collision_two_files__b() -> preheat.Spec:
    return preheat.Spec(collision_b.f, examples=[(torch.randn(8),)])


@preheat.target
def c52_two_instances_diff_dims__16() -> preheat.Spec:
    return preheat.Spec(Plain(16), examples=[(torch.randn(4, 16),)])


@preheat.target
def c52_two_instances_diff_dims__24() -> preheat.Spec:
    return preheat.Spec(Plain(24), examples=[(torch.randn(4, 24),)])


@preheat.target
def c52b_two_instances_diff_scale__one() -> preheat.Spec:
    return preheat.Spec(Plain(16, 1.0), examples=[(torch.randn(4, 16),)])


@preheat.target
def c52b_two_instances_diff_scale__three() -> preheat.Spec:
    return preheat.Spec(Plain(16, 3.0), examples=[(torch.randn(4, 16),)])


@preheat.target
def c52c_two_instances_diff_act_fn__relu() -> preheat.Spec:
    return preheat.Spec(Activated(16, F.relu), examples=[(torch.randn(4, 16),)])


@preheat.target
def c52c_two_instances_diff_act_fn__gelu() -> preheat.Spec:
    return preheat.Spec(Activated(16, F.gelu), examples=[(torch.randn(4, 16),)])


@preheat.target
def c53_monkeypatched_forward() -> preheat.Spec:
    module = Plain()
    module.forward = types.MethodType(patched_forward, module)
    return preheat.Spec(module, examples=[(torch.randn(4, 16),)])


@preheat.target
def c53b_monkeypatched_class_forward() -> preheat.Spec:
    Patched.forward = sigmoid_forward
    return preheat.Spec(Patched(), examples=[(torch.randn(4, 16),)])


@preheat.target
def c57_forward_hook() -> preheat.Spec:
    module = Hooked()
    module.register_forward_hook(doubling_hook)
    return preheat.Spec(module, examples=[(torch.randn(4, 8),)])


@preheat.target
def c57b_inner_forward_hook() -> preheat.Spec:
    module = Deep()
    module.norm.register_forward_hook(doubling_hook)
    return preheat.Spec(module, examples=[(torch.randn(4, 16),)])
