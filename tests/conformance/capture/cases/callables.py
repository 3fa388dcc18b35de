"""What can be compiled: functions, methods, modules, closures, objects."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import preheat
from cases.modules import Deep, Plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def plain(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x) + y * 2


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def method(self, x: Tensor) -> Tensor:
        return torch.cos(x) * self.factor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + self.factor


def plus_one(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs) + 1

    return wrapper


@plus_one
def decorated(x: Tensor) -> Tensor:
    return torch.sin(x) * 2


def multiplier(factor: float) -> Callable[[Tensor], Tensor]:
    def inner(x: Tensor) -> Tensor:
        return torch.sin(x) * factor

    return inner


def tensor_multiplier() -> Callable[[Tensor], Tensor]:
    factor = torch.randn(8)

    def inner(x: Tensor) -> Tensor:
        return torch.sin(x) * factor

    return inner


minus_one = lambda x: torch.exp(x) - 1  # noqa: E731 - the case is a lambda

FACTOR = 2.0


def with_globals(x: Tensor) -> Tensor:
    return x * FACTOR + helper(x)


def helper(x: Tensor) -> Tensor:
    return x.sin()


def multiples(x: Tensor) -> Any:
    for index in range(3):
        yield x * index


def summed(x: Tensor) -> Tensor:
    return sum(multiples(x))


@preheat.target
def c01_plain_fn() -> preheat.Spec:
    return preheat.Spec(plain, examples=[(torch.randn(8, 8), torch.randn(8, 8))])


@preheat.target
def c02_module() -> preheat.Spec:
    return preheat.Spec(Plain(), examples=[(torch.randn(4, 16),)])


@preheat.target
def c03_modulelist() -> preheat.Spec:
    return preheat.Spec(Deep(), examples=[(torch.randn(4, 16),)])


@preheat.target
def c03b_sequential_nnbuiltin() -> preheat.Spec:
    module = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4))
    return preheat.Spec(module, examples=[(torch.randn(4, 16),)])


@preheat.target
def c04_bound_method() -> preheat.Spec:
    return preheat.Spec(Scaled(3.0).method, examples=[(torch.randn(8),)])


@preheat.target
def c05_wraps_decorated() -> preheat.Spec:
    return preheat.Spec(decorated, examples=[(torch.randn(8),)])


@preheat.target
def c06_nested_closure() -> preheat.Spec:
    return preheat.Spec(multiplier(2.5), examples=[(torch.randn(8),)])


@preheat.target
def c06b_closure_tensor() -> preheat.Spec:
    return preheat.Spec(tensor_multiplier(), examples=[(torch.randn(8),)])


@preheat.target
def c07_lambda() -> preheat.Spec:
    return preheat.Spec(minus_one, examples=[(torch.randn(8),)])


@preheat.target
def c08_partial() -> preheat.Spec:
    bound = functools.partial(plain, torch.randn(8, 8))
    return preheat.Spec(bound, examples=[(torch.randn(8, 8),)])


@preheat.target
def c09_callable_obj() -> preheat.Spec:
    return preheat.Spec(Scaled(2.0), examples=[(torch.randn(8),)])


@preheat.target
def c56_globals() -> preheat.Spec:
    return preheat.Spec(with_globals, examples=[(torch.randn(8),)])


@preheat.target
def c58_generator_inlined() -> preheat.Spec:
    return preheat.Spec(summed, examples=[(torch.randn(8),)])
