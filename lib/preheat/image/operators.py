"""Custom operators written in Python, called without importing the compiler.

torch hides the body of such an operator from Dynamo, and imports Dynamo at the operator's first call to
do so: seconds, in a process that compiles nothing. Without Dynamo there is nothing to hide it from.
"""

from __future__ import annotations

import sys
from typing import Any

_MARK = "__dynamo_disable"
_marked: list[Any] = []


def spare_the_compiler() -> None:
    """Let the operators that are registered now be called without it.

    Does nothing once the compiler is here. Operators that are registered later are not covered.
    """
    operators: Any = sys.modules.get("torch._library.custom_ops")
    if "torch._dynamo" in sys.modules or operators is None:
        return
    for definition in list(operators.OPDEFS.values()):
        for function in getattr(definition, "_backend_fns", {}).values():
            body = getattr(function, "__wrapped__", None)
            if body is not None and getattr(body, _MARK, None) is None:
                setattr(body, _MARK, body)
                _marked.append(body)


def compiler_imported() -> None:
    """From now on torch hides the operators' bodies by itself."""
    while _marked:
        body = _marked.pop()
        if getattr(body, _MARK, None) is body:
            delattr(body, _MARK)
