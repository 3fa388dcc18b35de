"""Build side: what torch's guard pickler does not know, and what happens when it fails.

Whatever a guard is about travels with the guards. torch passes on errors of ``pickle`` as errors of the
program; here they only say that the frame cannot be packaged.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def pickling_more() -> Iterator[None]:
    """Inside the block, guards may be about custom operators; other failures bypass the frame."""
    from torch._dynamo import guards
    from torch._dynamo.exc import PackageError
    from torch._library.custom_ops import CustomOpDef

    pickler = guards.GuardsStatePickler
    original_reduce = vars(pickler)["reducer_override"]
    original_pickle = guards.pickle_guards_state

    def reduce(self: Any, value: Any) -> Any:
        if isinstance(value, CustomOpDef):
            return custom_operator, (value._qualname,)
        return original_reduce(self, value)

    def pickle_state(*args: Any, **kwargs: Any) -> bytes:
        try:
            return original_pickle(*args, **kwargs)
        except PackageError:
            raise
        except Exception as error:
            raise PackageError(f"{type(error).__name__}: {error}") from error

    with (
        replaced(pickler, "reducer_override", reduce),
        replaced(guards, "pickle_guards_state", pickle_state),
    ):
        yield


def custom_operator(name: str) -> Any:
    """What ``torch.library.custom_op`` made under this name (``namespace::name``) in this process.

    Raises ``LookupError`` where nothing did.
    """
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(name)
    if found is None:
        raise LookupError(f"no custom operator is named {name!r}")
    return found
