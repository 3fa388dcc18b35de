"""Graph breaks that a program asks for, which imports the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch._dynamo
from torch import nn

import preheat

if TYPE_CHECKING:
    from torch import Tensor


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        torch._dynamo.graph_break()
        y = self.helper(y)
        return self.last(y)

    def helper(self, y: Tensor) -> Tensor:
        y = y + 1
        torch._dynamo.graph_break()
        return y * 2


def outer(x: Tensor) -> Tensor:
    def local(z: Tensor) -> Tensor:
        z = z + 1
        torch._dynamo.graph_break()
        return z * 3

    return local(x).sin()


@preheat.target
def c13_gb_nested_module() -> preheat.Spec:
    return preheat.Spec(Nested(), examples=[(torch.randn(4, 8),)])


@preheat.target
def c14_gb_in_local_fn() -> preheat.Spec:
    return preheat.Spec(outer, examples=[(torch.randn(8),)])
