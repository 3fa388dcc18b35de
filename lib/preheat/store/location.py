"""Where the store is: the same answer for daemon, command line and workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from preheat.errors import ConfigurationError
from preheat.limits import MAX_TOML_BYTES, TomlError, decode_toml, read_limited

STORE_VARIABLE = "PREHEAT_STORE"
CONFIGURATION_NAMES = ("preheat.toml", "pyproject.toml")


def find_store(
    argument: str | os.PathLike[str] | None = None, *, start: Path | None = None
) -> Path:
    """The store's absolute path: the first of ``find_stores``. Raises ``ConfigurationError``."""
    return find_stores(argument, start=start)[0]


def find_stores(
    argument: str | os.PathLike[str] | None = None, *, start: Path | None = None
) -> tuple[Path, ...]:
    """The absolute paths of the store and of the read-only layers below it. Nothing is created.

    The first of these that says something: ``argument``; PREHEAT_STORE; the key ``store`` of the
    nearest configuration at or above ``start`` (default: the current directory), relative to the
    configuration's own directory; the first entry of CACHE_DIRECTORY, which systemd sets; the user's
    cache directory. ``~`` is expanded in the first three. Layers are the other paths in PREHEAT_STORE,
    which are separated by colons; where it is not set, the configuration's key ``layers``. An ``argument``
    has none. Raises ``ConfigurationError``.
    """
    if argument is not None:
        return (_absolute(os.fspath(argument), Path.cwd()),)
    if named := split_stores(os.environ.get(STORE_VARIABLE, "")):
        return tuple(_absolute(one, Path.cwd()) for one in named)
    configuration = find_configuration(start)
    if configuration is None:
        return (_default_store(),)
    path, table = configuration
    return (_written_store(path, table) or _default_store(), *_written_layers(path, table))


def split_stores(text: str) -> tuple[str, ...]:
    """The paths in PREHEAT_STORE: the store, then its layers."""
    return tuple(one for one in text.split(os.pathsep) if one)


def _written_store(path: Path, table: dict[str, Any]) -> Path | None:
    if "store" not in table:
        return None
    value = table["store"]
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{path}: store must be a path, not {value!r}.")
    return _absolute(value, path.parent)


def _written_layers(path: Path, table: dict[str, Any]) -> tuple[Path, ...]:
    value = table.get("layers", [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ConfigurationError(f"{path}: layers must be a list of paths, not {value!r}.")
    return tuple(_absolute(one, path.parent) for one in value)


def _default_store() -> Path:
    if first := os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]:
        return Path(first).absolute()
    return _user_cache()


def find_configuration(start: Path | None = None) -> tuple[Path, dict[str, Any]] | None:
    """The nearest configuration at or above ``start`` (default: the current directory), and its table.

    That is ``preheat.toml``, or else a ``pyproject.toml`` with a table ``[tool.preheat]``; one without
    does not count, and the search goes on upwards. Raises ``ConfigurationError`` for a file in the
    way that is not TOML or cannot be read.
    """
    first = (Path.cwd() if start is None else start).absolute()
    for directory in (first, *first.parents):
        for name in CONFIGURATION_NAMES:
            table = _table(directory / name)
            if table is not None:
                return directory / name, table
    return None


def _table(path: Path) -> dict[str, Any] | None:
    document = _parse(path)
    if document is None or path.name == "preheat.toml":
        return document
    tool = document.get("tool")
    table = tool.get("preheat") if isinstance(tool, dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise ConfigurationError(f"{path}: tool.preheat must be a table.")


def _parse(path: Path) -> dict[str, Any] | None:
    try:
        data = read_limited(path, MAX_TOML_BYTES)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return decode_toml(data)
    except TomlError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}.") from error


def _absolute(text: str, base: Path) -> Path:
    try:
        return (base / Path(text).expanduser()).absolute()
    except RuntimeError as error:
        raise ConfigurationError(f"{text}: {error}.") from error


def _user_cache() -> Path:
    try:
        import platformdirs  # here, because workers need not have it
    except ImportError:
        return _plain_user_cache()
    try:
        return platformdirs.user_cache_path("preheat").absolute()
    except RuntimeError as error:
        raise _no_home() from error


def _plain_user_cache() -> Path:
    """What platformdirs says on Linux: both must agree, or a worker looks where no daemon writes."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "preheat"
    try:
        home = Path("~").expanduser()
    except RuntimeError as error:
        raise _no_home() from error
    if not home.is_absolute():
        raise _no_home()
    return home / ".cache" / "preheat"


def _no_home() -> ConfigurationError:
    return ConfigurationError(
        "The user has no home directory, so there is no default store.",
        remedy=f"Set {STORE_VARIABLE}, or `store` in preheat.toml.",
    )
