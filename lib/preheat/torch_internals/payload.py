"""The dynamo form's own container: what is pickled into a package, and nothing else.

Only the build process writes it and only a worker, after trust and digest checks, unpickles it.
"""

from __future__ import annotations

import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

from preheat.errors import CorruptedError
from preheat.formats import FORMATS

if TYPE_CHECKING:
    from preheat.image.call_checks import Check
    from preheat.image.format import Modes
    from preheat.torch_internals.options import CompileOptions

FORMAT = FORMATS["dynamo"]

# Instead of a module's name: code whose globals are a dictionary of its own, made by ``exec``.
OF_NO_MODULE = ""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One compiled version of a code object and everything that guards it.

    ``guards`` is torch's own pickled guard state. ``call_checks`` replace guards that torch cannot
    save and are checked at each call; ``load_checks`` likewise, once at load, for names in libraries;
    ``recorded_values`` are what guards compare with, as it was in the build: torch would otherwise
    compare a value read from a class or module with itself.
    """

    guards: bytes
    code: Any
    modes: Modes
    backends: tuple[str, ...]
    call_checks: tuple[Check, ...]
    load_checks: tuple[Check, ...]
    recorded_values: tuple[Check, ...]


@dataclasses.dataclass(frozen=True)
class CodeRecord:
    """One code object that Dynamo met: the target's, a resume function, or a nested frame.

    A record without variants is a frame that Dynamo left to Python. ``imports`` maps names that Dynamo
    made global to modules, and to classes as ``module:Class``.
    """

    code: Any
    digest: str
    module: str
    names: tuple[str, ...]
    source: str | None
    resume: bool
    imports: tuple[tuple[str, str], ...]
    variants: tuple[Variant, ...]


@dataclasses.dataclass(frozen=True)
class StoredCode:
    """The compiled code of one graph: ``data`` is what its kind (``preheat.kinds``) wrote."""

    kind: str
    data: bytes


@dataclasses.dataclass(frozen=True)
class Payload:
    """The dynamo form of one package. ``codes[0]`` is the target's own code object.

    ``backends`` maps the global names that compiled bytecode calls to the code of the graphs.
    ``options`` are what it was compiled with.
    """

    format: int
    torch: str
    codes: tuple[CodeRecord, ...]
    backends: dict[str, StoredCode]
    options: CompileOptions


def dump(payload: Payload) -> bytes:
    """Bytes of a payload."""
    return pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)


def parse(data: bytes) -> Payload:
    """Read a payload from bytes whose digest was verified.

    Raises ``CorruptedError`` for anything that is not a payload of this format.
    """
    try:
        payload = pickle.loads(data)  # noqa: S301  verified bytes of a trusted store
    except Exception as error:
        raise CorruptedError(
            f"The dynamo form does not unpickle: {type(error).__name__}: {error}."
        ) from error
    if not isinstance(payload, Payload) or payload.format != FORMAT:
        raise CorruptedError("The dynamo form is of another format.")
    return payload
