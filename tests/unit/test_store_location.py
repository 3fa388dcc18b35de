"""Where the store is looked for, and in which order."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from preheat.errors import ConfigurationError
from preheat.store import find_store
from preheat.store.location import _plain_user_cache, find_configuration


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREHEAT_STORE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_the_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_store() == tmp_path / "home" / ".cache" / "preheat"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert find_store() == Path("/xdg/preheat")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/preheat:/var/cache/other")
    assert find_store() == Path("/var/cache/preheat")
    (tmp_path / "preheat.toml").write_text('store = "/configured"')
    assert find_store() == Path("/configured")
    monkeypatch.setenv("PREHEAT_STORE", "/variable")
    assert find_store() == Path("/variable")
    assert find_store("/argument") == Path("/argument")


def test_relative_and_home_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    project = tmp_path / "project"
    (project / "deep" / "down").mkdir(parents=True)
    (project / "preheat.toml").write_text('store = ".store"')
    assert find_store(start=project / "deep" / "down") == project / ".store"
    (project / "preheat.toml").write_text('store = "~/store"')
    assert find_store(start=project) == home / "store"
    assert find_store("~/store") == home / "store"
    assert find_store("here") == tmp_path / "here"
    monkeypatch.setenv("PREHEAT_STORE", "~/named")
    assert find_store(start=project) == home / "named"
    monkeypatch.setenv("PREHEAT_STORE", "named")
    assert find_store(start=project) == tmp_path / "named"


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "preheat.toml").write_text('store = "top"')
    (tmp_path / "outer" / "pyproject.toml").write_text('[tool.preheat]\nstore = "outer"')
    (inner / "pyproject.toml").write_text('[tool.other]\nstore = "no"')
    assert find_store(start=inner) == tmp_path / "outer" / "outer"
    (inner / "pyproject.toml").write_text("[tool.preheat]")
    assert find_store(start=inner) == tmp_path / "home" / ".cache" / "preheat"
    (inner / "preheat.toml").write_text('store = "inner"')
    assert find_store(start=inner) == inner / "inner"
    assert find_configuration(inner) == (inner / "preheat.toml", {"store": "inner"})


def test_no_configuration(tmp_path: Path) -> None:
    assert find_configuration(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("preheat.toml", b"store ="),
        ("pyproject.toml", b"[tool"),
        ("preheat.toml", b"\xff"),
        ("preheat.toml", b"store = 3"),
        ("preheat.toml", b'store = ""'),
        ("pyproject.toml", b"tool.preheat = 3"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, text: bytes
) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ConfigurationError, match=name):
        find_store()
    assert find_store("/argument") == Path("/argument")


def test_a_user_without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(ConfigurationError, match="no home directory"):
        _plain_user_cache()
    with pytest.raises(ConfigurationError, match="~nobody/store"):
        find_store("~nobody/store")


@pytest.mark.parametrize("xdg", [None, "", "/xdg", "relative"])
def test_with_and_without_platformdirs_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch, xdg: str | None
) -> None:
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert _plain_user_cache() == platformdirs.user_cache_path("preheat") == find_store()
