"""Digests of source modules and of live code that ignore what cannot change an answer.

Two spellings of the same program have the same digest: comments, blank lines, formatting, docstrings
and positions never count. Constants, names, operations and their order always do.

Not promised: that equal digests are equal across versions of Python (bytecode differs), so a reader
compares digests only after the digests of the files' bytes differ; and nothing about modules that
read their own text or line numbers. A module that mentions ``__doc__`` or ``getdoc`` keeps its
docstrings in its digest.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import struct
from types import CodeType
from typing import TYPE_CHECKING, Any

from preheat.sources.bytecode import code_parts
from preheat.sources.quiet import without_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.manifest import Digest

_MODULE_PREFIX = b"preheat module 1\0"
_BROKEN_PREFIX = b"preheat broken module 1\0"
_CODE_PREFIX = b"preheat code 1\0"

# What compile() raises for text that is no program: ValueError for NUL bytes and bad encodings,
# RecursionError and MemoryError for nesting that is too deep, OverflowError for absurd numbers.
_NOT_A_PROGRAM = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_digest(source: bytes) -> Digest:
    """The digest of a module's text, read as import reads it.

    Honours the file's encoding and its ``from __future__`` lines. Text that does not compile has a
    digest of its bytes, and never the digest of text that does. Raises nothing.
    """
    try:
        code, docstrings = _compile(source)
    except _NOT_A_PROGRAM:
        return hashlib.sha256(_BROKEN_PREFIX + source).hexdigest()
    read_by_itself = b"__doc__" in source or b"getdoc" in source
    return _tree_digest(_MODULE_PREFIX, code, docstrings if read_by_itself else ())


def code_digest(code: CodeType) -> Digest:
    """The digest of a code object as import made it, nested code included.

    Ignores file name, positions, docstrings, inline caches, specialisation and instrumentation. It
    is not comparable with ``module_digest``. Not promised: that it survives adding or removing the
    docstring of a class defined inside the function, nor every change of line breaks inside one
    statement (the compiler lays out some branches by line).
    """
    return _tree_digest(_CODE_PREFIX, code)


def _compile(source: bytes) -> tuple[CodeType, tuple[str, ...]]:
    """The program without positions and docstrings, and the docstrings."""
    with without_warnings():
        tree = ast.parse(source)
        docstrings = tuple(_normalise(tree))
        # optimize=0: asserts count, whatever flags this interpreter runs under.
        return compile(tree, "", "exec", dont_inherit=True, optimize=0), docstrings


def _normalise(tree: ast.Module) -> Iterator[str]:
    node: Any
    for node in ast.walk(tree):
        # The compiler keeps no-ops and duplicates exits by line: give every node the same position.
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = 1
            node.col_offset = node.end_col_offset = 0
        if isinstance(node, _DOCUMENTED):
            yield from _strip_docstring(node)


def _strip_docstring(node: Any) -> Iterator[str]:
    # All leading strings go, else the second one would become the docstring.
    while node.body and _is_string(node.body[0]):
        yield node.body[0].value.value
        del node.body[0]
    if not node.body and not isinstance(node, ast.Module):
        node.body.append(ast.Pass(lineno=1, end_lineno=1, col_offset=0, end_col_offset=0))


def _is_string(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _tree_digest(prefix: bytes, code: CodeType, docstrings: tuple[str, ...] = ()) -> Digest:
    hasher = hashlib.sha256(prefix)
    for token in _constant((code, docstrings)):
        # Every token carries its length, so that no two token streams run together.
        hasher.update(b"%d:" % len(token))
        hasher.update(token)
    return hasher.hexdigest()


def _code(code: CodeType) -> Iterator[bytes]:
    parts = code_parts(code)
    yield b"code"
    yield repr(parts.head).encode()
    for instruction in parts.instructions:
        yield dis.opname[instruction.opcode].encode()
        if instruction.has_constant:
            yield from _constant(instruction.constant)
        else:
            yield b"%d" % instruction.argument
    yield repr(parts.exceptions).encode()


def _constant(value: object) -> Iterator[bytes]:
    """A constant as tokens, by type and value: 1, True and 1.0 differ, as do 0.0 and -0.0."""
    yield type(value).__name__.encode()
    if isinstance(value, CodeType):
        yield from _code(value)
    elif isinstance(value, (tuple, frozenset)):
        yield b"%d" % len(value)
        items = [b"".join(_framed(item)) for item in value]
        # The order of a frozenset depends on the hash seed.
        yield from items if isinstance(value, tuple) else sorted(items)
    elif isinstance(value, slice):
        yield from _constant((value.start, value.stop, value.step))
    else:
        yield _scalar(value)


def _framed(value: object) -> Iterator[bytes]:
    for token in _constant(value):
        yield b"%d:" % len(token)
        yield token


def _scalar(value: object) -> bytes:
    if isinstance(value, int):
        return hex(value).encode()  # repr() refuses very large numbers
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if value is None or value is Ellipsis:
        return b""
    # Only code that something rewrote holds other constants; their repr may hold an address.
    return f"{type(value).__module__}.{type(value).__qualname__}".encode()
