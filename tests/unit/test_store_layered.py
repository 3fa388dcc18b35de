"""A store with read-only layers below it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from preheat.errors import CorruptedError, StoreError, UntrustedStoreError
from preheat.manifest import ObjectRef, environment_digest, sha256
from preheat.store import DiskStore, LayeredStore, Store
from preheat.store.location import find_store, find_stores
from support.bundles import proven, publish
from support.stores import KINDS, held

if TYPE_CHECKING:
    from pathlib import Path

HERE = environment_digest(proven().environment)
IN_LAYER = ObjectRef(name="part0", sha256=sha256(b"in the layer"), size=12)


@pytest.fixture
def top(tmp_path: Path) -> DiskStore:
    store = DiskStore(tmp_path / "top", create=True)
    publish(store, b"in the top", target="both")
    return store


@pytest.fixture
def layer(tmp_path: Path) -> DiskStore:
    store = DiskStore(tmp_path / "layer", create=True)
    publish(store, b"older", target="both")
    publish(store, b"in the layer", target="below")
    return store


@pytest.fixture(params=KINDS)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Store]:
    """A top and a layer, of either kind."""
    upper, lower = (held(request.param, tmp_path / name).store for name in ("one", "other"))
    publish(upper, b"in the top", target="both")
    publish(lower, b"older", target="both")
    publish(lower, b"in the layer", target="below")
    return upper, lower


def target_of(store: Store, target: str) -> bytes:
    found = store.read_package(target, HERE)
    assert found is not None
    assert store.read_ref(target, HERE) == found[0]
    assert store.read_manifest(found[0].manifest) == found[1]
    (needed,) = found[1].objects()
    with_object = store.open_object(needed)
    try:
        return with_object.read()
    finally:
        with_object.close()


def test_the_first_that_has_it(two: tuple[Store, Store]) -> None:
    top, layer = two
    layered = LayeredStore(top, [layer])
    assert isinstance(layered, Store)
    assert target_of(layered, "both") == b"in the top"
    assert target_of(layered, "below") == b"in the layer"
    assert [ref.target for ref in layered.refs()] == ["both", "below"]
    assert layered.read_package("none", HERE) is None
    assert layered.location == f"{top.location}:{layer.location}"


def test_only_the_top_is_written(two: tuple[Store, Store]) -> None:
    top, layer = two
    before = list(layer.refs())
    layered = LayeredStore(top, [layer])
    layered.put_object(b"new")
    layered.publish(proven(b"new", target="both"))
    assert target_of(top, "both") == b"new"
    assert list(layer.refs()) == before
    with pytest.raises(CorruptedError):
        layer.open_object(ObjectRef(name="new", sha256=sha256(b"new"), size=3))
    with pytest.raises(StoreError, match="not published"):  # a package leans on no layer
        layered.publish(proven(b"in the layer", target="more"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_damaged_in_the_top(
    kind: str, two: tuple[Store, Store], tmp_path: Path
) -> None:
    top, (_, layer) = held(kind, tmp_path / "top"), two
    top.store.put_object(b"in the layer")
    top.alter_object(IN_LAYER.sha256, b"in the lyaer")
    opened = LayeredStore(top.store, [layer]).open_object(IN_LAYER)
    assert opened.read() == b"in the layer"
    opened.close()
    where = str(tmp_path / "top") if kind == "disk" else IN_LAYER.sha256
    with pytest.raises(CorruptedError, match=where):
        LayeredStore(top.store, []).open_object(IN_LAYER)


@pytest.mark.parametrize("how", ["removed", "a file", "untrusted", "another format"])
def test_a_layer_that_goes_away(how: str, top: DiskStore, layer: DiskStore) -> None:
    layered = LayeredStore(top, [layer])
    assert target_of(layered, "below") == b"in the layer"
    root = layer.layout.root
    if how == "untrusted":
        root.chmod(0o777)
    elif how == "another format":
        layer.layout.format_file.chmod(0o644)
        layer.layout.format_file.write_bytes(b"preheat store 9\n")
        layered = LayeredStore(top, [DiskStore(root)])
    else:
        shutil.rmtree(root)
        if how == "a file":
            root.write_text("")
    assert target_of(layered, "both") == b"in the top"
    assert layered.read_package("below", HERE) is None
    assert [ref.target for ref in layered.refs()] == ["both"]
    if how != "another format":  # objects are found by their digest alone
        with pytest.raises(StoreError):
            layered.open_object(IN_LAYER)


def test_trouble_with_the_top_is_no_secret(top: DiskStore, layer: DiskStore) -> None:
    top.layout.root.chmod(0o777)
    layered = LayeredStore(top, [layer])
    for use in (
        lambda: layered.read_ref("both", HERE),
        lambda: layered.read_package("below", HERE),
        lambda: list(layered.refs()),
        lambda: layered.open_object(IN_LAYER),
    ):
        with pytest.raises(UntrustedStoreError):
            use()


def test_where_layers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREHEAT_STORE", raising=False)
    (tmp_path / "preheat.toml").write_text('store = "own"\nlayers = ["shared", "/opt/baked"]\n')
    wanted = [tmp_path / "own", tmp_path / "shared", "/opt/baked"]
    assert [str(one) for one in find_stores()] == [str(one) for one in wanted]
    monkeypatch.setenv("PREHEAT_STORE", f"a:{tmp_path}/b:")
    assert find_stores() == (tmp_path / "a", tmp_path / "b")
    assert find_store() == tmp_path / "a"
    assert find_stores(tmp_path / "c") == (tmp_path / "c",)


def test_the_configuration_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from preheatd.config import load_config

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREHEAT_STORE", raising=False)
    file = tmp_path / "preheat.toml"
    file.write_text('targets = ["a:b"]\nstore = "own"\nlayers = ["shared"]\n')
    for value in (None, "x:y:z", "x"):
        if value is not None:
            monkeypatch.setenv("PREHEAT_STORE", value)
        config = load_config(file)
        assert (config.store, *config.layers) == find_stores()
