"""Triton kernels, launched without Triton: machine code from the store, and torch's static launcher."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError
from preheat.image.format import TritonKernel, unmarshal
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.store.protocol import OpenObject

_loaded: dict[tuple[str, str, int], Any] = {}


class LaunchedKernel:
    """What generated code calls ``run`` of."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run


def load_triton_kernel(
    kernel: TritonKernel, opening: Callable[[], OpenObject], digest: str, device: int
) -> LaunchedKernel:
    """A kernel on one GPU; its machine code is loaded once a process and GPU.

    Raises ``IncompatibleError`` when the driver refuses the machine code.
    """
    launcher: Any = getattr(torch._C, "_StaticCudaLauncher", None)
    if launcher is None:
        raise IncompatibleError(reasons=[_refused(kernel, "this torch has no static launcher")])
    key = (digest, kernel.function, device)
    function = _loaded.get(key)
    if function is None:
        opened = opening()
        try:
            with torch.cuda.device(device):
                loaded = launcher._load_kernel(
                    opened.path(), kernel.function, kernel.shared, device
                )
        except RuntimeError as error:
            raise IncompatibleError(reasons=[_refused(kernel, str(error)[:300])]) from error
        finally:
            opened.close()
        # Since torch 2.12 the module comes first, so that it can be unloaded.
        function = _loaded[key] = loaded[0] if len(loaded) == 3 else loaded[1]
    return LaunchedKernel(_launcher(kernel, function, launcher._launch_kernel))


def _launcher(kernel: TritonKernel, function: Any, launch: Any) -> Callable[..., None]:
    warps, shared, signature = kernel.warps, kernel.shared, kernel.signature
    scratch = (None,) * kernel.scratch

    def runner(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        launch(function, x, y, z, warps, shared, signature, (*args, *scratch), stream)

    code = unmarshal(kernel.launcher)
    return types.FunctionType(code, {"runner": runner, "__builtins__": __builtins__})


def _refused(kernel: TritonKernel, why: str) -> Reason:
    return Reason(kind="kernel_not_loaded", symbol=kernel.function, detail=why)
