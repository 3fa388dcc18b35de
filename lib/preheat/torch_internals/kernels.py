"""C++ kernels: their shared libraries travel in the package.

Inductor's generated module asks for each C++ kernel by source text. In the build that request is
answered by compiling, and the library that came out is remembered under a digest of the request. In a
worker it is answered from the package: no compiler runs, no instruction set is probed, and nothing is
read from the worker's own compiler cache.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

from preheat.errors import CorruptedError
from preheat.image.kernels import load_cpp_kernel
from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from preheat.store.protocol import OpenObject


def request_digest(kind: str, argument_types: Any, source: str, extra: str) -> str:
    """Names a kernel request by everything that decides which library answers it."""
    text = "\0".join((kind, repr(list(argument_types)), source, extra))
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of_call(cls: Any, argument_types: Any, source: str, keywords: dict[str, Any]) -> str:
    relevant = {k: v for k, v in sorted(keywords.items()) if k != "submit_fn"}
    return request_digest(cls.__name__, argument_types, source, repr(relevant))


class KernelRecorder:
    """Remembers which library answered which request while a program is compiled."""

    def __init__(self) -> None:
        self._futures: dict[str, Callable[[], Any]] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record requests inside the block."""
        from torch._inductor.codecache import CppPythonBindingsCodeCache as Cache

        original = vars(Cache)["load_pybinding_async"]

        def record(cls: Any, argtypes: Any, main_code: str, *args: Any, **keywords: Any) -> Any:
            future = original.__func__(cls, argtypes, main_code, *args, **keywords)
            named = {**{str(i): a for i, a in enumerate(args)}, **keywords}
            self._futures[_digest_of_call(cls, argtypes, main_code, named)] = future
            return future

        with replaced(Cache, "load_pybinding_async", classmethod(record)):
            yield

    def libraries(self) -> dict[str, str]:
        """Path of the shared library by request digest; waits for compilations under way."""
        found = {}
        for digest, future in self._futures.items():
            module = getattr(future(), "__self__", None)
            path = getattr(module, "__file__", None)
            if path is None:
                raise CorruptedError(f"Kernel {digest[:12]} was loaded from no file.")
            found[digest] = path
        return found


class KernelLoader:
    """Answers kernel requests from a package's objects."""

    def __init__(self, open_kernel: Callable[[str], OpenObject], known: Mapping[str, str]) -> None:
        self._open_kernel = open_kernel
        self._known = known

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Answer requests inside the block. A request that the package lacks raises."""
        from torch._inductor.codecache import CppPythonBindingsCodeCache as Cache

        def answer(cls: Any, argtypes: Any, main_code: str, *args: Any, **keywords: Any) -> Any:
            named = {**{str(i): a for i, a in enumerate(args)}, **keywords}
            digest = _digest_of_call(cls, argtypes, main_code, named)
            if digest not in self._known:
                raise CorruptedError("The package lacks a C++ kernel that its graph asks for.")
            kernel = self._load(digest, cls.entry_function)
            return lambda: kernel

        with replaced(Cache, "load_pybinding_async", classmethod(answer)):
            yield

    def _load(self, digest: str, entry_function: str) -> Any:
        def opening() -> OpenObject:
            return self._open_kernel(self._known[digest])

        return load_cpp_kernel(opening, digest, entry_function)
