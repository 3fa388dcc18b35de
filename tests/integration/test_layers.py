"""Workers that read a store and the layers below it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.store import DiskStore

if TYPE_CHECKING:
    from pathlib import Path

    from support.project import Project

LOAD = """
    import json, warnings, torch, preheat
    from lean.model import Custom

    warnings.simplefilter("ignore")
    module, x = Custom(), torch.randn(10)
    loaded = preheat.load("custom", module, on_miss="eager")
    right = all(torch.equal(a, b) for a, b in zip(loaded(x), module(x)))
    report = loaded.preheat
    print(json.dumps([right, report.form, report.verdict, [str(one) for one in report.reasons]]))
"""


def load(project: Project, *stores: Path) -> tuple[bool, str, str, str]:
    """Whether the result was right, the form, the verdict, and the reasons as one text."""
    done = project.python(LOAD, env={"PREHEAT_STORE": ":".join(map(str, stores))})
    assert done.code == 0, done.err
    right, form, verdict, reasons = done.json()
    return right, form, verdict, "; ".join(reasons)


def stale_copy(project: Project, place: Path) -> DiskStore:
    """A store whose package of ``custom`` is of sources that were edited since."""
    shutil.copytree(project.store_path, place)
    store = DiskStore(place, create=True)
    manifest = project.manifest("custom")
    first, *others = manifest.sources.modules
    edited = msgspec.structs.replace(first, file_sha256="0" * 64, digest="0" * 64, kept=None)
    sources: Any = msgspec.structs.replace(
        manifest.sources, modules=(edited, *others), closure=None
    )
    store.publish(msgspec.structs.replace(manifest, sources=sources))
    return store


def test_a_worker_and_its_layers(lean_project: Project, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(lean_project.store_path, shared)
    own = tmp_path / "own"
    assert load(lean_project, own, shared)[:3] == (True, "lean", "FRESH")
    assert not own.exists()
    # A stale package in front hides no fresh one behind.
    stale = stale_copy(lean_project, tmp_path / "stale").layout.root
    assert load(lean_project, stale)[:3] == (True, "eager", "STALE")
    assert load(lean_project, stale, shared)[:3] == (True, "lean", "FRESH")
    # A layer that is gone is a miss with a reason for each place.
    shutil.rmtree(shared)
    right, form, verdict, reasons = load(lean_project, own, shared)
    assert (right, form, verdict) == (True, "eager", "MISSING")
    assert str(own) in reasons
    assert f"in the layer {shared}" in reasons
    # So is one whose files vanish behind its back.
    shutil.copytree(lean_project.store_path, shared)
    shutil.rmtree(shared / "v1" / "objects")
    right, form, verdict, reasons = load(lean_project, own, shared)
    assert (right, form) == (True, "eager")
    assert f"in the layer {shared}" in reasons
