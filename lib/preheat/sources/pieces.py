"""One top-level statement or method of a module, and what it says."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

from preheat.sources.digest import code_digest
from preheat.sources.mentions import Mentions, code_mentions, note_computed
from preheat.sources.purity import reads_source
from preheat.sources.trees import DIGEST_DIGITS, TreeReader, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preheat.sources.purity import Scope

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import binds or runs: ``attribute`` of ``module`` (from), or the module itself (None)."""

    level: int
    module: str
    attribute: str | None = None


class Compiled:
    """The code objects of a module's text; None: of one that does not compile."""

    def __init__(self, module: CodeType | None) -> None:
        self._codes: dict[tuple[str, int], CodeType] | None = None
        if module is not None:
            self._codes = {(one.co_qualname, one.co_firstlineno): one for one in _inside(module)}

    def code(self, qualname: str, first: int) -> CodeType:
        """The code object of a definition whose first line, decorators included, is ``first``.

        It is the one that importing the module makes. Raises ``ValueError``, one of ``NOT_A_PROGRAM``,
        for text that parses and does not compile, and where the compiler left it out.
        """
        if self._codes is None:
            raise ValueError("the module does not compile")
        code = self._codes.get((qualname, first))
        if code is None:
            raise ValueError(f"{qualname} in line {first} has no code")
        return code


def _inside(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            if not one.co_flags & _OPTIMIZED or one.co_name.startswith("<generic"):
                yield from _inside(one)  # bodies of classes, scopes of type parameters


_OPTIMIZED = 0x1


@dataclass(frozen=True, slots=True)
class Told:
    """What a piece says outside of the code of functions.

    ``digest`` is "" where nothing is there. ``words``: every word in what runs while the module is
    imported, calls not followed. ``in_annotations``: what its annotations mention.
    """

    digest: str
    annotations: str | None
    docstrings: str | None
    mentions: Mentions
    in_annotations: Mentions
    words: frozenset[str]


NOTHING = Told("", None, None, Mentions(), Mentions(), frozenset())


@dataclass(slots=True, eq=False)
class Piece:
    """A top-level statement, a method, or what an import statement runs.

    ``kind``: function, class, method, assign, import, runs (what an import executes), star, statement.
    ``loud``: running it does more than binding ``names``. ``spans``: first line and qualified name of
    each definition of a function or method. ``bases`` and ``foreign``: see ``preheat.sources.bases``;
    ``keywords``: of a class, such as a metaclass. ``owner``: the piece of the class of a method;
    ``always``: counts wherever the class does. ``name``: the method's own name. ``nodes``: kept only
    where mentions will be asked for.
    """

    kind: str
    symbol: str
    names: tuple[str, ...]
    first: int
    last: int
    compiled: Compiled
    told: Told = NOTHING
    loud: bool = False
    spans: tuple[tuple[str, int], ...] = ()
    imported: Imported | None = None
    lambdas: bool = False
    bases: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    keywords: bool = False
    owner: Piece | None = None
    name: str = ""
    always: bool = False
    members: dict[str, Piece] = field(default_factory=dict)
    nodes: tuple[ast.stmt, ...] = ()
    bound: frozenset[str] = frozenset()
    _digest: str = ""

    def digest(self) -> str:
        """Of a function its code's digest, of anything else that of its tree. Computed once."""
        if not self._digest:
            self._digest = self._code_digest() if self.spans else self.told.digest
        return self._digest

    def head(self) -> str | None:
        """What stands around a function's code, None where nothing does."""
        return self.told.digest or None if self.spans else None

    def docstrings(self) -> str | None:
        """The digest of docstrings, and maybe of other strings that count anyway."""
        strings = sorted(text for code in self.codes() for text in _strings(code))
        return joined(self.told.docstrings, *strings)

    def everything(self) -> tuple[object, ...]:
        """All that any comparison looks at, apart from where it stands."""
        told = self.told
        mine = (self.kind, self.symbol, self.names, self.loud, self.imported, self.lambdas)
        family = (self.bases, self.foreign, self.keywords, self.always, self.spans != ())
        said = (self.digest(), self.head(), told.annotations, self.docstrings())
        return (*mine, *family, *said, sorted(told.words))

    def codes(self) -> tuple[CodeType, ...]:
        """The code objects of a function or method; several where it is defined again."""
        return tuple(self.compiled.code(qualname, first) for qualname, first in self.spans)

    def mentions(self) -> Mentions:
        """All that it mentions. Only for pieces of tables that keep their trees."""
        found = Mentions()
        found.add(self.told.mentions)
        for code in self.codes():
            found.add(code_mentions(code))
        for node in self.nodes:
            note_computed(node, found, self.bound)
        return found

    def _code_digest(self) -> str:
        digests = [function_digest(code) for code in self.codes()]
        return digests[0] if len(digests) == 1 else joined(*digests)


def function_digest(code: CodeType) -> str:
    """The digest of a function's unit, from its code object: traced, imported, or compiled from text."""
    return code_digest(code)[:DIGEST_DIGITS]


def tell_import(kind: str, imported: Imported) -> Told:
    """What an import says."""
    told = (kind, str(imported.level), imported.module, str(imported.attribute))
    words = frozenset({imported.attribute} if imported.attribute else ())
    digest = digest_of(word.encode() for word in told)
    return Told(digest, None, None, Mentions(), Mentions(), words)


def tell_statement(node: ast.stmt) -> Told:
    """What a statement says; of an assignment with an annotation, the annotation is kept apart."""
    reader = TreeReader()
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        reader.read_annotation("", node.annotation)
        if any("constexpr" in words for words in map(bytes.decode, reader.annotations)):
            reader.tokens += reader.annotations  # which Triton reads
        reader.read(ast.Assign(targets=[node.target], value=node.value))
    else:
        reader.read(node)
    return _told(reader, reader.digest())


def tell_function(nodes: Sequence[Function], scope: Scope) -> Told:
    """What stands around the code of a function: decorators, defaults, annotations, docstrings.

    Several definitions under one name (a property and its setter) are told one after the other.
    """
    if len(nodes) == 1 and _is_bare(nodes[0]):
        return NOTHING
    reader = TreeReader()
    for node in nodes:
        _read_head(node, reader, scope)
    plain = len(nodes) == 1 and all(token in _PLAIN_HEAD for token in reader.tokens)
    return _told(reader, "" if plain else reader.digest())


def _is_bare(node: Function) -> bool:
    """Whether nothing stands around the code but names of parameters."""
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return not (
        node.decorator_list
        or node.returns
        or arguments.defaults
        or any(arguments.kw_defaults)
        or any(one.annotation for one in every)
        or (arguments.vararg and arguments.vararg.annotation)
        or (arguments.kwarg and arguments.kwarg.annotation)
        or getattr(node, "type_params", None)
    )


_PLAIN_HEAD = (b"decorators 0", b"defaults 0", b"none")


def _read_head(node: Function, head: TreeReader, scope: Scope) -> None:
    head.tokens.append(b"decorators %d" % len(node.decorator_list))
    head.read(node.decorator_list)
    head.read_defaults(node.args)
    head.read(getattr(node, "type_params", ()))
    annotations = TreeReader()
    annotations.read_annotations(node)
    if node.decorator_list:
        # Decorators may read annotations (schemas of custom operators, constexpr parameters).
        head.tokens += annotations.annotations
        head.mentions.add(annotations.annotation_mentions)
    head.annotations += annotations.annotations
    head.annotation_mentions.add(annotations.annotation_mentions)
    if any(reads_source(one, scope) for one in node.decorator_list):
        apart = TreeReader()
        apart.read(apart.read_docstring(node))
        head.tokens += apart.tokens


def _told(reader: TreeReader, digest: str) -> Told:
    return Told(
        digest,
        _optional(reader.annotations),
        _optional(reader.docstrings),
        reader.mentions,
        reader.annotation_mentions,
        frozenset(reader.mentions.all_words()),
    )


def _strings(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _strings(constant)


def _optional(tokens: list[bytes]) -> str | None:
    return digest_of(tokens) if tokens else None


def joined(*digests: str | None) -> str:
    """One digest of some."""
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:DIGEST_DIGITS]
