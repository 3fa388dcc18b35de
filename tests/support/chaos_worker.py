"""A worker that loads each target of ``support.chaos`` and compares it with eager. It is forked: no wait."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def load_all(about: dict[str, Any]) -> dict[str, Any]:
    """``loaded``, ``refused`` with reasons, ``wrong``; ``unreadable``: sources that were half-written."""
    import torch

    import preheat
    from preheat.errors import MissError

    sys.dont_write_bytecode = True
    sys.path.insert(0, about["project"])
    said: dict[str, Any] = {"loaded": [], "refused": {}, "wrong": [], "unreadable": []}
    x = torch.linspace(0, 1, 16)
    for name in about["targets"]:
        try:
            program = importlib.import_module(f"app.{name}").program
            wanted = program(x)
        except Exception as error:
            said["unreadable"].append(f"{name}: {error}")
            continue
        try:
            output = preheat.load(name, program, store=about["store"], on_miss="error")(x)
        except MissError as error:
            said["refused"][name] = str(error)
            continue
        said["loaded"].append(name)
        if not torch.allclose(output, wanted):
            said["wrong"].append(f"{name}: {output[-1]}, eager says {wanted[-1]}")
    return said
