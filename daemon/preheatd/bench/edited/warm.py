"""The target of the edited project."""

import preheat

from . import case
from .models import build


@preheat.target
def program() -> preheat.Spec:
    """The program of the case."""
    module, args = build(case.PROGRAM)
    return preheat.Spec(module, examples=[args], grad=False)
