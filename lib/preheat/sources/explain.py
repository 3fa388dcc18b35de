"""Why a snapshot is stale or still fresh, piece by piece; and what an edit of a file could touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preheat.sources.check import check, recognisable, recorded_path
from preheat.sources.compare import Change, current_units, file_changes
from preheat.sources.digest import NOT_A_PROGRAM
from preheat.sources.files import FileDigests
from preheat.sources.locate import project_directory
from preheat.sources.recorded import UsableClosure, usable_closure
from preheat.sources.textdiff import TwoTexts
from preheat.sources.units import Unit
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from preheat.manifest import ModuleSource, Sources
    from preheat.sources.locate import Locate
    from preheat.sources.tables import ModuleTable
    from preheat.sources.units import ModuleUnits

    OldText = Callable[[ModuleSource], bytes | None]

Lines = tuple[int, int]
_MODULE_KINDS = frozenset({"module_edited", "module_deleted", "module_shadowed"})


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    pass


class SymbolReport(_Record, frozen=True, kw_only=True):
    """What became of one piece of a file whose bytes changed, or of a module as a whole.

    ``kind``: one of ``check``'s (``symbol_edited``, ``symbol_deleted``, ``symbol_added``,
    ``order_changed``, ``module_edited``, ``module_deleted``, ``module_shadowed``), then ``stale`` is
    true; or ``symbol_moved``, ``symbol_reformatted`` or ``module_unaffected`` (no piece of the file that
    counts changed), which change nothing. ``file``: where it is now. ``before`` and ``now``: first and
    last line. ``diff``: see ``TwoTexts.differ``; empty where the old text is not known.
    """

    kind: str
    stale: bool
    file: str
    module: str
    symbol: str = ""
    before: Lines | None = None
    now: Lines | None = None
    detail: str = ""
    diff: tuple[str, ...] = ()


class Explanation(_Record, frozen=True, kw_only=True):
    """``reasons``: what ``check`` says, data files and variables included. ``symbols``: the pieces."""

    reasons: tuple[Reason, ...] = ()
    symbols: tuple[SymbolReport, ...] = ()


class Touch(_Record, frozen=True, kw_only=True):
    """What an edit of one file could touch.

    ``counts``: the pieces whose edit makes the package stale, with their lines of today. ``free``: the
    other pieces of the file. ``names``: new pieces count if they bind one of these. ``whole``: any
    edit but of comments and formatting counts, and ``detail`` says why. ``data``: it is a data file or
    a place where import looks, so any change counts. An empty answer: the file does not count.
    """

    file: str
    module: str = ""
    counts: tuple[Unit, ...] = ()
    free: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    whole: bool = False
    data: bool = False
    detail: str = ""


def explain(
    sources: Sources,
    locate: Locate,
    *,
    project: Path | None = None,
    digests: FileDigests | None = None,
    environ: Mapping[str, str] | None = None,
    old_text: OldText | None = None,
) -> Explanation:
    """Why the snapshot differs from the present, and what changed without making a difference.

    The arguments are those of ``check``. ``old_text`` gives the bytes that the build executed, where
    they were kept; without them nothing has a diff, and a reformatted piece shows only by its lines.
    """
    digests = FileDigests() if digests is None else digests
    reasons = check(sources, locate, project=project, digests=digests, environ=environ)
    if project is None:
        project = project_directory(sources, locate)
    closure = usable_closure(sources)
    whole = {one.symbol: one for one in reasons if one.kind in _MODULE_KINDS}
    reports: list[SymbolReport] = []
    for module in sources.modules:
        path = locate(module) or recorded_path(sources, project, module.root, module.path)
        reason = whole.get(module.module)
        sha256 = None if path is None else digests.sha256(path)
        if path is None or sha256 is None:
            if reason is not None:
                reports.append(_whole_report(reason, module, ()))
            continue
        if sha256 == module.file_sha256 and reason is None:
            continue
        old = None if old_text is None else old_text(module)
        texts = TwoTexts.of(old, _read(path))
        if reason is not None:
            shown = texts.differ_whole() if reason.kind == "module_edited" else ()
            reports.append(_whole_report(reason, module, shown))
        name = recognisable(path, project)
        pieces = [*_pieces(module, path, name, closure, digests, texts)]
        if not pieces and reason is None:
            pieces = [_unaffected(module, name)]
        reports += pieces
    # In front of a module that itself is unchanged.
    reports += [_whole_report(one, None, ()) for one in reasons if _is_in_front(one)]
    return Explanation(reasons=reasons, symbols=tuple(reports))


def if_edited(
    sources: Sources, file: Path, project: Path, digests: FileDigests | None = None
) -> Touch:
    """What an edit of ``file`` (absolute, or relative to ``project``) could touch."""
    path = project / file
    name = str(path.relative_to(project)) if path.is_relative_to(project) else str(path)
    for module in sources.modules:
        if recorded_path(sources, project, module.root, module.path) == path:
            return _touch(sources, module, name, path, digests or FileDigests())
    for data in sources.data_files:
        if recorded_path(sources, project, data.root, data.path) == path:
            detail = "is read while the program is made" if data.sha256 else "was looked for"
            return Touch(file=name, data=True, detail=detail)
    return Touch(file=name)


def _touch(
    sources: Sources, module: ModuleSource, name: str, path: Path, digests: FileDigests
) -> Touch:
    closure = usable_closure(sources)
    units = None if closure is None else closure.units.get(module.module)
    table = digests.table(path)
    if closure is None or units is None or units.whole is not None or closure.text:
        return Touch(file=name, module=module.module, whole=True, detail=_why_whole(closure))
    counts = _counting(units, path, table, closure)
    counted = {unit.symbol for unit in counts}
    pieces = () if table is None else (*table.pieces, *table.methods)
    every = (piece.symbol for piece in pieces if piece.kind != "runs")
    return Touch(
        file=name,
        module=module.module,
        counts=counts,
        free=tuple(dict.fromkeys(symbol for symbol in every if symbol not in counted)),
        names=units.names,
    )


def _counting(
    units: ModuleUnits, path: Path, table: ModuleTable | None, closure: UsableClosure
) -> tuple[Unit, ...]:
    """The units that count today; those of the build where the text says nothing."""
    if table is None:
        return units.units
    try:
        package = path.name == "__init__.py"
        return current_units(units, table, package, closure.around).units
    except NOT_A_PROGRAM:
        return units.units


def _why_whole(closure: UsableClosure | None) -> str:
    if closure is None:
        return "no closure is recorded that this release of Python can compare with"
    if closure.text:
        return "the program reads its own text"
    return "code ran that is not found by its name in this file"


def _unaffected(module: ModuleSource, file: str) -> SymbolReport:
    kind = "module_unaffected"
    return SymbolReport(kind=kind, stale=False, file=file, module=module.module)


def _is_in_front(reason: Reason) -> bool:
    return reason.kind == "module_shadowed" and reason.symbol is None


def _whole_report(
    reason: Reason, module: ModuleSource | None, diff: tuple[str, ...]
) -> SymbolReport:
    return SymbolReport(
        kind=reason.kind,
        stale=True,
        file=reason.file or "",
        module=module.module if module else "",
        detail=reason.detail,
        diff=diff,
    )


def _pieces(
    module: ModuleSource,
    path: Path,
    name: str,
    closure: UsableClosure | None,
    digests: FileDigests,
    texts: TwoTexts,
) -> Iterator[SymbolReport]:
    """What became of the pieces that count, where those can be told apart."""
    units = None if closure is None else closure.units.get(module.module)
    if closure is None or units is None or units.whole is not None or closure.text:
        return
    found = file_changes(units, path, digests, closure.around)
    if any(change.kind in _MODULE_KINDS for change in found):
        return  # the whole module, which has a report of its own
    for change in found:
        yield _report(change, module, name, texts.differ(change.before, change.now))
    for before, now in _pairs(units.units, _counting(units, path, digests.table(path), closure)):
        here, there = (before.first, before.last), (now.first, now.last)
        diff = texts.differ(here, there)
        if here != there or diff:
            kind = (
                "symbol_reformatted" if diff or _length(here) != _length(there) else "symbol_moved"
            )
            change = Change(kind=kind, symbol=now.symbol, before=here, now=there)
            yield _report(change, module, name, diff, stale=False)


def _pairs(before: tuple[Unit, ...], now: tuple[Unit, ...]) -> Iterator[tuple[Unit, Unit]]:
    """The units that say the same before and now."""
    waiting: dict[tuple[str, str, str | None], list[Unit]] = {}
    for unit in before:
        waiting.setdefault((unit.symbol, unit.digest, unit.head), []).append(unit)
    for unit in now:
        same = waiting.get((unit.symbol, unit.digest, unit.head))
        if same and not unit.symbol.startswith("import "):
            yield same.pop(0), unit


def _report(
    change: Change, module: ModuleSource, file: str, diff: tuple[str, ...], *, stale: bool = True
) -> SymbolReport:
    return SymbolReport(
        kind=change.kind,
        stale=stale,
        file=file,
        module=module.module,
        symbol=change.symbol or "",
        before=change.before,
        now=change.now,
        detail=change.detail,
        diff=diff,
    )


def _length(span: Lines) -> int:
    return span[1] - span[0]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
