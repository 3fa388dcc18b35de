"""Inductor's Python wrapper (torch calls it ``CompiledFxGraph``), in the dynamo form.

What torch bundles of a graph is pickled as torch made it; the wrapper's module is executed from the
package's own text. (In the lean form the same graphs are records of an image: ``preheat.image``.)
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from preheat.errors import CorruptedError, RefusedError

if TYPE_CHECKING:
    from preheat.kinds.interface import Made, Place


class InductorKind:
    """Graphs of ``backend="inductor"``."""

    name = "inductor"

    def describe(self) -> str:
        return "Inductor's Python wrapper with its kernels"

    def prepare(self, made: Made) -> Any:
        from preheat.torch_internals.artifacts import artifact_of

        return artifact_of(made.name)

    def write(self, prepared: Any) -> bytes:
        try:
            return pickle.dumps(prepared, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise RefusedError(f"a compiled graph does not pickle ({error})") from error

    def load(self, data: bytes, place: Place) -> InductorCode:
        try:
            artifact = pickle.loads(data)  # noqa: S301  verified bytes of a trusted store
        except Exception as error:
            raise CorruptedError(
                f"A compiled graph does not unpickle: {type(error).__name__}: {error}."
            ) from error
        return InductorCode(artifact, place)


class InductorCode:
    """One graph with what AOTAutograd does around it."""

    def __init__(self, artifact: Any, place: Place) -> None:
        self._artifact = artifact
        self._place = place
        self._call: Any = None

    def post_load(self) -> None:
        from preheat.torch_internals.artifacts import restored

        options = self._place.options
        self._call = restored(self._artifact, options.inductor_settings() if options else {})
        self._artifact = None

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def release(self) -> None:
        """The kernels are shared by content with other packages, and stay loaded."""
