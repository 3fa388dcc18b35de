"""Gradients: modes, backward passes, optimizers, functions with a formula of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import preheat
from cases.modules import Convolution, Plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def in_every_mode(compiled: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        outputs = [compiled(x)]
    with torch.enable_grad():
        outputs.append(compiled(x))
    with torch.inference_mode():
        outputs.append(compiled(x))
    return outputs


def train_step(module: nn.Module, x: Tensor) -> Tensor:
    loss = module(x).pow(2).sum()
    loss.backward()
    return loss


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 2


def with_function(x: Tensor) -> Tensor:
    return Doubled.apply(x) * 3


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def with_unit_gradients() -> nn.Module:
    module = Plain()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    return module


def stepping_twice(module: nn.Module) -> Callable[..., list[Tensor]]:
    def run(compiled: Callable[[], None]) -> list[Tensor]:
        compiled()
        compiled()
        return list(module.parameters())

    return run


@preheat.target
def c24_grad_modes() -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(4, 16),)], grad=True, run=in_every_mode)


@preheat.target
def c25_train_fwd_bwd() -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(4, 16),)], backward=True)


@preheat.target
def c26_optimizer_compiled() -> preheat.Spec:
    module = with_unit_gradients()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

    def step() -> None:
        optimizer.step()

    return preheat.Spec(step, examples=[()], run=stepping_twice(module))


@preheat.target
def c26b_optimizer_step_method() -> preheat.Spec:
    module = with_unit_gradients()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    return preheat.Spec(optimizer.step, examples=[()], run=stepping_twice(module))


@preheat.target
def c26c_train_step_fn() -> preheat.Spec:
    module = Plain()

    def run(compiled: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
        return [compiled(module, x), *(parameter.grad for parameter in module.parameters())]

    return preheat.Spec(train_step, examples=[(torch.randn(4, 16),)], grad=True, run=run)


@preheat.target
def c30c_batchnorm_train() -> preheat.Spec:
    return preheat.Spec(Convolution(), examples=[(torch.randn(2, 3, 8, 8),)], backward=True)


@preheat.target
def c34_autograd_function() -> preheat.Spec:
    x = torch.randn(8).requires_grad_()
    return preheat.Spec(with_function, examples=[(x,)], backward=True)


@preheat.target
def c60_checkpoint_train() -> preheat.Spec:
    return preheat.Spec(Checkpointed(), examples=[(torch.randn(4, 16),)], backward=True)


@preheat.target
def c64_state_change_requires_grad() -> preheat.Spec:
    module = Plain().requires_grad_(False)
    return preheat.Spec(module, examples=[(torch.randn(4, 16),)], grad=True)
