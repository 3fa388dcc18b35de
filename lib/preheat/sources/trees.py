"""Digest and mentions of statements, read from their syntax tree.

For what runs at import outside of functions: assignments, class bodies, decorators, defaults. Positions
and formatting are not in the tree; docstrings and annotations of functions are kept apart, because they
count only where somebody reads them.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from preheat.sources.digest import constant_tokens, joined_tokens
from preheat.sources.mentions import Mentions, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterable

DIGEST_DIGITS = 32
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTION, ast.ClassDef)
# Contexts say nothing that their place does not say; kinds are spellings (u"").
_UNSEEN_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(slots=True)
class TreeReader:
    """Collects tokens and mentions; read several trees one after the other to digest them together."""

    tokens: list[bytes] = field(default_factory=list)
    annotations: list[bytes] = field(default_factory=list)
    docstrings: list[bytes] = field(default_factory=list)
    mentions: Mentions = field(default_factory=Mentions)
    annotation_mentions: Mentions = field(default_factory=Mentions)

    def read(self, tree: ast.AST | Iterable[ast.AST]) -> None:
        """Read a node, or some in order."""
        if isinstance(tree, ast.AST):
            self._node(tree)
        else:
            for node in tree:
                self._node(node)

    def read_annotations(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read what stands beside the parameters and the result."""
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        for one in every:
            self.read_annotation(one.arg, one.annotation)
        self.read_annotation("return", function.returns)

    def read_docstring(self, node: Any) -> list[ast.stmt]:
        """Take the docstring aside; returns the body without it."""
        body: list[ast.stmt] = list(node.body)
        while body and is_string(body[0]):
            text = body.pop(0).value.value  # type: ignore[attr-defined]
            self.docstrings.append(text.encode("utf-8", "surrogatepass"))
        return body

    def digest(self) -> str:
        """The digest of what was read."""
        return digest_of(self.tokens)

    def read_annotation(self, name: str, annotation: ast.expr | None) -> None:
        """Read one annotation."""
        if annotation is None:
            return
        apart = TreeReader()
        apart.read(annotation)
        # A quoted annotation says the same as the plain one only to some readers: they stay apart.
        self.annotations += (name.encode(), *apart.tokens)
        self.annotation_mentions.add(apart.mentions)

    def _node(self, node: ast.AST) -> None:
        kind = type(node)
        self.tokens.append(kind.__name__.encode())
        if kind is ast.Constant:
            self._constant(node.value)  # type: ignore[attr-defined]
        elif kind is ast.Name:
            name: str = node.id  # type: ignore[attr-defined]
            self.tokens.append(name.encode())
            self.mentions.names.add(name)
        elif kind is ast.Attribute:
            self._attribute(node)  # type: ignore[arg-type]
        elif kind in _DOCUMENTED:
            self._definition(node)
        elif kind is ast.AnnAssign:
            self._annotated(node)  # type: ignore[arg-type]
        else:
            self._note(node)
            self._fields(node, _UNSEEN_FIELDS)

    def _fields(self, node: ast.AST, unseen: frozenset[str]) -> None:
        for name in node._fields:
            if name in unseen:
                continue
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                self._node(value)
            elif isinstance(value, list):
                self.tokens.append(b"[%d" % len(value))
                for item in value:
                    self._item(item)
            else:
                self._item(value)

    def _item(self, value: object) -> None:
        if isinstance(value, ast.AST):
            self._node(value)
        else:
            self.tokens.append(repr(value).encode("utf-8", "backslashreplace"))

    def _constant(self, value: object) -> None:
        self.tokens += constant_tokens(value)
        if isinstance(value, str):
            self.mentions.note_string(value)

    def _attribute(self, node: ast.Attribute) -> None:
        chain = chain_of(node)
        if not isinstance(node.ctx, ast.Load):
            self.mentions.stores.add(node.attr)
        if chain is not None:
            self.tokens.append(".".join(chain).encode())
            self.mentions.chains.add(chain)
            return
        self.tokens.append(node.attr.encode())
        self.mentions.attributes.add(node.attr)
        self._node(node.value)

    def _definition(self, node: Any) -> None:
        self.tokens.append(node.name.encode())
        body = self.read_docstring(node)
        if isinstance(node, ast.ClassDef):
            self.read(node.bases)
            self.read(node.keywords)
        else:
            self.read_annotations(node)
            self._arguments(node.args)
        self.tokens.append(b"decorators %d" % len(node.decorator_list))
        self.read(node.decorator_list)
        self.read(getattr(node, "type_params", ()))
        self.tokens.append(b"body %d" % len(body))
        self.read(body)

    def _arguments(self, node: ast.arguments) -> None:
        for names in (node.posonlyargs, node.args, node.kwonlyargs):
            self.tokens.append(" ".join(one.arg for one in names).encode())
        for rest in (node.vararg, node.kwarg):
            self.tokens.append(b"" if rest is None else rest.arg.encode())
        self.read_defaults(node)

    def read_defaults(self, node: ast.arguments) -> None:
        """Read the values of parameters that are not given."""
        self.tokens.append(b"defaults %d" % len(node.defaults))
        self.read(node.defaults)
        for one in node.kw_defaults:
            if one is None:
                self.tokens.append(b"none")
            else:
                self._node(one)

    def _annotated(self, node: ast.AnnAssign) -> None:
        # Of fields of classes the annotation may make the class (dataclasses): it counts.
        self._fields(node, _UNSEEN_FIELDS)

    def _note(self, node: ast.AST) -> None:
        mentions = self.mentions
        if isinstance(node, ast.Import):
            for alias in node.names:
                mentions.note_import(0, alias.name, ())
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            mentions.note_import(node.level, node.module or "", names)
        elif isinstance(node, ast.Global):
            mentions.names.update(node.names)
            mentions.stores.update(node.names)


def digest_of(tokens: Iterable[bytes]) -> str:
    """One digest of tokens, which never run together."""
    return hashlib.sha256(joined_tokens(tokens)).hexdigest()[:DIGEST_DIGITS]


def is_string(statement: ast.stmt) -> bool:
    """Whether a statement is nothing but a string."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
