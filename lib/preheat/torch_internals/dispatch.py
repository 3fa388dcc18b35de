"""What happens when a frame is met for which no loaded variant's guards hold."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import convert_frame
from torch._dynamo.eval_frame import _optimize_catch_errors, get_compiler_fn
from torch._dynamo.hooks import Hooks
from torch._dynamo.types import ConvertFrameReturn

from preheat.torch_internals.programs import callable_with_code

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from preheat.torch_internals.options import CompileOptions


class MissHandler:
    """Stands where Dynamo's frame converter stands; asked only about frames without a hit.

    ``decide`` is called with a description of the miss and says ``compile`` or ``eager``, or raises.
    Frames that the build left to Python are left to Python here too, without asking.
    """

    def __init__(
        self,
        decide: Callable[[types.CodeType, str], str],
        left_to_python: Callable[[types.CodeType], bool],
        options: CompileOptions,
        hooks: Hooks,
    ) -> None:
        self._decide = decide
        self._left_to_python = left_to_python
        self._options = options
        self._hooks = hooks
        # Dynamo looks for the backend along this attribute.
        self._torchdynamo_orig_backend = _no_backend_yet

    @functools.cached_property
    def _convert(self) -> Any:
        """Dynamo's own converter; made on the first miss, because it imports every backend."""
        backend = torch._dynamo.eval_frame.get_compiler_fn(self._options.backend_object())
        self._torchdynamo_orig_backend = backend
        if self._options.fullgraph:
            return convert_frame.convert_frame_assert(backend)
        return convert_frame.convert_frame(backend, self._hooks)

    def __call__(
        self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0
    ) -> ConvertFrameReturn:
        code = frame.f_code
        if self._left_to_python(code) or not _interesting(frame):
            return ConvertFrameReturn(apply_to_code=False)
        if self._decide(code, why_missed(frame)) == "eager":
            return ConvertFrameReturn(apply_to_code=False)
        result: ConvertFrameReturn = self._convert(
            frame, cache_entry, hooks, frame_state, skip=skip + 1
        )
        return result


def _no_backend_yet(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing was to be compiled yet")


def _interesting(frame: Any) -> bool:
    """Whether Dynamo would try to compile this frame at all."""
    code = frame.f_code
    if code in convert_frame.output_codes:
        return False
    if code.co_name in ("__setattr__", "<genexpr>") or code.co_filename == "<string>":
        return False
    found: bool = convert_frame.has_tensor_in_frame(frame)
    return found


def why_missed(frame: Any) -> str:
    """The first guard that did not hold, of each loaded variant, in torch's words."""
    from torch._C._dynamo.eval_frame import _debug_get_precompile_entries

    from preheat.torch_internals.install import check_that_failed

    texts = []
    for entry in _debug_get_precompile_entries(frame.f_code):
        manager = entry.guard_manager
        if (check := check_that_failed(manager, frame.f_locals)) is not None:
            texts.append(check)
            continue
        try:
            result = manager.check_verbose(frame.f_locals)
            texts += [str(part) for part in result.verbose_code_parts[:1]]
        except Exception as error:
            texts.append(f"guards not readable ({type(error).__name__})")
    return "; ".join(dict.fromkeys(texts)) or "no variant of this code is in the package"


def dispatching(
    fn: Any,
    options: CompileOptions,
    decide: Callable[[types.CodeType, str], str],
    left_to_python: Callable[[types.CodeType], bool],
) -> Callable[..., Any]:
    """``fn`` as a callable that runs loaded variants, and asks ``decide`` on a miss."""
    hooks = Hooks()
    handler = MissHandler(decide, left_to_python, options, hooks)
    context = _optimize_catch_errors(
        handler,
        hooks,
        dynamic=options.dynamic,
    )
    called: Callable[..., Any] = context(callable_with_code(fn))
    return called


def frame_converter() -> Callable[..., Any]:
    """Compiles one frame as plain ``torch.compile`` would; called as the evaluation hook calls."""
    hooks = Hooks()
    convert = convert_frame.convert_frame(get_compiler_fn("inductor"), hooks)

    def run(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        return convert(frame, cache_entry, hooks, frame_state, skip=1)

    return run
