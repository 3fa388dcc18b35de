"""A module's text of today against what a package recorded of it. Pure, and local to one module.

A closure need not be followed again: if every piece that counted says the same, then the same names
are looked up, and a new piece counts exactly when it binds one of those or does something by itself.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import msgspec

from preheat.sources.digest import NOT_A_PROGRAM
from preheat.sources.selection import order_digest, select, unit_digests, view_of
from preheat.sources.units import Unit

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.sources.files import FileDigests
    from preheat.sources.pieces import Piece
    from preheat.sources.selection import Surroundings
    from preheat.sources.tables import ModuleTable
    from preheat.sources.units import ModuleUnits


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference that counts.

    ``kind``: ``symbol_edited``, ``symbol_deleted``, ``symbol_added``, ``order_changed`` or
    ``module_edited``. ``before`` and ``now``: first and last line, where there are any.
    """

    kind: str
    symbol: str | None = None
    before: tuple[int, int] | None = None
    now: tuple[int, int] | None = None
    detail: str = ""


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """The units of a module's text of today that count, and the digest of their order."""

    units: tuple[Unit, ...]
    order: str


def file_changes(
    recorded: ModuleUnits, path: Path, digests: FileDigests, around: Surroundings
) -> tuple[Change, ...]:
    """What differs between a module as it was recorded and a file: see ``changes``.

    A file that compiles to the same bytecode is the same program, however it is taken apart.
    """
    package = path.name == "__init__.py"
    if recorded.code and recorded.package == package and digests.code(path) == recorded.code:
        return ()
    return changes(recorded, digests.table(path), package, around)


def changes(
    recorded: ModuleUnits, table: ModuleTable | None, package: bool, around: Surroundings
) -> tuple[Change, ...]:
    """What differs between a module as it was recorded and its text of today.

    ``table`` None: the text does not parse. For modules that are recorded as a whole there is nothing
    to compare here.
    """
    if table is None:
        return (_NOT_COMPILED,)
    try:
        # Only a short cut, which takes longer than the comparison of one package.
        if not recorded.code and recorded.package == package and recorded.table == table.summary():
            return ()
        if table.relative and recorded.package != package:
            return (_MOVED_IMPORTS,)
        current = current_units(recorded, table, package, around)
    except NOT_A_PROGRAM:
        return (_NOT_COMPILED,)
    return unit_changes(recorded.units, current.units) or _order_changes(recorded, current)


_NOT_COMPILED = Change(kind="module_edited", detail="is no Python that can be compiled")
_MOVED_IMPORTS = Change(kind="module_edited", detail="its imports start from another place")


def current_units(
    recorded: ModuleUnits, table: ModuleTable, package: bool, around: Surroundings
) -> Current:
    """The units that count today. Raises one of ``NOT_A_PROGRAM`` for text that does not compile."""
    view = view_of(recorded, package)
    chosen = select(table, view, around)
    units = tuple(unit_of(piece, around) for piece in chosen)
    return Current(units=units, order=order_digest(table, chosen, view, around))


def unit_of(piece: Piece, around: Surroundings) -> Unit:
    """A piece as a manifest records it."""
    digest, head = unit_digests(piece, around)
    return Unit(symbol=piece.symbol, digest=digest, head=head, first=piece.first, last=piece.last)


def unit_changes(before: tuple[Unit, ...], now: tuple[Unit, ...]) -> tuple[Change, ...]:
    """Units that were edited, deleted or added; a unit that only moved is no change."""
    if list(map(_said, before)) == list(map(_said, now)):
        return ()
    gone = collections.Counter(map(_said, before))
    gone.subtract(map(_said, now))
    if not any(gone.values()):
        return ()
    lost, found = _by_symbol(before, gone, 1), _by_symbol(now, gone, -1)
    result = []
    for symbol in dict.fromkeys((*lost, *found)):
        old, new = lost.get(symbol, []), found.get(symbol, [])
        for index in range(max(len(old), len(new))):
            result.append(_change(symbol, old[index : index + 1], new[index : index + 1]))
    return tuple(result)


def _said(unit: Unit) -> tuple[str, str, str | None]:
    return unit.symbol, unit.digest, unit.head


def _by_symbol(
    units: tuple[Unit, ...], balance: collections.Counter[tuple[str, str, str | None]], sign: int
) -> dict[str, list[Unit]]:
    """The units of which there are fewer on the other side, by symbol."""
    left = {said: count * sign for said, count in balance.items() if count * sign > 0}
    found: dict[str, list[Unit]] = {}
    for unit in units:
        if left.get(_said(unit), 0) > 0:
            left[_said(unit)] -= 1
            found.setdefault(unit.symbol, []).append(unit)
    return found


def _change(symbol: str, old: list[Unit], new: list[Unit]) -> Change:
    before = (old[0].first, old[0].last) if old else None
    now = (new[0].first, new[0].last) if new else None
    if not new:
        return Change(kind="symbol_deleted", symbol=symbol, before=before)
    if not old:
        return Change(kind="symbol_added", symbol=symbol, now=now)
    detail = ""
    if old[0].digest == new[0].digest:
        detail = "its decorators, defaults or annotations"
    return Change(kind="symbol_edited", symbol=symbol, before=before, now=now, detail=detail)


def _order_changes(recorded: ModuleUnits, current: Current) -> tuple[Change, ...]:
    if recorded.order == current.order:
        return ()
    detail = "statements that work on each other stand in another order"
    return (Change(kind="order_changed", detail=detail),)
