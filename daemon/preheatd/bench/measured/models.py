"""The built-in programs, with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


class Perceptron(nn.Module):
    """Two linear layers: so little work that everything around it shows."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(nn.functional.gelu(self.first(x)))
        return result


class Regional(nn.Module):
    """A program as one region that is marked for compilation."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any) -> Any:
        with torch.fx.traceback.annotate({"compile_with_inductor": {}}):
            return self.program(*args)


class Block(nn.Module):
    """One layer of a transformer, with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x


class Transformer(nn.Module):
    """Some layers in a row."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def build(program: str, device: str, layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The module and the arguments of one call. The same seed gives the same weights."""
    torch.manual_seed(0)
    module, args = _PROGRAMS[program](device == "cuda", layers)
    return module.eval().to(device), tuple(arg.to(device) for arg in args)


def _perceptron(gpu: bool, layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Perceptron(), (torch.randn(8, 64),)


def _transformer(gpu: bool, layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    if gpu:
        x = torch.randn(4, 128, 512, dtype=torch.float16)
        return Transformer(layers, 512, 8).to(torch.float16), (x,)
    return Transformer(layers, 64, 4), (torch.randn(2, 16, 64),)


def _llama(gpu: bool, layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import LlamaConfig, LlamaModel

    width, heads, length = (1024, 16, 512) if gpu else (64, 4, 16)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        use_cache=False,
    )
    model: nn.Module = LlamaModel(config)
    tokens = torch.randint(0, 1000, (2, length))
    return (model.to(torch.bfloat16) if gpu else model), (tokens,)


_PROGRAMS: dict[str, Callable[[bool, int], Any]] = {
    "mlp": _perceptron,
    "transformer": _transformer,
    "llama": _llama,
}
