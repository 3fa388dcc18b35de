"""The closure: what a package depends on, found from names in the text of the modules that ran.

``find_closure`` is a pure function of the modules' bytes. It starts from the factory and from all code
that ran or was traced, adds everything that importing the modules does besides binding names, and goes
on through every name that is mentioned until nothing new is found.

Where names are computed it counts more, at last everything: see ``preheat.sources.mentions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preheat.sources.compare import unit_of
from preheat.sources.digest import NOT_A_PROGRAM, compiled, exact_digest, module_digest
from preheat.sources.following import Follower
from preheat.sources.pieces import joined
from preheat.sources.selection import (
    Surroundings,
    View,
    does_more,
    is_hooked,
    order_digest,
    select,
)
from preheat.sources.tables import ModuleTable, read_table
from preheat.sources.units import RELEASE, Closure, ModuleUnits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheat.sources.pieces import Piece


def find_closure(
    sources: Mapping[str, tuple[bool, bytes]],
    roots: Iterable[tuple[str, str]],
    *,
    inherited: Iterable[str] | None = None,
) -> Closure:
    """The closure of ``roots`` over the modules that ran.

    ``sources``: module -> whether it is a package, and the bytes that were executed. ``roots``: module
    and qualified name of the factory and of each code object that ran or was traced; names of modules
    that are not in ``sources`` are ignored. ``inherited``: names that user classes have from libraries
    (``preheat.recording.inherited``); when it is not given, every method of a class with bases counts.

    Promised: an edit that adds, changes or removes a piece that counts changes what
    ``preheat.sources.compare`` finds. Not promised: seeing through values that carry code from outside
    of the modules (pickles, extension modules), and pieces that read files beside what
    ``preheat.recording`` records.
    """
    tables = {name: read_table(source, keep_trees=True) for name, (_, source) in sources.items()}
    read = {name: table for name, table in tables.items() if table is not None and _compiles(table)}
    wanted = tuple(sorted({*roots}))
    if len(read) < len(tables):
        return _whole(sources, wanted)
    search = _Search(read, {name: package for name, (package, _) in sources.items()}, inherited)
    for module, qualname in wanted:
        search.root(module, qualname)
    search.run()
    return search.closure(sources, _written(wanted))


def _compiles(table: ModuleTable) -> bool:
    """Whether every function's code is found, so that the table says all that the module says."""
    try:
        for piece in (*table.pieces, *table.methods):
            piece.codes()
    except NOT_A_PROGRAM:
        return False
    return True


def _whole(
    sources: Mapping[str, tuple[bool, bytes]], roots: tuple[tuple[str, str], ...]
) -> Closure:
    """A module that nobody can take apart may mention anything: every module counts as a whole."""
    modules = (
        ModuleUnits(module=name, whole=module_digest(source), package=package)
        for name, (package, source) in sorted(sources.items())
    )
    return Closure(python=RELEASE, roots=_written(roots), modules=tuple(modules))


def _written(roots: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(f"{module}:{name}" for module, name in roots)


class _Search:
    """The state of one search; everything in it only grows."""

    def __init__(
        self,
        tables: Mapping[str, ModuleTable],
        packages: Mapping[str, bool],
        inherited: Iterable[str] | None,
    ) -> None:
        self._tables = tables
        # A module's own __getattr__ gives what nothing binds, also when it is written tomorrow.
        self._views = {name: View(name, packages[name], {"__getattr__"}) for name in packages}
        self._around = Surroundings(
            packages=packages,
            attributes=set(),
            inherited=None if inherited is None else frozenset(inherited),
            hooked=set(),
            stored=set(),
            noisy=set(),
        )
        self._follower = Follower(self._tables, self._views, self._around)
        self._whole: set[str] = set()
        self._chosen: dict[str, list[Piece]] = {}

    def root(self, module: str, qualname: str) -> None:
        """Something that ran: the piece that it is written in counts."""
        view, table = self._views.get(module), self._tables.get(module)
        if view is None or table is None:
            return
        first, *rest = qualname.split(".")
        if first == "<module>":
            return
        if first.startswith("<"):  # a lambda or a comprehension of the module itself
            view.lambdas = True
            return
        if first not in table.bound:
            # Made by exec, or renamed: nobody knows where its text is.
            self._whole.add(module)
            return
        self._follower.look_up(module, first)
        if rest and not rest[0].startswith("<"):
            self._follower.attribute(rest[0])

    def run(self) -> None:
        """Follow names until nothing new is found."""
        self._find_hooked()
        before = None
        while before != (now := self._size()):
            before = now
            for name, table in self._tables.items():
                self._chosen[name] = select(table, self._views[name], self._around)
                for piece in self._chosen[name]:
                    self._follower.follow(name, piece)
                if self._views[name].open:
                    self._follower.open_imported(name, self._chosen[name])
        self._find_noisy()

    def closure(self, sources: Mapping[str, tuple[bool, bytes]], roots: tuple[str, ...]) -> Closure:
        """What was found, in a fixed order."""
        around, follower = self._around, self._follower
        around.annotations |= follower.annotations
        around.docstrings |= follower.docstrings
        around.stored = self._unsteady()
        modules = []
        for name in sorted(sources):
            source = sources[name][1]
            if name in self._whole:
                package = sources[name][0]
                whole = module_digest(source)
                modules.append(ModuleUnits(module=name, whole=whole, package=package))
            else:
                modules.append(self._module(name, source))
        closure = Closure(
            python=RELEASE,
            roots=roots,
            modules=tuple(modules),
            attributes=tuple(sorted(around.attributes)),
            any_attribute=around.any_attribute,
            inherited=None if around.inherited is None else tuple(sorted(around.inherited)),
            hooked=tuple(sorted(around.hooked)),
            stored=tuple(sorted(around.stored)),
            any_store=around.any_store,
            annotations=around.annotations,
            docstrings=around.docstrings,
            text=follower.text,
            variables=tuple(sorted(follower.variables)),
        )
        return _with_states(closure)

    def _module(self, name: str, source: bytes) -> ModuleUnits:
        view, chosen = self._views[name], self._chosen[name]
        return ModuleUnits(
            module=name,
            table=self._tables[name].summary(),
            code=exact_digest(compiled(source)),
            units=tuple(unit_of(piece, self._around) for piece in chosen),
            order=order_digest(self._tables[name], chosen, view, self._around),
            names=tuple(sorted(view.names)),
            everything=view.everything,
            open=view.open,
            lambdas=view.lambdas,
            effects=name in self._around.noisy,
            package=view.package,
        )

    def _size(self) -> tuple[int, ...]:
        views = self._views.values()
        around = self._around
        return (
            sum(len(view.names) + view.everything + view.open for view in views),
            len(around.attributes) + around.any_attribute + around.any_store,
            len(around.stored),
            self._follower.followed(),
        )

    def _find_hooked(self) -> None:
        """Classes that run code of theirs whenever somebody derives from them, under all their names."""
        hooked: set[str] = set()
        before = -1
        while before != len(hooked):
            before = len(hooked)
            for name, table in self._tables.items():
                for piece in table.pieces:
                    if piece.kind == "class":
                        if is_hooked(piece, hooked, self._views[name], self._around):
                            hooked.add(piece.symbol)
                    elif piece.imported is not None and piece.imported.attribute in hooked:
                        hooked.update(piece.names)
        self._around.hooked = hooked

    def _find_noisy(self) -> None:
        """Modules whose import does more than binding names, by themselves or by what they import."""
        noisy: set[str] = set()
        before = -1
        while before != len(noisy):
            before = len(noisy)
            self._around.noisy = noisy
            for name in self._tables:
                if name not in noisy and self._is_noisy(name):
                    noisy.add(name)

    def _is_noisy(self, name: str) -> bool:
        return any(
            does_more(piece, self._views[name], self._around) for piece in self._chosen[name]
        )

    def _unsteady(self) -> set[str]:
        """Of the names that are bound from elsewhere, those that are bound or read at import."""
        seen: set[str] = set()
        for chosen in self._chosen.values():
            for piece in chosen:
                seen.update(piece.names)
                seen |= piece.told.words
        return set(self._around.stored) & seen


def _with_states(closure: Closure) -> Closure:
    """Give every module the digest of all that a comparison of it depends on."""
    replace = msgspec.structs.replace
    common = [(one.module, one.package, one.effects) for one in closure.modules]
    around = replace(closure, roots=(), modules=(), variables=())
    context = joined(repr(common), repr(around))
    modules = tuple(replace(one, state=joined(context, repr(one))) for one in closure.modules)
    return replace(closure, modules=modules, state=joined(*(one.state for one in modules)))
