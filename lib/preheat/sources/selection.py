"""Which pieces of a module count for a package, and what their order says.

One rule for the build, which finds the closure, and for daemon and worker, which compare it: a piece
counts when running it does more than binding names, or when a name that it binds is looked up. So a
piece that nobody has written yet is found when it appears, without following the closure again.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from preheat.sources.pieces import Imported, Piece, joined
from preheat.sources.purity import QUIET_LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheat.sources.tables import ModuleTable
    from preheat.sources.units import Closure, ModuleUnits


_BUILTINS = frozenset(dir(builtins))


@dataclass(slots=True)
class View:
    """What is known about one module from outside of it; see ``ModuleUnits``."""

    module: str
    package: bool
    names: set[str] | frozenset[str]
    everything: bool = False
    open: bool = False
    lambdas: bool = False
    effects: bool = False


@dataclass(slots=True)
class Surroundings:
    """What is known about the whole closure; see ``Closure``.

    ``packages``: every user module, and whether it is a package. ``noisy``: user modules whose import
    does more than binding names.
    """

    packages: Mapping[str, bool]
    attributes: set[str] | frozenset[str]
    any_attribute: bool = False
    inherited: frozenset[str] | None = None
    hooked: set[str] | frozenset[str] = frozenset()
    stored: set[str] | frozenset[str] = frozenset()
    any_store: bool = False
    annotations: bool = False
    docstrings: bool = False
    noisy: set[str] | frozenset[str] = frozenset()
    parents: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in self.packages:
            while "." in name:
                name = name.rpartition(".")[0]
                self.parents.add(name)

    def is_user(self, module: str) -> bool:
        """Whether a module, or a namespace package, is the user's."""
        return module in self.packages or module in self.parents

    def is_package(self, module: str) -> bool:
        """Whether importing names from a module may import its submodules."""
        return self.packages.get(module, True)


def surroundings_of(closure: Closure, packages: Mapping[str, bool]) -> Surroundings:
    """The surroundings as a manifest records them."""
    inherited = None if closure.inherited is None else frozenset(closure.inherited)
    return Surroundings(
        packages=packages,
        attributes=frozenset(closure.attributes),
        any_attribute=closure.any_attribute,
        inherited=inherited,
        hooked=frozenset(closure.hooked),
        stored=frozenset(closure.stored),
        any_store=closure.any_store,
        annotations=closure.annotations,
        docstrings=closure.docstrings,
        noisy=frozenset(one.module for one in closure.modules if one.effects),
    )


def view_of(module: ModuleUnits, package: bool) -> View:
    """What a manifest records about one module."""
    return View(
        module.module,
        package,
        frozenset(module.names),
        module.everything,
        module.open,
        module.lambdas,
        module.effects,
    )


def select(table: ModuleTable, view: View, around: Surroundings) -> list[Piece]:
    """The pieces that count, in the order of the text; methods behind all others."""
    if view.everything:
        chosen = {piece for piece in table.pieces if piece.kind != "runs"}
    else:
        chosen = set(table.loud)
        for name in _looked_up(table, view, around):
            chosen.update(table.bound[name])
    chosen.update(piece for piece in table.runs if _runs_something(piece, view, around))
    chosen.update(piece for piece in table.derived if _counts_by_itself(piece, view, around))
    if view.lambdas:
        chosen.update(table.lambdas)
    for piece in tuple(chosen):
        if piece.members:
            chosen.update(_methods(piece, view, around))
    return sorted(chosen, key=table.order.__getitem__)


def resolve(imported: Imported, module: str, package: bool) -> str:
    """The full name of the module that an import names."""
    if not imported.level:
        return imported.module
    parts = module.split(".")
    kept = parts[: len(parts) - imported.level + (1 if package else 0)]
    return ".".join([*kept, imported.module] if imported.module else kept)


def _looked_up(table: ModuleTable, view: View, around: Surroundings) -> Iterable[str]:
    names = table.bound.keys() & view.names
    if view.open:
        names |= table.bound.keys() & around.attributes
        if around.any_attribute:
            names = set(table.bound)
    return names


def does_more(piece: Piece, view: View, around: Surroundings) -> bool:
    """Whether running a piece may do more than binding names."""
    if piece.kind == "runs":
        return _is_noisy(piece, view, around)
    return _counts_by_itself(piece, view, around)


def is_hooked(piece: Piece, hooked: set[str], view: View, around: Surroundings) -> bool:
    """Whether a class may run code when somebody derives from it."""
    return (
        piece.keywords
        or "__init_subclass__" in piece.members
        or not hooked.isdisjoint(piece.bases)
        or any(_is_unknown_base(path, view, around) for path in piece.foreign)
    )


def _counts_by_itself(piece: Piece, view: View, around: Surroundings) -> bool:
    if piece.loud:
        return True
    if piece.kind != "class" or not (piece.bases or piece.foreign):
        return False
    if "__subclasses__" in around.attributes or not around.hooked.isdisjoint(piece.bases):
        return True
    return any(_is_unknown_base(path, view, around) for path in piece.foreign)


def _is_unknown_base(path: str, view: View, around: Surroundings) -> bool:
    if path == "?":
        return True
    return not path.startswith(".") and not around.is_user(path.split(".")[0])


def _runs_something(piece: Piece, view: View, around: Surroundings) -> bool:
    """Whether an import runs a user's module, or a library that may do anything."""
    assert piece.imported is not None
    module = resolve(piece.imported, view.module, view.package)
    if not around.is_user(module.split(".")[0]):
        return piece.imported.attribute is None and module.split(".")[0] not in QUIET_LIBRARIES
    # Names that are imported from a package may be modules.
    return piece.imported.attribute is None or around.is_package(module)


def _methods(owner: Piece, view: View, around: Surroundings) -> Iterable[Piece]:
    every = view.everything or around.any_attribute
    inherited = around.inherited if owner.bases else frozenset()
    for name, method in owner.members.items():
        if (
            every
            or inherited is None
            or name in around.attributes
            or name in inherited
            or method.always
        ):
            yield method


def unit_digests(piece: Piece, around: Surroundings) -> tuple[str, str | None]:
    """Digest and head of a piece, with what else counts in this closure."""
    digest, head = piece.digest(), piece.head()
    more = (
        piece.told.annotations if around.annotations else None,
        piece.docstrings() if around.docstrings else None,
    )
    if more == (None, None):
        return digest, head
    return (digest, joined(head, *more)) if piece.spans else (joined(digest, *more), None)


def order_digest(
    table: ModuleTable, chosen: Iterable[Piece], view: View, around: Surroundings
) -> str:
    """The digest of the pieces whose order matters, "" where there are fewer than two."""
    unsteady = table.repeated | around.stored
    # A builtin's name means the builtin until the module binds it.
    unsteady |= _BUILTINS & table.bound.keys()
    stars = bool(table.stars)
    pinned = [piece for piece in chosen if _is_pinned(piece, unsteady, stars, view, around)]
    if len(pinned) < 2:
        return ""
    return joined(*(f"{piece.symbol} {piece.digest()} {piece.head()}" for piece in pinned))


def _is_pinned(
    piece: Piece, unsteady: set[str] | frozenset[str], stars: bool, view: View, around: Surroundings
) -> bool:
    """Whether a piece may not change places with others.

    Free are pieces that only bind names, once, which nobody else binds, from values that keep.
    """
    if piece.kind == "method":
        return False
    if does_more(piece, view, around):
        return True
    if piece.kind == "runs":
        return False
    return stars or around.any_store or _is_unsteady(piece, unsteady)


def _is_unsteady(piece: Piece, unsteady: set[str] | frozenset[str]) -> bool:
    return not unsteady.isdisjoint(piece.names) or not unsteady.isdisjoint(piece.told.words)


def _is_noisy(piece: Piece, view: View, around: Surroundings) -> bool:
    assert piece.imported is not None
    module = resolve(piece.imported, view.module, view.package)
    if piece.imported.attribute is not None:
        module = f"{module}.{piece.imported.attribute}"
        return module in around.noisy
    if not around.is_user(module.split(".")[0]):
        return True
    parents = module.split(".")
    return any(".".join(parents[:depth]) in around.noisy for depth in range(1, len(parents) + 1))
