"""Graphs of which marked regions are compiled and the rest is run operator by operator.

torch calls it ``RegionalOutputCode``. A program marks a region with
``torch.fx.traceback.annotate({"compile_with_inductor": {...}})`` and is compiled with
``Spec(..., backend="regional_inductor")``. torch's own bytes hold the outer graph, and each region as a
compiled graph of its own; their kernels are objects of the package, as all kernels are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.errors import CorruptedError, IncompatibleError, PreheatError, RefusedError
from preheat.kinds.inductor import InductorCode, InductorKind
from preheat.verdict import Reason

if TYPE_CHECKING:
    from preheat.kinds.interface import Made, Place

BACKEND = "regional_inductor"


class RegionalKind(InductorKind):
    """Graphs of ``backend="regional_inductor"``, in the dynamo form."""

    name = "regional"

    def describe(self) -> str:
        return "a traced graph with regions that Inductor compiled"

    def prepare(self, made: Made) -> Any:
        from preheat.torch_internals.regional import is_regional

        artifact = super().prepare(made)
        if not is_regional(artifact):
            raise RefusedError(
                "no region of a graph is marked for compilation, or torch stored it otherwise",
                remedy="Mark regions with torch.fx.traceback.annotate, or use backend='aot_eager'.",
            )
        return artifact

    def load(self, data: bytes, place: Place) -> RegionalCode:
        return RegionalCode(super().load(data, place)._artifact, place)


class RegionalCode(InductorCode):
    """One graph with its compiled regions."""

    def post_load(self) -> None:
        """Restore the outer graph under a fake mode of its own, then each region."""
        try:
            super().post_load()
        except PreheatError:
            raise
        except (OSError, RuntimeError) as error:
            detail = f"a region cannot be restored: {type(error).__name__}: {error}"[:500]
            reason = Reason(kind="load_failed", symbol="regional", detail=detail)
            raise IncompatibleError(reasons=[reason]) from error
        except Exception as error:
            raise CorruptedError(
                f"A region cannot be restored: {type(error).__name__}: {error}."[:1000]
            ) from error
