"""Digests on programs that nobody wrote for a test: the standard library of this very release.

``python -m conformance.standard_library [EVERY [DIRECTORY]]``, in ``tests``, with ``lib`` on the import
path; needs msgspec alone. Looks at each EVERY-th file (default: 8). A function's digest must not show
where its lines break, must be that of the function which import made, and a comment must change nothing.
Run by hand with every release of Python that is supported; 3.12.1, 3.13.0 and 3.14.2 were.
"""

from __future__ import annotations

import ast
import importlib
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from preheat.sources.digest import NOT_A_PROGRAM, compiled, exact_digest, module_digest
from preheat.sources.pieces import function_digest
from preheat.sources.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPORTED = (
    "argparse",
    "ast",
    "dataclasses",
    "enum",
    "functools",
    "inspect",
    "statistics",
    "typing",
)
_OPTIMIZED = 0x1


def differences(source: bytes) -> Iterator[str]:
    """What a module's text, with other line breaks and with a comment, does to its digests."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = 1  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    flat: CodeType = compile(tree, "", "exec", dont_inherit=True, optimize=0)
    # By digest alone: without line numbers the compiler keeps equal functions once.
    if _digests(compiled(source)) != _digests(flat):
        yield "line breaks show"
    commented = source + b"\n# a comment\n"
    before, after = read_table(source), read_table(commented)
    if before is None or after is None or before.summary() != after.summary():
        yield "a comment changes the pieces"
    if module_digest(source) != module_digest(commented):
        yield "a comment changes the module"
    if exact_digest(compiled(source)) != exact_digest(compiled(commented)):
        yield "a comment changes the bytecode"


def live_differences(module: str) -> Iterator[str]:
    """Functions and methods of an imported module whose code is not that of its text."""
    live = importlib.import_module(module)
    text = {
        (one.co_qualname, one.co_firstlineno): function_digest(one)
        for one in _functions(compiled(Path(str(live.__file__)).read_bytes()))
    }
    classes = [one for one in vars(live).values() if isinstance(one, type)]
    for owner in (live, *classes):
        for value in vars(owner).values():
            if isinstance(value, FunctionType) and value.__module__ == module:
                code = value.__code__
                known = text.get((code.co_qualname, code.co_firstlineno))
                if known is not None and known != function_digest(code):
                    yield f"{module}.{code.co_qualname} is another one in memory"


def _digests(module: CodeType) -> set[str]:
    return {function_digest(one) for one in _functions(module)}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & _OPTIMIZED:
                yield one
            yield from _functions(one)


def main(every: int, directory: Path) -> int:
    """Print what differs; 1 if something does."""
    looked, found = 0, []
    for path in sorted(directory.rglob("*.py"))[::every]:
        source = path.read_bytes()
        try:
            compiled(source)
        except NOT_A_PROGRAM:
            continue  # texts of tests that are no programs
        looked += 1
        found += [f"{path.relative_to(directory)}: {what}" for what in differences(source)]
    for module in IMPORTED:
        found += live_differences(module)
    release = sys.version.split()[0]
    print(*found, f"Python {release}: {len(found)} differences in {looked} files", sep="\n")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    place = arguments[1] if len(arguments) > 1 else sysconfig.get_path("stdlib")
    sys.exit(main(int(arguments[0]) if arguments else 8, Path(place)))
