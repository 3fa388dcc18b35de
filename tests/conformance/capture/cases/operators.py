"""Operators, number formats and transformations that need more than one kernel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

import preheat

if TYPE_CHECKING:
    from torch import Tensor


@torch.library.custom_op("preheat_cases::my_sine", mutates_args=())
def my_sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


@my_sine.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def with_custom_op(x: Tensor) -> Tensor:
    return my_sine(x) * 2


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sine(x: Tensor) -> Tensor:
    return x.sin()


def cosine(x: Tensor) -> Tensor:
    return x.cos()


def conditional(predicate: Tensor, x: Tensor) -> Tensor:
    return torch.cond(predicate, sine, cosine, (x,))


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


def of_subclass(x: Tensor) -> Tensor:
    return x.sin() + 1


def of_complex(x: Tensor) -> Tensor:
    return (x * x).abs()


class WeightOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (16, 16), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale[:, None])


def mapped(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row.sin().sum())(x)


def differentiated(x: Tensor) -> Tensor:
    return torch.func.grad(lambda row: (row**2).sum())(x)


@preheat.target
def c33_custom_op() -> preheat.Spec:
    return preheat.Spec(with_custom_op, examples=[(torch.randn(8),)])


@preheat.target
def c35_sdpa() -> preheat.Spec:
    example = tuple(torch.randn(1, 2, 8, 16) for _ in range(3))
    return preheat.Spec(attention, examples=[example])


@preheat.target
def c37_cond() -> preheat.Spec:
    return preheat.Spec(conditional, examples=[(torch.tensor(True), torch.randn(8))])


@preheat.target
def c38_tensor_subclass() -> preheat.Spec:
    return preheat.Spec(of_subclass, examples=[(torch.randn(8).as_subclass(Subclass),)])


@preheat.target
def c39_complex() -> preheat.Spec:
    return preheat.Spec(of_complex, examples=[(torch.randn(8, dtype=torch.complex64),)])


@preheat.target
def c40_int8_weightonly() -> preheat.Spec:
    return preheat.Spec(WeightOnly(), examples=[(torch.randn(4, 16),)])


@preheat.target
def c40b_dynamic_quant_linear() -> preheat.Spec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(16, 8)), {nn.Linear}
        )
    return preheat.Spec(module, examples=[(torch.randn(4, 16),)])


@preheat.target
def c61_vmap() -> preheat.Spec:
    return preheat.Spec(mapped, examples=[(torch.randn(4, 8),)])


@preheat.target
def c62_func_grad() -> preheat.Spec:
    return preheat.Spec(differentiated, examples=[(torch.randn(8),)])


@preheat.target
def c63_parametrize_weightnorm() -> preheat.Spec:
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)))
    return preheat.Spec(module, examples=[(torch.randn(4, 16),)])


@preheat.target
def c66_lstm() -> preheat.Spec:
    module = nn.Sequential(nn.LSTM(8, 8, batch_first=True))
    return preheat.Spec(module, examples=[(torch.randn(2, 4, 8),)])


@preheat.target
def c67_mha_encoder() -> preheat.Spec:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return preheat.Spec(layer, examples=[(torch.randn(2, 5, 16),)])
