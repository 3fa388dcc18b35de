"""CUDA graphs: a compiled graph that was built for them is captured in the worker, and replayed.

The first call of a graph runs as it is, and loads its kernels. The second is captured: its parameters
and buffers stay where they are, every other input gets a place of its own that each call copies into.
What cannot be captured safely runs as it is, always.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Parameters that move again and again are not worth capturing for.
_CAPTURES = 4
_KEYS = 16


@dataclasses.dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: list[Any]
    static: tuple[tuple[int, int], ...]
    stream: int

    def fits(self, args: Sequence[Any]) -> bool:
        return all(args[index].data_ptr() == pointer for index, pointer in self.static)

    def on_current_stream(self) -> bool:
        return bool(self.stream == torch.cuda.current_stream().cuda_stream)


class CapturedGraph:
    """``compiled`` as a CUDA graph. ``static`` are its parameters and buffers among the inputs.

    Results are copies: a later call never changes them, unlike those of ``torch.compile``'s trees of
    CUDA graphs. Calls on another stream than the first captured one's run as they are.
    """

    def __init__(self, compiled: Callable[[list[Any]], Any], static: Sequence[int]) -> None:
        self._compiled = compiled
        self._static = frozenset(static)
        self._lock = threading.Lock()
        self._captures: dict[tuple[Any, ...], int] = {}
        self._captured: dict[tuple[Any, ...], _Captured] = {}

    def __call__(self, args: list[Any]) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return self._compiled(args)
        key = tuple(arg for arg in args if not isinstance(arg, torch.Tensor))
        with self._lock:
            captured = self._captured.get(key)
            if captured is None or not captured.fits(args):
                captured = self._capture(key, args)
            if captured is not None and captured.on_current_stream():
                return self._replay(captured, args)
        return self._compiled(args)

    def _capture(self, key: tuple[Any, ...], args: list[Any]) -> _Captured | None:
        """None for a call that runs as it is: the first of its kind, or one that cannot be captured."""
        self._captured.pop(key, None)
        count = self._captures.get(key, 0)
        if count > _CAPTURES or len(self._captures) > _KEYS or not _can_be_captured(args):
            return None
        self._captures[key] = count + 1
        if count == 0:
            return None
        static = tuple((index, args[index].data_ptr()) for index in sorted(self._static))
        stream = torch.cuda.current_stream().cuda_stream
        inputs = [
            arg
            if index in self._static or not isinstance(arg, torch.Tensor)
            else torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype, device=arg.device)
            for index, arg in enumerate(args)
        ]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                outputs = list(self._compiled(list(inputs)))
        except RuntimeError:
            self._captures[key] = _CAPTURES + 1  # an operation that cannot be captured
            return None
        if _share_memory(inputs, outputs):
            self._captures[key] = _CAPTURES + 1
            return None
        captured = self._captured[key] = _Captured(graph, inputs, outputs, static, stream)
        return captured

    def _replay(self, captured: _Captured, args: list[Any]) -> list[Any]:
        for index, (place, arg) in enumerate(zip(captured.inputs, args, strict=True)):
            if isinstance(arg, torch.Tensor) and index not in self._static:
                place.copy_(arg)
        args.clear()
        captured.graph.replay()
        return [
            output.clone() if isinstance(output, torch.Tensor) else output
            for output in captured.outputs
        ]


def _can_be_captured(args: Sequence[Any]) -> bool:
    """Every tensor is on the GPU, and none has elements that share memory: those cannot be copied to."""
    return all(
        arg.is_cuda and torch._debug_has_internal_overlap(arg) == 0
        for arg in args
        if isinstance(arg, torch.Tensor)
    )


def _share_memory(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether an output is a view of an input: a copy of it would not be."""
    storages = {
        value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)
    }
    return any(
        output.untyped_storage().data_ptr() in storages
        for output in outputs
        if isinstance(output, torch.Tensor)
    )
