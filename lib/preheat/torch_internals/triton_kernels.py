"""Build side: the machine code of Triton kernels, and how Inductor launches each."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import marshal
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preheat.image.format import TritonKernel
from preheat.image.values import UnportableError
from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECT_PREFIX = "gpu/"
# The module of kernels that can be launched without Triton: by version of torch.
_MODULES = (
    "torch._inductor.runtime.static_triton_launcher",
    "torch._inductor.runtime.static_cuda_launcher",
)
_LONGEST_NAME = 100
_CLASSES = ("StaticallyLaunchedTritonKernel", "StaticallyLaunchedCudaKernel")


def settings() -> dict[str, Any]:
    """Inductor's settings under which kernels are launched statically, users' own kernels too."""
    import torch._inductor.config as config

    wanted = {
        "static_launch_user_defined_triton_kernels": True,
        "use_static_triton_launcher": True,
        "use_static_cuda_launcher": True,
    }
    return {name: value for name, value in wanted.items() if hasattr(config, name)}


def _kernel_class() -> Any:
    for module, name in zip(_MODULES, _CLASSES, strict=True):
        with contextlib.suppress(ImportError):
            return getattr(importlib.import_module(module), name)
    return None


@contextlib.contextmanager
def _short_names() -> Iterator[None]:
    """Names of fused kernels that leave their files findable.

    Triton cuts a kernel's name to 150 characters where it names files; torch looks for a file of the
    whole name, finds none, and gives up launching the kernel without Triton.
    """
    import torch._inductor.codegen.triton as codegen

    original = vars(codegen)["get_fused_kernel_name"]

    def short(*args: Any, **kwargs: Any) -> str:
        name: str = original(*args, **kwargs)
        return name[:_LONGEST_NAME]

    with replaced(codegen, "get_fused_kernel_name", short):
        yield


class TritonRecorder:
    """Keeps the machine code of each kernel that torch loads while it listens."""

    def __init__(self) -> None:
        self._code: dict[int, tuple[Any, bytes]] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record inside the block."""
        kind = _kernel_class()
        if kind is None:
            yield
            return
        original = vars(kind)["load_kernel"]

        def load_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            # Loading forgets where the machine code was.
            path = getattr(kernel, "cubin_path", None)
            if path is not None:
                self._code[id(kernel)] = (kernel, Path(path).read_bytes())
            return original(kernel, *args, **kwargs)

        with replaced(kind, "load_kernel", load_kernel), _short_names():
            yield

    def kernel(self, name: str, autotuner: Any) -> tuple[TritonKernel, bytes]:
        """The kernel that generated code calls ``name``, and its machine code.

        Raises ``UnportableError`` when torch cannot launch it without Triton.
        """
        launchers: list[Any] = list(getattr(autotuner, "launchers", ()))
        if len(launchers) != 1:
            raise UnportableError(f"Triton kernel {name!r} has {len(launchers)} configurations")
        launcher: Any = launchers[0]
        scope = getattr(launcher, "__globals__", {})
        kernel: Any = getattr(scope.get("runner"), "__self__", None)
        if id(kernel) not in self._code or not isinstance(launcher, types.FunctionType):
            raise UnportableError(f"Triton kernel {name!r} cannot be launched without Triton")
        configuration = getattr(launcher, "config", None)
        if getattr(configuration, "pre_hook", None) is not None:
            raise UnportableError(f"Triton kernel {name!r} runs Python before each launch")
        code = self._code[id(kernel)][1]
        scratch = int(kernel.has_global_scratch) + int(getattr(kernel, "has_profile_scratch", 0))
        record = TritonKernel(
            name=name,
            object=OBJECT_PREFIX + hashlib.sha256(code).hexdigest(),
            function=kernel.name,
            shared=kernel.shared,
            warps=kernel.num_warps,
            signature=kernel.arg_tys + "O" * scratch,
            scratch=scratch,
            launcher=marshal.dumps(launcher.__code__),
        )
        return record, code
