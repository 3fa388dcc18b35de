"""Names that Dynamo generates, kept apart between packages.

Dynamo numbers resume functions and other installed globals from one counter that starts at 0 in each
process. Two packages loaded into one module would then overwrite each other's functions, silently.
A start that is derived from target and environment keeps them apart, and is the same the next time,
so that compiler caches stay warm.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from typing import TYPE_CHECKING

from preheat.torch_internals.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

# Far above what a process counts to by itself, and room for 2**24 names a package.
_LOWEST = 1 << 24
_SPACING = 1 << 24


def first_identifier(target: str, environment: str) -> int:
    """The number from which a build of this target in this environment counts."""
    seed = hashlib.sha256(f"{target}\0{environment}".encode()).digest()
    return _LOWEST + int.from_bytes(seed[:5], "big") * _SPACING


@contextlib.contextmanager
def identifiers_from(start: int) -> Iterator[None]:
    """Let Dynamo count from ``start`` inside the block."""
    from torch._dynamo import bytecode_transformation

    with replaced(bytecode_transformation, "_unique_id_counter", itertools.count(start)):
        yield
