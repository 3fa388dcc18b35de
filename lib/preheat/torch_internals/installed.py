"""What is installed in this process, so that packages can come and go without touching each other.

torch can only take all entries of a code object away at once, and a thread that is looking through them
would then read freed memory. So entries stay, and one more guard switches a package's off.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from preheat.image.call_checks import guard_text

if TYPE_CHECKING:
    import types

    from preheat.kinds.interface import Code
    from preheat.verdict import Reason

lock = threading.RLock()


class Switch:
    """The guard that says whether a package's variants answer. Guard trees keep it alive."""

    is_on = True

    def __call__(self, _: Any) -> bool:
        return self.is_on


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
    codes: list[Code] = dataclasses.field(default_factory=list)
    switch: Switch = dataclasses.field(default_factory=Switch)

    def set_global(self, scope: dict[str, Any], name: str, value: Any) -> None:
        """Set a global now. The name is this package's own."""
        scope[name] = value
        self.scopes.append((scope, name, value))

    def has_global(self, scope: dict[str, Any], name: str) -> bool:
        """Whether this package set the global already."""
        return any(known is scope and known_name == name for known, known_name, _ in self.scopes)

    def add(self, code: types.CodeType, manager: Any, compiled: types.CodeType) -> None:
        """A variant of ``code``, with its guard manager. It answers while the package is installed."""
        text = guard_text(["preheat: the package is installed"])
        manager.root.add_epilogue_lambda_guard(self.switch, *text)
        self.entries.append((code, manager, compiled))

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
        """No entry of this package answers any more; other packages on the same code do.

        May be called more than once. Every callable that shares the package loses it. Globals stay: a
        call that is under way in another thread still needs them, and their names are this package's
        own.
        """
        with lock:
            self.switch.is_on = False
            if _installed.get(self.key) is self:
                del _installed[self.key]
            self.entries.clear()
            for code in self.codes:
                code.release()
            self.codes.clear()


_installed: dict[tuple[str, int], Installed] = {}


def find(key: tuple[str, int]) -> Installed | None:
    """A package that is installed already, by its digest and the entry's code object."""
    return _installed.get(key)
