"""Which names classes of user modules have from libraries.

A library may call a method by any name that its own base class has (``torch.nn.Module.train``), so a
method of such a name counts without being mentioned in user code.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType


def inherited_names(
    user_modules: Iterable[str], modules: Mapping[str, ModuleType] | None = None
) -> tuple[str, ...]:
    """The names, without those that Python gives to special methods, in order.

    Classes are those found under a name of their own module. Not promised: classes that are made inside
    of functions, which count as a whole with their function.
    """
    known = sys.modules if modules is None else modules
    users = frozenset(user_modules)
    foreign: set[type] = set()
    for name in users:
        for value in list(vars(known.get(name, object)).values()):
            if isinstance(value, type) and value.__module__ == name:
                foreign.update(base for base in value.__mro__ if base.__module__ not in users)
    names = {name for base in foreign for name in vars(base)}
    return tuple(sorted(name for name in names if not _is_special(name)))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
