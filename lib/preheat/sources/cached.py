"""What an import executed, from Python's own cache of bytecode.

Python keeps no module's code after the import, but it leaves the code in a ``.pyc`` file, and writes
that file anew whenever it executes another text. A ``.pyc`` that is older than this process is
therefore what the process executed, if Python could have replaced it.
"""

from __future__ import annotations

import importlib.util
import itertools
import marshal
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from preheat.sources.bytecode import instructions
from preheat.sources.digest import (
    NOT_A_PROGRAM,
    code_digest,
    constant_tokens,
    joined_tokens,
)
from preheat.sources.quiet import without_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_HEADER_BYTES = 16  # magic number, flags, modification time, size: PEP 552
_OPTIMIZED = 0x1
_PLAIN = frozenset({bool, int, float, complex, str, bytes, tuple, frozenset})


def left_by_import(module: ModuleType, path: Path, since_ns: int) -> CodeType | None:
    """The code that importing ``module`` executed, where the cache still shows it, else None.

    ``since_ns``: a moment before the import. The cache counts when it has not been touched since then,
    goes by times (not by hashes, which Python may be told not to check), and could have been replaced.
    Not promised: seeing that Python failed to replace it, at the moment of the import, in a directory
    that can be written now.
    """
    spec = getattr(module, "__spec__", None)
    cached = getattr(spec, "cached", None)
    if (
        type(getattr(spec, "loader", None)) is not SourceFileLoader
        or sys.dont_write_bytecode
        or not isinstance(cached, str)
        or cached != importlib.util.cache_from_source(str(path))
        or not os.access(Path(cached).parent, os.W_OK)
    ):
        return None
    try:
        with Path(cached).open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
    except OSError:
        return None
    if max(found.st_mtime_ns, found.st_ctime_ns) >= since_ns:
        return None
    by_time = int.from_bytes(data[4:8], "little") == 0
    if data[:4] != importlib.util.MAGIC_NUMBER or not by_time:
        return None
    try:
        # Python itself would execute this file at the next import.
        code = marshal.loads(data[_HEADER_BYTES:])  # noqa: S302
    except (EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None


def is_compiled_from(code: CodeType, text: bytes) -> bool:
    """Whether ``text`` is the same program but for comments, formatting and docstrings."""
    try:
        with without_warnings():
            other = compile(text, "", "exec", dont_inherit=True)
    except NOT_A_PROGRAM:
        return False
    return code_digest(code) == code_digest(other)


def is_still_there(module: ModuleType, code: CodeType) -> bool:
    """Whether the live module has nothing that contradicts having been made by ``code``.

    Its functions and methods, in the same lines, and the constants that it and its classes bind once.
    """
    made: dict[str, set[tuple[int, str]]] = {}
    for one in _definitions(code):
        made.setdefault(one.co_qualname, set()).add((one.co_firstlineno, code_digest(one)))
    for qualname, known in made.items():
        live = _live_code(module, qualname)
        if live is not None and live.co_filename == module.__file__:
            if (live.co_firstlineno, code_digest(live)) not in known:
                return False
    names = vars(module)
    return all(
        name in names and _tokens(names[name]) == _tokens(value) for name, value in _constants(code)
    ) and all(_is_class_of(module, body) for body in _class_bodies(code))


def _is_class_of(module: ModuleType, body: CodeType) -> bool:
    """Whether the constants of a class are those of its body, where the class has kept them."""
    found: Any = module
    for name in body.co_qualname.split("."):
        found = vars(found).get(name)
        if not isinstance(found, type):
            return True  # wrapped by a decorator, or bound to something else since
    kept = vars(found)
    # An enumeration has made other things of them.
    return all(
        type(kept.get(name)) not in _PLAIN or _tokens(kept[name]) == _tokens(value)
        for name, value in _constants(body)
    )


def _class_bodies(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType) and not one.co_flags & _OPTIMIZED:
            yield one
            yield from _class_bodies(one)


def _definitions(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods that running ``code`` defines by name."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & _OPTIMIZED:
                yield one
            else:
                yield from _definitions(one)  # the body of a class


def _live_code(module: ModuleType, qualname: str) -> CodeType | None:
    found: Any = vars(module)
    for name in qualname.split("."):
        found = found.get(name) if isinstance(found, dict) else vars(found).get(name)
        if found is None or (not isinstance(found, type) and not hasattr(found, "__code__")):
            return None  # wrapped by a decorator, or bound to something else since
    code = getattr(found, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _constants(code: CodeType) -> Iterator[tuple[str, object]]:
    """Names that ``code`` binds once, and to a constant."""
    steps = instructions(code)
    stored = [one.name for one in steps if one.operation in ("STORE_NAME", "DELETE_NAME")]
    for before, one in itertools.pairwise(steps):
        if one.operation == "STORE_NAME" and before.has_constant and one.name is not None:
            if stored.count(one.name) == 1 and one.name != "__annotations__":
                yield one.name, before.constant


def _tokens(value: object) -> bytes:
    return joined_tokens(constant_tokens(value))
