"""The targets of the measured project: the same program, compiled to each kind of code."""

from typing import Any

import preheat

from . import case
from .models import Regional, build


def _spec(**options: Any) -> preheat.Spec:
    module, args = build(case.PROGRAM, case.DEVICE, case.LAYERS)
    return preheat.Spec(module, examples=[args], grad=False, **options)


@preheat.target
def program() -> preheat.Spec:
    """The program of the case."""
    return _spec()


@preheat.target
def eager() -> preheat.Spec:
    """The same, traced by Dynamo and not compiled."""
    return _spec(backend="eager")


@preheat.target
def aot_eager() -> preheat.Spec:
    """The same, traced by AOTAutograd and not compiled."""
    return _spec(backend="aot_eager")


@preheat.target
def library() -> preheat.Spec:
    """The same as one shared library."""
    return _spec(output="aoti")


@preheat.target
def regional() -> preheat.Spec:
    """The same as one compiled region of a graph."""
    module, args = build(case.PROGRAM, case.DEVICE, case.LAYERS)
    return preheat.Spec(Regional(module), examples=[args], grad=False, backend="regional_inductor")
