"""A recorded closure, ready to compare with, and its differences as reasons of a verdict."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preheat.sources.selection import Surroundings, surroundings_of
from preheat.sources.units import CLOSURE_FORMAT, RELEASE
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.manifest import Sources
    from preheat.sources.compare import Change
    from preheat.sources.units import Closure, ModuleUnits


@dataclass(frozen=True, slots=True)
class UsableClosure:
    """A recorded closure, ready to compare with."""

    units: Mapping[str, ModuleUnits]
    around: Surroundings
    text: bool


def usable_closure(sources: Sources) -> UsableClosure | None:
    """The closure of a snapshot, or None where there is none that this process can compare with.

    Digests of bytecode are those of one release of Python; another one falls back to whole modules,
    which are then found to differ as soon as their bytes do.
    """
    closure: Closure | None = sources.closure
    if closure is None or closure.format != CLOSURE_FORMAT or closure.python != RELEASE:
        return None
    counts = collections.Counter(module.module for module in sources.modules)
    units = {one.module: one for one in closure.modules if counts[one.module] == 1}
    packages = {one.module: one.package for one in closure.modules}
    return UsableClosure(units, surroundings_of(closure, packages), closure.text)


def change_reason(change: Change, module: str, file: str) -> Reason:
    """A change as a reason of a verdict: the lines stand in the detail."""
    parts = [_lines(change), change.detail]
    return Reason(
        kind=change.kind,
        file=file,
        symbol=module if change.symbol is None else f"{module}.{change.symbol}",
        detail="; ".join(part for part in parts if part),
    )


def _lines(change: Change) -> str:
    now, before = change.now, change.before
    if now is None:
        return "" if before is None else f"was in {_span(before)}"
    if before is None or before == now:
        return _span(now)
    return f"{_span(now)}, was in {_span(before)}"


def _span(lines: tuple[int, int]) -> str:
    return f"line {lines[0]}" if lines[0] == lines[1] else f"lines {lines[0]}-{lines[1]}"
