"""Objects of a lean image that are damaged, missing or another's: a reason, and the next best form."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from support.project import Project

LOADED = """
    import json, warnings, torch, preheat
    from preheat.errors import PreheatError
    from lean.model import Custom

    warnings.simplefilter("ignore")
    module, x = Custom(), torch.randn(10)
    answer = {}
    for name, options in {
        "best": {"on_miss": "error"},
        "lean": {"on_miss": "error", "form": "lean"},
        "eager": {"on_miss": "eager", "form": "lean"},
    }.items():
        try:
            loaded = preheat.load("custom", module, store=STORE, **options)
            right = all(torch.equal(a, b) for a, b in zip(loaded(x), module(x)))
            report = loaded.preheat
            answer[name] = [right, report.form, [str(reason) for reason in report.reasons]]
        except PreheatError as error:
            answer[name] = [None, type(error).__name__, [str(reason) for reason in error.reasons]]
    print(json.dumps(answer))
"""


def objects(project: Project) -> dict[str, Any]:
    """The objects of the lean form by the first part of their names."""
    form = project.manifest("custom").form("lean")
    assert form is not None
    return {ref.name.partition("/")[0]: ref for ref in form.objects}


def file_of(store: Path, digest: str) -> Path:
    (found,) = (path for path in store.rglob(f"*{digest[2:]}*") if path.is_file())
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))


def shorten(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("part", "damage"),
    [("image", flip), ("image", shorten), ("image", None), ("kernel", flip), ("kernel", None),
     ("constants", flip)],
    ids=lambda value: getattr(value, "__name__", None) or str(value or "missing"),
)  # fmt: skip
def test_a_damaged_object_is_a_reason_and_never_a_crash(
    lean_project: Project, tmp_path: Path, part: str, damage: Any
) -> None:
    shutil.copytree(lean_project.store_path, tmp_path / "store", symlinks=True)
    path = file_of(tmp_path / "store", objects(lean_project)[part].sha256)
    if damage is None:
        path.unlink()
    else:
        damage(path)
    done = lean_project.python(LOADED.replace("STORE", repr(str(tmp_path / "store"))))
    assert done.code == 0, done.err
    answer = done.json()
    _, error, reasons = answer["lean"]
    assert error == "MissError"
    assert len(reasons) >= 1
    right, form, why = answer["eager"]
    assert (right, form) == (True, "eager")
    assert why
    right, form, why = answer["best"]
    # A kernel is shared by both forms; the image and its constants are the lean form's own.
    if part == "kernel":
        assert right is None
    else:
        assert (right, form) == (True, "dynamo")
        assert why


def test_a_custom_operator_that_is_not_registered_is_a_reason(lean_project: Project) -> None:
    script = """
        import json, torch
        from preheat.errors import IncompatibleError
        from preheat.image.load import LoadedImage
        from preheat.image.reading import read_image
        from preheat.store import DiskStore
        from preheat.forms import FormOpener

        store = DiskStore("store")
        (ref,) = store.refs("custom")
        form = store.read_manifest(ref.manifest).form("lean")
        opener = FormOpener(store, form)
        image = read_image(opener)
        try:
            LoadedImage(lambda x: x, image, opener, None, None)
            said = "loaded"
        except IncompatibleError as error:
            said = [(reason.kind, reason.symbol) for reason in error.reasons]
        print(json.dumps([said, hasattr(torch.ops.lean_tests, "thrice")]))
    """
    done = lean_project.python(script)
    assert done.code == 0, done.err
    said, registered = done.json()
    assert said != "loaded"
    assert not registered or said
