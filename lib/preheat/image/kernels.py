"""C++ kernels, loaded from the store's verified objects."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import CorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.store.protocol import OpenObject

_loaded: dict[str, Any] = {}
_POINTER_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"


def load_cpp_kernel(opening: Callable[[], OpenObject], digest: str, entry: str) -> Any:
    """The function ``entry`` of the kernel library with this digest; one library a process.

    Raises ``ImportError`` when the dynamic loader refuses the library.
    """
    module = _loaded.get(digest)
    if module is None:
        opened = opening()
        try:
            module = _import(f"preheat_kernel_{digest}", digest, entry, opened)
        finally:
            opened.close()
        _loaded[digest] = module
    return getattr(module, entry)


def _import(name: str, digest: str, entry: str, opened: OpenObject) -> Any:
    pointer = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
    os.environ[_POINTER_VARIABLE] = str(pointer)
    # The part after the last dot decides which initialisation function is looked up; the
    # path is spelt as no other object's is, or the dynamic loader would return that one.
    library = f"{name}.{entry}"
    loader = importlib.machinery.ExtensionFileLoader(library, opened.path())
    spec = importlib.util.spec_from_loader(library, loader)
    if spec is None:
        raise CorruptedError(f"Kernel {digest[:12]} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    # Nobody imports it by name.
    sys.modules.pop(library, None)
    return module
