"""Verdicts and their reasons: what preheat says about one target in one environment, as data."""

import enum

import msgspec


class Verdict(enum.StrEnum):
    """What is known about a target's package in an environment."""

    FRESH = "FRESH"
    STALE = "STALE"
    MISSING = "MISSING"
    BUILDING = "BUILDING"
    FAILED = "FAILED"
    UNTRUSTED = "UNTRUSTED"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason of a verdict.

    ``kind`` is a stable word for programs (``module_edited``, ``data_changed``,
    ``environment_differs``, ``object_corrupted``, ...; the list is in ``docs/cli.md``); ``file`` and
    ``symbol`` say where, if there is a where; ``detail`` is for a person. ``built`` and ``here``: the
    two values of a difference that has values which may be shown.
    """

    kind: str
    file: str | None = None
    symbol: str | None = None
    detail: str = ""
    built: str | None = None
    here: str | None = None

    def __str__(self) -> str:
        where = " ".join(part for part in (self.file, self.symbol) if part)
        words = self.kind.replace("_", " ")
        return f"{words}{': ' + where if where else ''}{' (' + self.detail + ')' if self.detail else ''}"
