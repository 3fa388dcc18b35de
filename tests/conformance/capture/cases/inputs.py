"""Arguments: names, defaults, containers, numbers, shapes."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import preheat
from cases.callables import plain
from cases.modules import Plain

if TYPE_CHECKING:
    from torch import Tensor


def optional(
    x: Tensor, *, scale: float = 1.0, bias: Tensor | None = None, option: str | None = None
) -> Tensor:
    y = x * scale
    if bias is not None:
        y = y + bias
    if option == "a":
        y = y.sin()
    return y


def of_dict(given: dict[str, Any]) -> dict[str, Tensor]:
    return {"out": given["x"] + given["y"][0] * given["y"][1]}


@dataclasses.dataclass
class Pair:
    a: torch.Tensor
    b: float


def of_dataclass(pair: Pair) -> Tensor:
    return pair.a * pair.b


Named = collections.namedtuple("Named", "p q")


def of_namedtuple(named: Named) -> Named:
    return Named(named.p + named.q, named.p - named.q)


def power(x: Tensor, times: int, factor: float) -> Tensor:
    for _ in range(times):
        x = x * factor
    return x


class Choice(enum.Enum):
    A = 1
    B = 2


def chosen(x: Tensor, choice: Choice) -> Tensor:
    return x.sin() if choice is Choice.A else x.cos()


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) * 2


def numpy_sine(x: Any) -> Any:
    return np.sin(x) + 1


@preheat.target
def c15_kwargs_optional() -> preheat.Spec:
    x = torch.randn(8)
    return preheat.Spec(
        optional,
        examples=[
            (x,),
            preheat.Example(x, bias=torch.randn(8)),
            preheat.Example(x, option="a", scale=2.0),
        ],
    )


@preheat.target
def c16_dict_pytree() -> preheat.Spec:
    given = {"x": torch.randn(8), "y": [torch.randn(8), torch.randn(8)]}
    return preheat.Spec(of_dict, examples=[(given,)])


@preheat.target
def c17_dataclass() -> preheat.Spec:
    return preheat.Spec(of_dataclass, examples=[(Pair(torch.randn(8), 2.0),)])


@preheat.target
def c18_namedtuple() -> preheat.Spec:
    return preheat.Spec(of_namedtuple, examples=[(Named(torch.randn(8), torch.randn(8)),)])


@preheat.target
def c19_int_float_args() -> preheat.Spec:
    x = torch.randn(8)
    return preheat.Spec(power, examples=[(x, 2, 0.5), (x, 3, 0.5), (x, 3, 0.7)])


@preheat.target
def c19b_enum_arg() -> preheat.Spec:
    x = torch.randn(8)
    return preheat.Spec(chosen, examples=[(x, Choice.A), (x, Choice.B)])


@preheat.target
def c19c_dtype_arg() -> preheat.Spec:
    x = torch.randn(8)
    return preheat.Spec(converted, examples=[(x, torch.float64), (x, torch.bfloat16)])


@preheat.target
def c20_mark_dynamic() -> preheat.Spec:
    rows = (4, 7, 9)
    examples = [torch.randn(count, 16) for count in rows]
    for x in examples[:2]:
        torch._dynamo.mark_dynamic(x, 0)
    return preheat.Spec(Plain(), examples=[(x,) for x in examples])


@preheat.target
def c21_dynamic_true() -> preheat.Spec:
    examples = [(torch.randn(4, 16),), (torch.randn(6, 16),)]
    return preheat.Spec(Plain(), examples=examples, dynamic=True)


@preheat.target
def c22_automatic_dynamic() -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(count, 16),) for count in (4, 6, 11)])


@preheat.target
def c23_many_recompiles() -> preheat.Spec:
    return preheat.Spec(
        plain,
        examples=[
            (torch.randn(*shape).to(dtype), torch.randn(*shape).to(dtype))
            for dtype in (torch.float32, torch.float64, torch.bfloat16)
            for shape in ((4,), (3, 5))
        ],
    )


@preheat.target
def c59_numpy() -> preheat.Spec:
    return preheat.Spec(numpy_sine, examples=[(np.ones(8, dtype=np.float32),)])
