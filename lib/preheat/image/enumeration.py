"""What torch's C++ guard tree reads from the compiler's Python modules, without importing them.

Every node of a tree imports ``torch._dynamo.config`` for three values, and the first one ever made
imports ``torch._dynamo.guards`` for an enumeration, which it then keeps. Stand-in modules answer while a
tree is built. When the compiler is imported later, it takes over the enumeration that is kept.

Another thread may start to import the compiler at any time. It must never meet a stand-in half way, so
trees are built under the lock that Python's import system holds while it imports the compiler's package;
and there is no stand-in for the package itself, so that whoever wants it waits for that lock.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any

from preheat.image.operators import compiler_imported

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPILER = "torch._dynamo"
_GUARDS = "torch._dynamo.guards"
_CONFIG = "torch._dynamo.config"
_ENUMERATION = "GuardManagerType"

# What the tree reads; recorded in the build, constant for one torch version and configuration.
SETTINGS = (
    "skip_tensor_guards_with_matching_dict_tags",
    "max_saved_pointers_for_recursive_dict_tags_check",
    "use_recursive_dict_tags_for_guards",
)

_ModuleLock: Any = importlib._bootstrap._ModuleLockManager  # type: ignore[attr-defined]


class GuardManagerType(enum.Enum):
    """torch's enumeration of the same name."""

    GUARD_MANAGER = 1
    DICT_GUARD_MANAGER = 2


class _Bound:
    """Whether C++ may have kept the enumeration above."""

    ours = False


class _StandIn(types.ModuleType):
    """Has what a tree reads. Anybody else, in another thread, waits and gets the real module's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_real(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("__spec__", "__loader__", "__package__"):
            super().__setattr__(name, value)
        else:
            setattr(_real(self.__name__), name, value)


def _real(name: str) -> types.ModuleType:
    with _ModuleLock(_COMPILER):
        _remove_stand_ins()
    return importlib.import_module(name)


def _remove_stand_ins() -> None:
    for name in (_GUARDS, _CONFIG):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


@contextlib.contextmanager
def compiler_settings(settings: dict[str, bool | int]) -> Iterator[None]:
    """Guard trees can be built inside the block, with or without the compiler in this process."""
    with _ModuleLock(_COMPILER):
        if _COMPILER in sys.modules:
            if _GUARDS in sys.modules:
                _give_enumeration(sys.modules[_GUARDS])
            yield
            return
        _watch_for_compiler()
        _Bound.ours = True
        guards, config = _StandIn(_GUARDS), _StandIn(_CONFIG)
        vars(guards)[_ENUMERATION] = GuardManagerType
        vars(config).update(settings)
        sys.modules.update({_GUARDS: guards, _CONFIG: config})
        try:
            yield
        finally:
            _remove_stand_ins()


def manager_kinds() -> Any:
    """The enumeration that C++ compares with: ours, or that of the compiler if it was here first."""
    if _Bound.ours:
        return GuardManagerType
    return getattr(importlib.import_module(_GUARDS), _ENUMERATION)


def _give_enumeration(module: types.ModuleType) -> None:
    if _Bound.ours:
        setattr(module, _ENUMERATION, GuardManagerType)


def _watch_for_compiler() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Gives the compiler's guard module the enumeration, whenever it is really imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _GUARDS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            _give_enumeration(module)
            compiler_imported()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
