"""preheat keeps compiled PyTorch programs warm: workers only load, they never compile.

A project marks factories with ``target``; each returns a ``Spec``. The command ``preheat`` builds and
watches; a worker calls ``load``. Importing this package imports neither torch nor asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import preheat.started  # noqa: F401 - as early as can be: it notes what is loaded already
from preheat.errors import PreheatError
from preheat.policy import PreheatWarning
from preheat.verdict import Reason, Verdict

if TYPE_CHECKING:
    from preheat.library import export_library
    from preheat.loaded import LoadReport, Statistics, statistics
    from preheat.spec import Example, Spec, target
    from preheat.store import DiskStore, MemoryStore, Store
    from preheat.worker import load

__all__ = [
    "DiskStore",
    "Example",
    "LoadReport",
    "MemoryStore",
    "PreheatError",
    "PreheatWarning",
    "Reason",
    "Spec",
    "Statistics",
    "Store",
    "Verdict",
    "export_library",
    "load",
    "statistics",
    "target",
]

_LATER = {
    "DiskStore": "preheat.store",
    "Example": "preheat.spec",
    "LoadReport": "preheat.loaded",
    "MemoryStore": "preheat.store",
    "Spec": "preheat.spec",
    "Statistics": "preheat.loaded",
    "Store": "preheat.store",
    "export_library": "preheat.library",
    "load": "preheat.worker",
    "statistics": "preheat.loaded",
    "target": "preheat.spec",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        import importlib

        from preheat.garbage import without_collector

        with without_collector():
            module = importlib.import_module(_LATER[name])
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
