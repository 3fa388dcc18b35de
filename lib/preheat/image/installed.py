"""What is installed in this process, so that packages can come and go without touching each other."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types

    from preheat.verdict import Reason

lock = threading.RLock()


@dataclasses.dataclass(eq=False)
class Installed:
    """Entries and globals of one installed package.

    ``scopes`` are globals that compiled bytecode looks up; ``resumes`` are set only when the code they
    lead to has its entries, so that a call in another thread never meets one without.
    """

    key: tuple[str, int]
    entries: list[tuple[types.CodeType, Any, types.CodeType]] = dataclasses.field(
        default_factory=list
    )
    scopes: list[tuple[dict[str, Any], str, Any]] = dataclasses.field(default_factory=list)
    resumes: list[tuple[dict[str, Any], str, Any]] = dataclasses.field(default_factory=list)
    left_to_python: set[types.CodeType] = dataclasses.field(default_factory=set)
    skipped_variants: list[Reason] = dataclasses.field(default_factory=list)

    def set_global(self, scope: dict[str, Any], name: str, value: Any) -> None:
        """Set a global now. The name is this package's own."""
        scope[name] = value
        self.scopes.append((scope, name, value))

    def has_global(self, scope: dict[str, Any], name: str) -> bool:
        """Whether this package set the global already."""
        return any(known is scope and known_name == name for known, known_name, _ in self.scopes)

    def publish(self) -> None:
        """Let calls find the entries, the target's own last; takes the lock."""
        from torch._C._dynamo.eval_frame import _load_precompile_entry

        with lock:
            _installed[self.key] = self
            main = self.entries[-1][0]
            for code, manager, compiled in self.entries:
                if code is not main:
                    _load_precompile_entry(code, manager, compiled)
            for scope, name, value in self.resumes:
                scope[name] = value
            for code, manager, compiled in self.entries:
                if code is main:
                    _load_precompile_entry(code, manager, compiled)

    def uninstall(self) -> None:
        """Remove this package's entries; other packages on the same code stay.

        May be called more than once. Every callable that shares the package loses it. Globals stay: a
        call that is under way in another thread still needs them, and their names are this package's
        own.
        """
        from torch._C._dynamo.eval_frame import _load_precompile_entry, _reset_precompile_entries

        with lock:
            if _installed.get(self.key) is self:
                del _installed[self.key]
            codes = {id(code): code for code, _, _ in self.entries}
            for code in codes.values():
                _reset_precompile_entries(code)
                for other in _installed.values():
                    for known, manager, compiled in other.entries:
                        if known is code:
                            _load_precompile_entry(known, manager, compiled)
            self.entries.clear()


_installed: dict[tuple[str, int], Installed] = {}


def find(key: tuple[str, int]) -> Installed | None:
    """A package that is installed already, by its digest and the entry's code object."""
    return _installed.get(key)
