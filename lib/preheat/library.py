"""A library (``Spec(..., output="aoti")``) as files, for programs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from preheat.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.store.protocol import Store


def export_library(
    target: str,
    fn: Callable[..., Any],
    directory: str | Path,
    *,
    store: str | Path | Store | None = None,
) -> tuple[Path, Path]:
    """Write a target's library to ``directory/TARGET.so`` and its constants to ``directory/TARGET.pt``.

    The constants are those of ``fn``, the live module, and those of the program's code: a dictionary of
    tensors by the library's own names, as ``torch.save`` writes it and ``torch::jit::pickle_load`` reads it.

    The package is checked as ``preheat.load`` checks it. Raises ``MissError`` when it cannot be used, and
    ``RefusedError`` for a target that is no library. Not promised: what is checked before a call in
    Python is checked in another program. See ``docs/internals.md``.
    """
    import torch

    from preheat.forms import FormOpener
    from preheat.image.library import LIBRARY_NAME, LoadedLibrary
    from preheat.image.programs import device_index
    from preheat.image.reading import read_image
    from preheat.worker import load, open_store

    opened = open_store(store)
    report = load(target, fn, store=opened, on_miss="error", form="lean").preheat
    form = opened.read_manifest(report.manifest).form("lean")
    assert form is not None
    opener = FormOpener(opened, form)
    data = read_image(opener).library
    if not data:
        raise RefusedError(f"Target {target!r} is no library: declare it with output='aoti'.")
    library = LoadedLibrary(data, opener, fn, device_index(fn))
    library.bind()
    base = Path(directory) / target
    base.parent.mkdir(parents=True, exist_ok=True)
    shared, constants = base.with_name(base.name + ".so"), base.with_name(base.name + ".pt")
    content = opener.open(LIBRARY_NAME)
    try:
        shared.write_bytes(content.read())
    finally:
        content.close()
    torch.save(library.constants(), constants)
    return shared, constants
