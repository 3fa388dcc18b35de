"""Following what a piece mentions to where it is bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from preheat.sources.pieces import Imported, Piece
from preheat.sources.selection import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preheat.sources.mentions import Chain, Mentions
    from preheat.sources.selection import Surroundings, View
    from preheat.sources.tables import ModuleTable

_LONGEST_CHAIN = 30  # of re-exports; modules may import from each other in a circle
_READS_ANNOTATIONS = frozenset(
    {"__annotations__", "get_type_hints", "get_annotations", "signature", "getfullargspec"}
    | {"__signature__", "__annotate__", "infer_schema"}
)
_READS_DOCSTRINGS = frozenset({"__doc__", "getdoc"})
_READS_TEXT = frozenset(
    {"getsource", "getsourcelines", "findsource", "getblock", "getframeinfo", "f_lineno"}
    | {"co_firstlineno", "co_lnotab", "co_lines", "co_positions", "tb_lineno", "getcomments"}
)


_PLAIN_SPECIALS = frozenset({"__doc__", "__file__", "__name__", "__package__", "__version__"})


class Meaning(NamedTuple):
    """What a name may be: user modules, and whether something else. A library's: neither."""

    modules: tuple[str, ...]
    other: bool


class Follower:
    """Adds to the views and the surroundings what pieces mention.

    ``annotations``, ``docstrings``, ``text``: somebody reads those. ``variables``: names that stand
    beside ``os.environ``.
    """

    def __init__(
        self,
        tables: Mapping[str, ModuleTable],
        views: Mapping[str, View],
        around: Surroundings,
    ) -> None:
        self._tables = tables
        self._views = views
        self._around = around
        self._followed: set[Piece] = set()
        self.annotations = False
        self.docstrings = False
        self.text = False
        self.variables: set[str] = set()

    def followed(self) -> int:
        """How many pieces have been followed."""
        return len(self._followed)

    def follow(self, module: str, piece: Piece) -> None:
        """Take up what a piece mentions, once."""
        if piece in self._followed:
            return
        self._followed.add(piece)
        if piece.imported is not None:
            self._import(module, piece.kind, piece.imported)
            return
        self._mentions(module, piece.mentions())
        if self.annotations or piece.kind == "class":
            self._mentions(module, piece.told.in_annotations)

    def look_up(self, module: str, name: str) -> None:
        """A name is looked up in a module, and in those whose names it takes over."""
        view = self._views.get(module)
        if view is None or name in view.names:
            return
        assert isinstance(view.names, set)
        view.names.add(name)
        table = self._tables.get(module)
        if table is None:
            return
        for star in table.stars:
            base = resolve(star, module, view.package)
            self.look_up(base, "__all__")
            self.look_up(base, name)

    def open_imported(self, module: str, pieces: Iterable[Piece]) -> None:
        """The modules that an open module has under a name are open as well."""
        for piece in pieces:
            if piece.kind == "import":
                for target in self._meaning(module, piece.symbol).modules:
                    self._open(target)

    def attribute(self, name: str) -> None:
        """A name is looked up on a value that nobody knows."""
        assert isinstance(self._around.attributes, set)
        self._around.attributes.add(name)

    def _mentions(self, module: str, found: Mentions) -> None:
        self._flags(module, found)
        for name in found.names:
            self.look_up(module, name)
            for target in self._meaning(module, name).modules:
                self._open(target)
        for chain in found.chains:
            self._chain(module, chain)
        for name in found.attributes | found.words:
            self.attribute(name)
        for name in found.words:
            self.look_up(module, name)
        for imported in found.imports:
            self._runtime_import(module, *imported)
        assert isinstance(self._around.stored, set)
        self._around.stored |= found.stores

    def _flags(self, module: str, found: Mentions) -> None:
        words = found.all_words()
        if not self.annotations and words & _READS_ANNOTATIONS:
            self.annotations = True
            self._followed = set()  # annotations count as well: follow all once more
        self.docstrings |= bool(words & _READS_DOCSTRINGS)
        self.text |= bool(words & _READS_TEXT)
        self.variables |= found.variables
        around = self._around
        around.any_attribute |= any(self._is_unknown(module, name) for name in found.looks_on)
        around.any_store |= found.writes and any(
            self._is_unknown(module, name) for name in found.looks_on or {""}
        )
        if found.own_namespace or found.text:
            self._everything(module)
            around.any_store = True
        if found.modules or found.text:
            for name in self._views:
                self._open(name)
        if found.text:
            around.any_attribute = True

    def _is_unknown(self, module: str, name: str) -> bool:
        """Whether a value may be the user's, so that a name computed for it may be anything."""
        if not name:
            return True
        table = self._tables[module]
        pieces = table.bound.get(name)
        if not pieces:
            return True  # a local variable, or from a star import
        return not all(
            piece.imported is not None and not self._is_user_import(module, piece.imported)
            for piece in pieces
        )

    def _is_user_import(self, module: str, imported: Imported) -> bool:
        return self._around.is_user(self._resolve(module, imported).split(".")[0])

    def _everything(self, module: str) -> None:
        view = self._views.get(module)
        if view is None or view.everything:
            return
        view.everything = True
        for star in self._tables[module].stars if module in self._tables else ():
            self._everything(resolve(star, module, view.package))

    def _open(self, module: str) -> None:
        view = self._views.get(module)
        if view is None or view.open:
            return
        view.open = True
        for other in self._views:
            if other.startswith(f"{module}."):  # x.sub of a package x
                self._open(other)
        for star in self._tables[module].stars if module in self._tables else ():
            self._open(resolve(star, module, view.package))

    def _chain(self, module: str, chain: Chain) -> None:
        """``a.b.c`` with a global ``a``: through modules as far as they are known."""
        first, *rest = chain
        self.look_up(module, first)
        self._walk_all(self._meaning(module, first), rest)

    def _walk_all(self, meaning: Meaning, rest: list[str]) -> None:
        for target in meaning.modules:
            self._walk(target, rest)
        if meaning.other:
            for name in rest:
                self.attribute(name)

    def _walk(self, module: str, rest: list[str]) -> None:
        """The attributes of a user module, one after the other."""
        if not rest or (rest[0].startswith("__") and rest[0] not in _PLAIN_SPECIALS):
            self._open(module)  # ``module.__dict__`` shows all of it
        if not rest:
            return
        self.look_up(module, rest[0])
        self._walk_all(self._member(module, rest[0]), rest[1:])

    def _meaning(self, module: str, name: str, depth: int = 0) -> Meaning:
        """What a global of a module may be, by what binds it."""
        table = self._tables.get(module)
        pieces = table.bound.get(name, ()) if table is not None else ()
        modules: list[str] = []
        other = not pieces or depth > _LONGEST_CHAIN
        for piece in pieces if depth <= _LONGEST_CHAIN else ():
            if piece.imported is None:
                other = True
            else:
                behind = self._behind(module, name, piece.imported, depth)
                modules += behind.modules
                other |= behind.other
        return Meaning(tuple(modules), other)

    def _behind(self, module: str, name: str, imported: Imported, depth: int) -> Meaning:
        """What an import binds to a name."""
        base = self._resolve(module, imported)
        if not self._around.is_user(base.split(".")[0]):
            return Meaning((), False)
        if imported.attribute is None:
            return Meaning((base,), False)
        if (base, imported.attribute) == (module, name):  # ``from . import x`` in a package
            below = f"{base}.{name}"
            user = self._around.is_user(below)
            return Meaning((below,) if user else (), not user)
        return self._member(base, imported.attribute, depth + 1)

    def _member(self, module: str, name: str, depth: int = 0) -> Meaning:
        """What an attribute of a user module may be: a name that it binds, or a submodule."""
        below = f"{module}.{name}"
        submodule = (below,) if self._around.is_user(below) else ()
        table = self._tables.get(module)
        if table is not None and name in table.bound:
            meaning = self._meaning(module, name, depth)
            return Meaning((*meaning.modules, *submodule), meaning.other)
        return Meaning(submodule, not submodule or bool(table and table.stars))

    def _import(self, module: str, kind: str, imported: Imported) -> None:
        """A name is bound by an import: what it names counts."""
        base = self._resolve(module, imported)
        parts = base.split(".")
        for depth in range(1, len(parts)):
            self.look_up(".".join(parts[:depth]), parts[depth])
        if kind == "import" and imported.attribute is not None:
            self.look_up(base, imported.attribute)

    def _runtime_import(self, module: str, level: int, base: str, names: tuple[str, ...]) -> None:
        """An import inside of a function or a condition: its names are values like others."""
        full = self._resolve(module, Imported(level, base))
        parts = full.split(".")
        for depth in range(1, len(parts) + 1):
            self._open(".".join(parts[:depth]))
        for name in names:
            if name == "*":
                self._everything(full)
            self.look_up(full, name)
            self._open(f"{full}.{name}")
        for name in (*parts, *names):
            self.attribute(name)

    def _resolve(self, module: str, imported: Imported) -> str:
        return resolve(imported, module, self._views[module].package)
