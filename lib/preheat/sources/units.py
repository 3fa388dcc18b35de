"""The closure of a package as data: which named pieces of which modules it depends on.

Recorded by the build, compared by daemon and worker with the text of the files of their time.
"""

import sys

import msgspec

CLOSURE_FORMAT = 1
# Digests of bytecode are those of one release of Python.
RELEASE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Unit(_Record, frozen=True, kw_only=True):
    """One top-level statement or method.

    ``symbol``: the name that it binds (``function``, ``Class.method``), or for a statement that binds
    nothing a few words of it. ``digest``: of a function, ``code_digest`` of its code object; of
    anything else, of the statement's tree. ``head``: of what stands around a function's code
    (decorators, defaults and, where somebody reads them, annotations), None where there is nothing.
    ``first`` and ``last``: the lines where the build found it, from 1.
    """

    symbol: str
    digest: str
    head: str | None = None
    first: int = 0
    last: int = 0


class ModuleUnits(_Record, frozen=True, kw_only=True):
    """What counts in one module.

    ``names``: what others or the module itself look up in it; anything that binds one of them counts,
    also if it is written tomorrow. ``everything``: all that it binds counts. ``open``: it is passed
    around as a value, so the closure's ``attributes`` count here too. ``lambdas``: statements with a
    lambda count. ``effects``: importing it does more than binding names; ``package``: it is a package.
    ``table``: digest of all pieces of the module, in the closure or not: where it is the same, nothing
    changed. ``code``: the same of the compiled module, quicker to take and finer; "": not known.
    ``state``: digest of all that a comparison looks at. ``order``: digest of the units whose
    order matters. ``whole``: the module's digest where its parts cannot be told apart.
    """

    module: str
    table: str = ""
    code: str = ""
    units: tuple[Unit, ...] = ()
    order: str = ""
    names: tuple[str, ...] = ()
    everything: bool = False
    open: bool = False
    lambdas: bool = False
    effects: bool = False
    package: bool = False
    whole: str | None = None
    state: str = ""


class Closure(_Record, frozen=True, kw_only=True):
    """Everything in user code that a package depends on, by name and digest.

    ``python``: the release (``3.11``) whose bytecode the digests are of. ``roots``: ``module:name`` of
    the factory and of all that was traced. ``attributes``: names that are looked up on values nobody
    knows; ``any_attribute``: some of those names are computed. ``inherited``: names that user classes
    have from libraries, so that a method of that name may be called by a library; None: not known.
    ``hooked``: classes that run code when a subclass is defined. ``stored``: names that are bound from
    elsewhere, ``any_store``: or may be, so that order matters. ``annotations``, ``docstrings``,
    ``text``: somebody reads those, so they count. ``variables``: environment variables that are named.
    ``state``: digest of all that a comparison looks at.
    """

    format: int = CLOSURE_FORMAT
    python: str
    roots: tuple[str, ...] = ()
    modules: tuple[ModuleUnits, ...] = ()
    attributes: tuple[str, ...] = ()
    any_attribute: bool = False
    inherited: tuple[str, ...] | None = None
    hooked: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    any_store: bool = False
    annotations: bool = False
    docstrings: bool = False
    text: bool = False
    variables: tuple[str, ...] = ()
    state: str = ""
