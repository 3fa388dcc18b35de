"""Small programs in memory: what an edit of their text would be found to change."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preheat.sources.closure import find_closure
from preheat.sources.compare import changes
from preheat.sources.selection import surroundings_of
from preheat.sources.tables import read_table

if TYPE_CHECKING:
    from preheat.sources.units import Closure, Unit

Files = dict[str, str]  # path -> text


def module_name(path: str) -> str:
    """``pkg/__init__.py`` -> ``pkg``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True)
class Program:
    """Modules and the closure of some roots (``module:name``) in them."""

    files: Files
    closure: Closure

    @classmethod
    def of(cls, files: Files, *roots: str, inherited: tuple[str, ...] | None = ()) -> Program:
        files = {path: textwrap.dedent(text) for path, text in files.items()}
        sources = {
            module_name(path): (path.endswith("__init__.py"), text.encode())
            for path, text in files.items()
        }
        pairs = [(module, name) for module, _, name in (root.partition(":") for root in roots)]
        return cls(files, find_closure(sources, pairs, inherited=inherited))

    def units(self, module: str) -> dict[str, Unit]:
        """The units of a module that count, by symbol."""
        (found,) = (one for one in self.closure.modules if one.module == module)
        return {unit.symbol: unit for unit in found.units}

    def edited(self, path: str, old: str, new: str) -> list[str]:
        """What replacing ``old`` by ``new`` in a file changes."""
        assert self.files[path].count(old) == 1, (old, self.files[path])
        return self.rewritten(path, self.files[path].replace(old, new))

    def appended(self, path: str, text: str) -> list[str]:
        """What more text at the end of a file changes."""
        return self.rewritten(path, self.files[path] + textwrap.dedent(text))

    def rewritten(self, path: str, text: str) -> list[str]:
        """What another text of a file changes: ``kind symbol``."""
        packages = {one.module: one.package for one in self.closure.modules}
        around = surroundings_of(self.closure, packages)
        (units,) = (one for one in self.closure.modules if one.module == module_name(path))
        table = read_table(text.encode())
        found = changes(units, table, path.endswith("__init__.py"), around)
        return [f"{one.kind} {one.symbol}" if one.symbol else one.kind for one in found]
