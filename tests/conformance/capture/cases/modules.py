"""Modules that several cases share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Plain(nn.Module):
    """Two layers, and a number that is no tensor."""

    def __init__(self, width: int = 16, scale: float = 1.0) -> None:
        super().__init__()
        self.a = nn.Linear(width, 32)
        self.b = nn.Linear(32, width)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))) * self.scale


class Activated(nn.Module):
    """The activation function is an attribute."""

    def __init__(self, width: int = 16, act: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.a = nn.Linear(width, 32)
        self.b = nn.Linear(32, width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class Deep(nn.Module):
    """A list of blocks, each with another scale."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Plain(16, 1.0 + index) for index in range(3)])
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x)


class Blocks(nn.Module):
    """Equal blocks, to be compiled one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Plain() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Convolution(nn.Module):
    """A convolution and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))
