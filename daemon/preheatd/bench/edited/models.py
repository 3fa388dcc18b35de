"""The programs, with random weights. Each calls the helper in each of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from .helper import scaled

if TYPE_CHECKING:
    from collections.abc import Callable


class Perceptron(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(scaled(functional.gelu(self.first(x))))
        return result


class Attention(nn.Module):
    """Attention of every position to every position, with one projection for all heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.inward(x).chunk(3, dim=-1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        attended = functional.scaled_dot_product_attention(q, k, v)
        result: torch.Tensor = self.outward(attended.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """One layer of a transformer, norms first."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + scaled(self.down(functional.gelu(self.up(self.norm2(x)))))
        return x


class Region(Block):
    """The same layer, which is compiled once for all layers like it."""

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Block.forward(self, x)


class Blocks(nn.Module):
    """Equal layers in a row."""

    def __init__(self, layer: type[Block], count: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(layer() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class EncoderLayer(nn.Module):
    """One layer of BERT, norms last."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x))
        result: torch.Tensor = self.norm2(x + self.down(scaled(functional.gelu(self.up(x)))))
        return result


class Encoder(nn.Module):
    """BERT in small: embeddings of words and positions, two layers, and a pooled first position."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, width)
        self.positions = nn.Embedding(64, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.norm(self.words(words) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


def build(program: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The module and the arguments of one call. The same seed gives the same weights."""
    torch.manual_seed(0)
    module, args = _PROGRAMS[program]()
    return module.eval(), args


def _sequence() -> torch.Tensor:
    return torch.randn(2, 32, 256)


_PROGRAMS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: (Perceptron(), (torch.randn(8, 64),)),
    "bert": lambda: (Encoder(), (torch.randint(0, 1000, (2, 32)),)),
    "blocks": lambda: (Blocks(Block), (_sequence(),)),
    "per-block": lambda: (Blocks(Region), (_sequence(),)),
}
