"""What every kind of compiled code can do, from the build process to the end of a worker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from preheat.store.protocol import ObjectOpener
    from preheat.torch_internals.graph_capture import BackendCall
    from preheat.torch_internals.options import CompileOptions


@dataclasses.dataclass(frozen=True)
class Made:
    """One graph that a backend compiled, in the build process.

    ``name`` is the global by which transformed bytecode calls it; ``call`` what was recorded while the
    backend ran, None where nothing was; ``result`` what the backend returned.
    """

    name: str
    backend: str
    call: BackendCall | None
    result: Any


@dataclasses.dataclass(frozen=True)
class Place:
    """Where code is loaded: ``options`` are those of the target, ``device`` the number of its GPU.

    The lean form needs no options. ``opener`` opens the form's other objects and ``program`` is the live one,
    for a kind that is a whole program.
    """

    options: CompileOptions | None = None
    device: int = 0
    opener: ObjectOpener | None = None
    program: Any = None


class Code(Protocol):
    """Compiled code of one graph, in a worker."""

    def post_load(self) -> None:
        """What has to be done once, after loading and before the first call.

        Entered under the modes that the graph was compiled in. Raises ``PreheatError`` for what does not
        fit this process.
        """

    def __call__(self, *args: Any) -> Any:
        """Run the graph. Never compiles."""

    def release(self) -> None:
        """No new call will come. Calls that are under way go on. May be called more than once."""


class Kind(Protocol):
    """One kind of compiled code. Kinds have no state: all of it is in what they make and load."""

    @property
    def name(self) -> str:
        """The word that manifests name it by."""

    def describe(self) -> str:
        """What it is, in a few words for a person."""

    def prepare(self, made: Made) -> Any:
        """Build side: what of a compiled graph has a meaning in another process.

        Raises ``RefusedError`` that says what in it has none.
        """

    def write(self, prepared: Any) -> bytes:
        """Build side: the bytes of what ``prepare`` gave. Raises ``RefusedError``."""

    def load(self, data: bytes, place: Place) -> Code:
        """Worker side: the code in bytes whose digest was verified.

        Raises ``CorruptedError`` for bytes that ``write`` did not make, and ``IncompatibleError`` for what
        does not fit this process.
        """
