"""Digests of source modules and of live code that ignore what cannot change an answer.

Two spellings of the same program have the same digest: comments, blank lines, formatting, docstrings
and positions never count. Constants, names, operations and their order always do.

Not promised: that equal digests are equal across versions of Python (bytecode differs), so a reader
compares digests only after the digests of the files' bytes differ; and nothing about modules that
read their own text or line numbers. A module that mentions ``__doc__`` or ``getdoc`` keeps its
docstrings in its digest.
"""

from __future__ import annotations
import __future__

import ast
import functools
import hashlib
import marshal
import struct
from types import CodeType
from typing import TYPE_CHECKING, Any

from preheat.sources.bytecode import instructions
from preheat.sources.flow import written
from preheat.sources.quiet import without_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from preheat.manifest import Digest
    from preheat.sources.bytecode import Instruction

_MODULE_PREFIX = b"preheat module 2\0"
_BROKEN_PREFIX = b"preheat broken module 1\0"
_CODE_PREFIX = b"preheat code 2\0"

# What compile() raises for text that is no program: ValueError for NUL bytes and bad encodings,
# RecursionError and MemoryError for nesting that is too deep, OverflowError for absurd numbers.
NOT_A_PROGRAM = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)

# Docstring present; "no monitoring events"; annotations as text, which are digested by themselves.
_IGNORED_FLAGS = 0x4000000 | 0x2000000 | __future__.annotations.compiler_flag
_VARARGS, _VARKEYWORDS = 0x04, 0x08
_SHOW_LOCALS = frozenset(
    {
        "locals",
        "vars",
        "dir",
        "eval",
        "exec",
        "f_locals",
        "_getframe",
        "currentframe",
        "co_varnames",
    }
)

_SCALARS = frozenset({int, float, bool, bytes, complex, type(None), type(Ellipsis)})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_digest(source: bytes) -> Digest:
    """The digest of a module's text, read as import reads it.

    Honours the file's encoding and its ``from __future__`` lines. Text that does not compile has a
    digest of its bytes, and never the digest of text that does. Raises nothing.
    """
    try:
        code, docstrings = _compile(source)
    except NOT_A_PROGRAM:
        return hashlib.sha256(_BROKEN_PREFIX + source).hexdigest()
    read_by_itself = b"__doc__" in source or b"getdoc" in source
    return _tree_digest(_MODULE_PREFIX, code, docstrings if read_by_itself else ())


def code_digest(code: CodeType) -> Digest:
    """The digest of a code object as import made it, nested code included.

    Ignores file name, positions, docstrings, inline caches, specialisation, instrumentation, the
    layout that the compiler gives to branches, and the names of local variables unless the function
    mentions something that shows them (``locals``, ``eval``, ...). It is not comparable with
    ``module_digest``. Not promised: that it survives every change of line breaks inside of one
    statement; the exceptions known are swaps of variables that are spread over lines.
    """
    return _tree_digest(_CODE_PREFIX, code)


def compiled(source: bytes) -> CodeType:
    """The code object of a module's text. Raises one of ``NOT_A_PROGRAM``."""
    with without_warnings():
        # optimize=0: asserts count, whatever flags this interpreter runs under.
        return compile(source, "", "exec", dont_inherit=True, optimize=0)


def exact_digest(code: CodeType) -> Digest:
    """The digest of a code object as the compiler made it, without positions. "" where there is none.

    Cheap, and finer than any other digest here: where it is the same, the program is. Comments do not
    change it; what else does not is the compiler's affair.
    """
    try:
        # Version 2 of the format does not say which objects are the same ones.
        data = marshal.dumps(_plain_code(code), 2)
    except ValueError:
        return ""
    return hashlib.sha256(data).hexdigest()


def _plain_code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _plain_code(one) if isinstance(one, CodeType) else one for one in code.co_consts
    )
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    return (code.co_qualname, counts, names, code.co_code, code.co_exceptiontable, constants)


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
    return hashlib.sha256(prefix + joined_tokens(_constant((code, docstrings)))).hexdigest()


def joined_tokens(tokens: Iterable[bytes]) -> bytes:
    """The lengths of all tokens go first, so that no two token streams run together."""
    every = list(tokens)
    return b"%b%b" % (repr([len(token) for token in every]).encode(), b"".join(every))


def _code(code: CodeType) -> Iterator[bytes]:
    steps = instructions(code)
    names = _local_names(code, steps)
    yield b"code"
    yield repr(_head(code)).encode()
    plain = _plain_step
    yield from written(
        steps,
        [
            _step(one, names) if one[4] or one[2] in names else plain(one[0], one[1], one[2])
            for one in steps
        ],
    )


def _head(code: CodeType) -> tuple[object, ...]:
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    return (
        code.co_name,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & ~_IGNORED_FLAGS,
        code.co_varnames[:arguments],
        code.co_cellvars,
        code.co_freevars,
    )


def _local_names(code: CodeType, steps: list[Instruction]) -> dict[str, str]:
    """Local name -> what stands for it: nobody can see the names of most local variables."""
    if any(one.name in _SHOW_LOCALS for one in steps):
        return {}
    shown = {*_head(code)[5], *code.co_cellvars, *code.co_freevars}  # type: ignore[misc]
    hidden = (name for name in code.co_varnames if name not in shown)
    return {name: f"#{index}" for index, name in enumerate(hidden)}


def _step(one: Instruction, names: dict[str, str]) -> bytes:
    operation, argument, name, _, has_constant, constant, _ = one
    if has_constant:
        if type(constant) is str:
            return b"%b str %b" % (operation.encode(), _scalar(constant))
        if type(constant) in _SCALARS:
            # As joined_tokens would say it.
            kind, text = type(constant).__name__.encode(), _scalar(constant)
            lengths = (len(kind), len(text), kind, text)
            return b"%b [%d, %d]%b%b" % (operation.encode(), *lengths)
        return b"%b %b" % (operation.encode(), joined_tokens(_constant(constant)))
    if name is not None and "FAST" in operation:
        name = names.get(name, name)
    return _plain_step(operation, argument, name)


@functools.lru_cache(maxsize=1 << 15)
def _plain_step(operation: str, argument: int, name: str | None) -> bytes:
    # Most steps of a program are among those of other programs.
    return f"{operation} {argument} {'' if name is None else name}".encode()


def constant_tokens(value: object) -> Iterator[bytes]:
    """A constant as tokens, by type and value: 1, True and 1.0 differ, as do 0.0 and -0.0."""
    return _constant(value)


def _constant(value: object) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if isinstance(value, CodeType):
        yield from _code(value)
    elif isinstance(value, (tuple, frozenset)):
        yield b"%d" % len(value)
        items = [joined_tokens(_constant(item)) for item in value]
        # The order of a frozenset depends on the hash seed.
        yield from items if isinstance(value, tuple) else sorted(items)
    elif isinstance(value, slice):
        yield from _constant((value.start, value.stop, value.step))
    else:
        yield _scalar(value)


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
