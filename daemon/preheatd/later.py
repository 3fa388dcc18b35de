"""Modules that are imported when they are first used, so that a daemon does not keep what it never needs."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def later(name: str) -> ModuleType:
    """The module ``name``; its code runs when something of it is asked for. Raises ``ImportError``."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"There is no module {name}.", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, own = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own, module)  # as an import does
    return module
