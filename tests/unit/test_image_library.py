"""Libraries that this process cannot run: refused with a reason before anything of them runs."""

from __future__ import annotations

import marshal
from typing import Any

import pytest
import torch

from preheat.errors import IncompatibleError
from preheat.image.alone import LibraryRecord, encode_library
from preheat.image.library import LIBRARY_NAME, LoadedLibrary
from preheat.store import MemoryStore
from support.stores import opener_of


def library(device: str, content: bytes, capability: tuple[int, ...] = ()) -> tuple[bytes, Any]:
    record = LibraryRecord(
        code=marshal.dumps(compile("", "<library>", "exec")),
        device=device,
        constants=(),
        values=(),
        tensors=(),
        stored=b"",
        capability=capability,
    )
    return encode_library(record), opener_of(MemoryStore(), {LIBRARY_NAME: content})


def test_a_library_for_another_gpu_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    data, opener = library("cuda", b"never loaded", (8, 0))
    with pytest.raises(IncompatibleError) as caught:
        LoadedLibrary(data, opener, torch.nn.Identity(), 0)
    (reason,) = caught.value.reasons
    assert (reason.kind, reason.symbol) == ("environment_differs", "compute capability")
    assert "8.0, here 9.0" in str(reason)


def test_what_the_dynamic_loader_refuses_is_a_reason() -> None:
    """A library for another torch lacks symbols, one for another machine is of another format."""
    data, opener = library("cpu", b"\x7fELF for another machine")
    with pytest.raises(IncompatibleError) as caught:
        LoadedLibrary(data, opener, torch.nn.Identity(), 0)
    (reason,) = caught.value.reasons
    assert (reason.kind, reason.symbol) == ("load_failed", "library")
