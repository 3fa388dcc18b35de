"""Entry points: what runs in place of a code object that was compiled.

An entry point has the signature of its code object. It puts its arguments into a dictionary as guards
want them, asks one variant after another, and runs the first that answers.
"""

from __future__ import annotations

import marshal
import types
from typing import TYPE_CHECKING, Any, Protocol

from preheat.image.format import unmarshal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_VARIABLE_POSITIONAL = 0x04
_VARIABLE_KEYWORD = 0x08


def entry_code(code: types.CodeType) -> bytes:
    """The marshalled code of an entry point for ``code``. Used by the build."""
    text = _entry_text(code)
    module = compile(text, f"<preheat entry {code.co_name}>", "exec", dont_inherit=True)
    entry = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    count = len(_parameters(code))
    names = (*code.co_varnames[:count], *entry.co_varnames[count:])
    return marshal.dumps(entry.replace(co_varnames=names))


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _VARIABLE_POSITIONAL) + bool(code.co_flags & _VARIABLE_KEYWORD)
    return code.co_varnames[:count]


def _entry_text(code: types.CodeType) -> str:
    count, keyword_count = code.co_argcount, code.co_kwonlyargcount
    names = list(code.co_varnames)
    positional, keywords = names[:count], names[count : count + keyword_count]
    rest = names[count + keyword_count :]
    several = rest.pop(0) if code.co_flags & _VARIABLE_POSITIONAL else None
    others = rest.pop(0) if code.co_flags & _VARIABLE_KEYWORD else None
    known = [*positional, *keywords, *(name for name in (several, others) if name)]
    # Whatever the parameters are called, they do not hide the entry's own names.
    spelt = {name: f"_p{number}" for number, name in enumerate(known)}
    parameters = [spelt[name] for name in positional]
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if several:
        parameters.append("*" + spelt[several])
    elif keywords:
        parameters.append("*")
    parameters += [spelt[name] for name in keywords]
    if others:
        parameters.append("**" + spelt[others])
    passed = [spelt[name] for name in positional]
    passed += ["*" + spelt[several]] if several else []
    passed += [f"{name}={spelt[name]}" for name in keywords]
    passed += ["**" + spelt[others]] if others else []
    call = ", ".join(passed)
    lines = [f"def entry({', '.join(parameters)}):"]
    lines.append("    _L = {" + ", ".join(f"{name!r}: {spelt[name]}" for name in known) + "}")
    for number, name in enumerate(code.co_freevars):
        lines.append(f"    _cell(_L, {name!r}, _cells[{number}])")
    lines += [
        "    for _variant in _variants.order:",
        "        if _variant.check(_L):",
        "            if _variant is not _variants.order[0]:",
        "                _variants.promote(_variant)",
        f"            return _variant.run({call})",
        f"    return _variants.miss(_L)({call})",
    ]
    return "\n".join(lines)


class Guarded(Protocol):
    """What ``Variants`` need of guards."""

    check: Callable[[dict[str, Any]], bool]

    def why_not(self, local_scope: dict[str, Any]) -> str:
        """The guard that does not hold."""


class GuardedVariant:
    """One compiled version: ``check`` its guards, ``run`` its code."""

    __slots__ = ("check", "guards", "run")

    def __init__(self, guards: Guarded, run: Callable[..., Any]) -> None:
        self.guards = guards
        self.check = guards.check
        self.run = run


class LibraryGuards:
    """Guards of a frame, and what a library (``preheat.image.library``) asks for besides."""

    def __init__(self, guards: Guarded, library: Any) -> None:
        self._holds = guards.check
        self._why_not = guards.why_not
        self._misfit = library.misfit
        self.check: Callable[[dict[str, Any]], bool] = self._all_holds

    def _all_holds(self, local_scope: dict[str, Any]) -> bool:
        return self._holds(local_scope) and self._misfit(local_scope) is None

    def why_not(self, local_scope: dict[str, Any]) -> str:
        """The first that does not."""
        if self._holds(local_scope):
            return self._misfit(local_scope) or ""
        return self._why_not(local_scope)


class Variants:
    """The compiled versions of one code object, most recently used first.

    ``on_miss(why)`` gives what runs a call that none of them answers. Threads may call at any time:
    the order is replaced as a whole.
    """

    __slots__ = ("_on_miss", "order")

    def __init__(
        self, variants: Sequence[GuardedVariant], on_miss: Callable[[str], Callable[..., Any]]
    ) -> None:
        self.order = tuple(variants)
        self._on_miss = on_miss

    def promote(self, variant: GuardedVariant) -> None:
        """Ask this variant first from now on."""
        self.order = (variant, *(other for other in self.order if other is not variant))

    def miss(self, local_scope: dict[str, Any]) -> Callable[..., Any]:
        """What to call instead; says why no variant answered."""
        reasons = dict.fromkeys(v.guards.why_not(local_scope) for v in self.order)
        why = "; ".join(reason for reason in reasons if reason)
        return self._on_miss(why or "no variant of this code is in the package")


def entry_point(
    marshalled: bytes,
    like: types.FunctionType,
    closure: Sequence[types.CellType],
    variants: Variants,
) -> types.FunctionType:
    """The entry point with the name and defaults of the function that it stands for."""
    scope: dict[str, Any] = {"_variants": variants, "_cells": tuple(closure), "_cell": _cell}
    code = unmarshal(marshalled)
    entry = types.FunctionType(code, scope, like.__name__, like.__defaults__)
    entry.__kwdefaults__ = like.__kwdefaults__
    return entry


def _cell(local_scope: dict[str, Any], name: str, cell: types.CellType) -> None:
    try:
        local_scope[name] = cell.cell_contents
    except ValueError:
        pass  # not assigned yet; a guard on it does not hold


def variant_function(
    code: types.CodeType,
    scope: dict[str, Any],
    like: types.FunctionType,
    cells: Mapping[str, types.CellType],
) -> types.FunctionType:
    """A variant's bytecode as a function, over the cells of the function that it stands for."""
    closure = tuple(cells[name] for name in code.co_freevars)
    function = types.FunctionType(code, scope, like.__name__, like.__defaults__, closure or None)
    function.__kwdefaults__ = like.__kwdefaults__
    return function


def renamed(code: types.CodeType, names: Mapping[str, str]) -> types.CodeType:
    """``code`` with other names for globals, nested code included."""
    if not names:
        return code
    constants = tuple(
        renamed(constant, names) if isinstance(constant, types.CodeType) else constant
        for constant in code.co_consts
    )
    used = tuple(names.get(name, name) for name in code.co_names)
    return code.replace(co_names=used, co_consts=constants)
