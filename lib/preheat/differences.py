"""Explaining why two records of one type are not equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preheat.manifest import Gpu
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import msgspec


def differences(kind: str, wanted: msgspec.Struct, here: msgspec.Struct) -> tuple[Reason, ...]:
    """One reason of ``kind`` a field that differs, its name as ``symbol``.

    Fields that are mappings are compared entry by entry; the symbol is then ``field.key``.
    """
    reasons: list[Reason] = []
    for name in wanted.__struct_fields__:
        ours, theirs = getattr(wanted, name), getattr(here, name)
        if isinstance(ours, dict):
            reasons.extend(_entries(kind, name, ours, theirs))
        elif ours != theirs:
            reasons.append(difference(kind, name, ours, theirs))
    return tuple(reasons)


def difference(kind: str, symbol: str, wanted: object, here: object) -> Reason:
    """The reason for one value."""
    built, now = _words(wanted), _words(here)
    detail = f"built with {built}, here {now}"
    return Reason(kind=kind, symbol=symbol, detail=detail, built=built, here=now)


def _entries(
    kind: str, field: str, wanted: Mapping[str, str], here: Mapping[str, str]
) -> Iterator[Reason]:
    for name in sorted({*wanted, *here}):
        if wanted.get(name) != here.get(name):
            yield difference(kind, f"{field}.{name}", wanted.get(name), here.get(name))


def _words(value: object) -> str:
    if value is None or value == "" or value == ():
        return "nothing"
    if isinstance(value, tuple):
        return ", ".join(_words(item) for item in value)
    if isinstance(value, Gpu):
        return f"{value.name} ({value.capability})"
    return str(value)
