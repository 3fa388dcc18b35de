"""Frames that were compiled on their own: what a graph break left to Python calls them by name.

They have no entry point that could be put in place, so torch's frame evaluation hook runs them. It is
plain C, works without the compiler, and is on only while a call of the image is under way.
"""

from __future__ import annotations

import ast
import functools
import re
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from preheat.errors import IncompatibleError
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preheat.image.codes import Guarded

_eval_frame: Any = torch._C._dynamo.eval_frame
_current = threading.local()


class _Root:
    """What the hook wants of a guard manager."""

    def __init__(self, root: Any) -> None:
        self.root = root


class _Result:
    """The hook's answer: run the frame as it is, and ask again next time."""

    guarded_code = None
    apply_to_code = False
    frame_exec_strategy = _eval_frame._FrameExecStrategy(
        _eval_frame._FrameAction.DEFAULT, _eval_frame._FrameAction.DEFAULT
    )


_AS_IT_IS = _Result()


class NestedFrames:
    """The nested frames of one loaded image.

    ``missed(code, why, frame arguments)`` is asked about a nested frame that no variant answers; it
    returns the hook's answer, or None to run the frame as it is.
    """

    def __init__(self, missed: Callable[[types.CodeType, str, tuple[Any, ...]], Any]) -> None:
        self._missed = missed
        self._guards: dict[int, list[Guarded]] = {}
        self._entries: list[tuple[types.CodeType, Any, types.CodeType]] = []

    def add(
        self, code: types.CodeType, guards: Guarded, root: Any, compiled: types.CodeType
    ) -> None:
        """A variant of a nested frame. It answers only while this image is being called."""
        # Code objects may hold what cannot be hashed; the entries keep them alive.
        self._guards.setdefault(id(code), []).append(guards)
        self._entries.append((code, _Root(root), compiled))

    def publish(self) -> None:
        """Let calls find the variants.

        They stay where they are when the image is gone, and answer nothing: torch could only take away
        all entries of a code object at once, and a thread that is looking through them would then read
        freed memory.
        """
        for code, root, compiled in self._entries:
            _eval_frame._load_precompile_entry(code, root, compiled)

    def is_current(self, _: Any) -> bool:
        """Whether a call of this image is under way in this thread."""
        return getattr(_current, "frames", None) is self

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with the hook on."""

        @functools.wraps(call, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(_current, "frames", None)
            _current.frames = self
            before = _eval_frame.set_eval_frame(self._hook)
            try:
                return call(*args, **kwargs)
            finally:
                _eval_frame.set_eval_frame(before)
                _current.frames = outer

        return run

    def _hook(self, frame: Any, *rest: Any) -> Any:
        code = frame.f_code
        guards = self._guards.get(id(code))
        if guards is None:
            return _AS_IT_IS
        local_scope = dict(frame.f_locals)
        reasons = dict.fromkeys(one.why_not(local_scope) for one in guards)
        why = "; ".join(reason for reason in reasons if reason)
        answer = self._missed(code, why, (frame, *rest))
        return _AS_IT_IS if answer is None else answer


def without_hook(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph is never looked into."""

    def run(*args: Any) -> Any:
        before = _eval_frame.set_eval_frame(None)
        try:
            return graph(*args)
        finally:
            _eval_frame.set_eval_frame(before)

    return run


def find_code(
    module: str, names: Sequence[str], source: str, scope: Mapping[str, Any]
) -> types.CodeType:
    """The live code object of a nested frame: a function of a module, and a path inside of it.

    Raises ``IncompatibleError`` when there is none here.
    """
    try:
        found: Any = types.SimpleNamespace(**scope)
        for part in names[0].split("."):
            found = getattr(found, part)
        for part in source.split("."):
            if match := re.match(r"(\w+)\[(.+)\]$", part):
                found = getattr(found, match[1])[ast.literal_eval(match[2])]
            else:
                found = getattr(found, part)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        symbol = f"{module}.{'.'.join(names)}"
        reason = Reason(kind="live_code_missing", symbol=symbol, detail=str(error))
        raise IncompatibleError(reasons=[reason]) from error
    if not isinstance(found, types.CodeType):
        raise IncompatibleError(reasons=[Reason(kind="live_code_missing", symbol=module)])
    return found
