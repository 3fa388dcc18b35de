"""Finding what a package refers to by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types


def import_object(path: str) -> Any:
    """A module by its name, or what ``module:qualified.name`` names in one.

    Raises ``ImportError`` or ``AttributeError`` for what is not there.
    """
    module, _, qualname = path.partition(":")
    found: Any = import_module(module)
    for part in qualname.split(".") if qualname else ():
        found = getattr(found, part)
    return found


def import_module(name: str) -> types.ModuleType:
    """Import a module by name; the main module answers for the name it was started from."""
    if name not in sys.modules:
        main = sys.modules.get("__main__")
        if main is not None and _is_file_of(main, name):
            sys.modules[name] = main
    return importlib.import_module(name)


def _is_file_of(main: types.ModuleType, name: str) -> bool:
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == name:
        return True
    file = getattr(main, "__file__", None)
    if file is None or spec is not None:
        return False
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return bool(found and found.origin and Path(found.origin).resolve() == Path(file).resolve())
