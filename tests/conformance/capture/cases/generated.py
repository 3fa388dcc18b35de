"""Code and classes that are made while the program runs."""

from __future__ import annotations

import linecache
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import preheat

if TYPE_CHECKING:
    from torch import Tensor

TEXT = "import torch\ndef generated(x): return torch.sin(x) * 4\n"


def local_class() -> type[nn.Module]:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.linear(x))

    return Local


def _initialise(self: Any) -> None:
    nn.Module.__init__(self)
    self.linear = nn.Linear(8, 8)


Made = type(
    "Made",
    (nn.Module,),
    {"__init__": _initialise, "forward": lambda self, x: torch.relu(self.linear(x))},
)


@preheat.target
def c54_exec_source() -> preheat.Spec:
    names: dict[str, Any] = {}
    exec(compile(TEXT, "<generated>", "exec"), names)  # noqa: S102 - the case is an exec
    return preheat.Spec(names["generated"], examples=[(torch.randn(8),)])


@preheat.target
def c54b_exec_source_linecache() -> preheat.Spec:
    module = types.ModuleType("generated_module")
    file = module.__file__ = "<generated>/generated_module.py"
    sys.modules["generated_module"] = module
    linecache.cache[file] = (len(TEXT), None, TEXT.splitlines(True), file)
    exec(compile(TEXT, file, "exec"), vars(module))  # noqa: S102 - the case is an exec
    return preheat.Spec(module.generated, examples=[(torch.randn(8),)])


@preheat.target
def c55_local_class() -> preheat.Spec:
    return preheat.Spec(local_class()(), examples=[(torch.randn(4, 8),)])


@preheat.target
def c55b_type_created_class() -> preheat.Spec:
    return preheat.Spec(Made(), examples=[(torch.randn(4, 8),)])
