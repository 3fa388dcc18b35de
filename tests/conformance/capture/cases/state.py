"""What a program changes, and what is switched on around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

import preheat
from cases.modules import Convolution, Plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


class PlainCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embedding(tokens))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5, True)


def noisy(x: Tensor) -> Tensor:
    return x + torch.rand(8)


@preheat.target
def c27_autocast_bf16() -> preheat.Spec:
    return preheat.Spec(
        Plain(),
        examples=[(torch.randn(4, 16),)],
        context=lambda: torch.autocast("cpu", torch.bfloat16),
    )


@preheat.target
def c28_inference_mode() -> preheat.Spec:
    return preheat.Spec(
        Plain(), examples=[(torch.randn(4, 16),)], context=lambda: torch.inference_mode()
    )


@preheat.target
def c29_inplace_input() -> preheat.Spec:
    return preheat.Spec(in_place, examples=[(torch.randn(8),)])


@preheat.target
def c30_buffer_mutation() -> preheat.Spec:
    return preheat.Spec(Counter(), examples=[(torch.randn(4),), (torch.randn(4),)])


@preheat.target
def c30b_attr_counter() -> preheat.Spec:
    x = torch.randn(4)
    return preheat.Spec(PlainCounter(), examples=[(x,), (x,), (x,)])


@preheat.target
def c31_tied_weights() -> preheat.Spec:
    return preheat.Spec(Tied(), examples=[(torch.arange(6)[None],)])


@preheat.target
def c32_dropout() -> preheat.Spec:
    return preheat.Spec(Dropping(), examples=[(torch.randn(4, 16),)])


@preheat.target
def c32b_rand() -> preheat.Spec:
    return preheat.Spec(noisy, examples=[(torch.randn(8),)])


@preheat.target
def c65_eval_train_flag() -> preheat.Spec:
    module = Convolution().eval()

    def run(compiled: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        outputs = [compiled(x)]
        module.train()
        outputs.append(compiled(y))
        return outputs

    example = (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8))
    return preheat.Spec(module, examples=[example], run=run)
