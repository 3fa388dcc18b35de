"""An image from a package, for this interpreter and torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from preheat.errors import IncompatibleError
from preheat.image.format import IMAGE_NAME, INTERPRETER, decode
from preheat.verdict import Reason

if TYPE_CHECKING:
    from preheat.image.format import Image
    from preheat.store.protocol import ObjectOpener


def read_image(opener: ObjectOpener) -> Image:
    """The image of a package, for this interpreter and torch.

    Raises ``CorruptedError`` for anything that is no image, and ``IncompatibleError`` for another
    interpreter's or torch's.
    """
    opened = opener.open(IMAGE_NAME)
    try:
        image = decode(opened.read())
    finally:
        opened.close()
    if image.interpreter != INTERPRETER:
        raise IncompatibleError(reasons=[_differs("the interpreter's bytecode", "another", "this")])
    if image.torch != str(torch.__version__):
        raise IncompatibleError(reasons=[_differs("torch", image.torch, str(torch.__version__))])
    return image


def _differs(what: str, built: str, here: str) -> Reason:
    return Reason(
        kind="environment_differs", symbol=what, detail=f"built with {built}, here {here}"
    )
