"""Code that a process has already imported, compared with what a package was built from.

Files say what the next import gives; a process that imported before an edit still runs the old code.
The code objects that went into a package are therefore recorded by name, and compared with those that
the worker really has.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from preheat.manifest import LiveCode
from preheat.sources.digest import code_digest
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def record_live(codes: Iterable[types.CodeType], files: Mapping[str, str]) -> tuple[LiveCode, ...]:
    """Name and digest of each code object that lies in a user file and can be found by its name.

    ``files`` maps the path of a user module's file to the module's name. Code that cannot be found by
    name (made by exec, replaced by a decorator) is left out: it is covered by the modules' digests.
    """
    found = {}
    for code in codes:
        module = files.get(code.co_filename)
        if module is None:
            continue
        live = find_code(sys.modules.get(module), code.co_qualname)
        digest = code_digest(code)
        if live is not None and code_digest(live) == digest:
            found[module, code.co_qualname] = LiveCode(
                module=module, qualname=code.co_qualname, digest=digest
            )
    return tuple(found[key] for key in sorted(found))


def live_differences(recorded: Iterable[LiveCode]) -> tuple[Reason, ...]:
    """Recorded code that this process has imported in another version.

    Modules that are not imported yet are skipped: their files are checked instead.
    """
    reasons = []
    for item in recorded:
        module = sys.modules.get(item.module)
        if module is None:
            continue
        live = find_code(module, item.qualname)
        if live is not None and code_digest(live) == item.digest:
            continue
        reasons.append(
            Reason(
                kind="live_code_differs",
                file=getattr(module, "__file__", None),
                symbol=f"{item.module}.{item.qualname}",
                detail="not found in this process"
                if live is None
                else "this process imported another version than the package was built from",
            )
        )
    return tuple(reasons)


def find_code(module: types.ModuleType | None, qualname: str) -> types.CodeType | None:
    """The code object of a qualified name, through classes and enclosing functions."""
    found: Any = module
    parts = qualname.split(".")
    for index, part in enumerate(parts):
        if part == "<locals>":
            continue
        if index and parts[index - 1] == "<locals>":
            found = _nested(_code_of(found), part)
        else:
            found = _member(found, part)
        if found is None:
            return None
    return _code_of(found)


def _member(owner: Any, name: str) -> Any:
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        return None


def _nested(code: types.CodeType | None, name: str) -> types.CodeType | None:
    constants = code.co_consts if code is not None else ()
    for constant in constants:
        if isinstance(constant, types.CodeType) and constant.co_name == name:
            return constant
    return None


def _code_of(value: Any) -> types.CodeType | None:
    if isinstance(value, types.CodeType):
        return value
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    code = getattr(value, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
