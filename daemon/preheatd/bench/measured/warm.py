"""The target of the measured project."""

import preheat

from . import case
from .models import build


@preheat.target
def program() -> preheat.Spec:
    """The program of the case."""
    module, args = build(case.PROGRAM, case.DEVICE, case.LAYERS)
    return preheat.Spec(module, examples=[args], grad=False)
