"""``preheat init``: a configuration to begin with, from what the project's files say.

Nothing of the project is imported.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import ConfigurationError
from preheat.sources.declaration import compiled_places, marked_functions
from preheatd.config import CONFIG_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILES = 20_000
_MAX_FILE_BYTES = 4 * 1024 * 1024
_NOT_LOOKED_INTO = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}
# Directories that hold packages and are none themselves.
_SOURCE_ROOTS = ("src", "lib")
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a file, relative to the project."""

    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class Found:
    """What a look through a project gave.

    ``factories``: by what a configuration calls them. ``compiled``: where ``torch.compile`` is used.
    ``roots``: directories that must be on the import path for the factories to be found.
    """

    factories: dict[str, Place]
    compiled: tuple[Place, ...]
    roots: tuple[str, ...]


def look_through(project: Path) -> Found:
    """Read every Python file of a project. Files that do not parse, or are too many, are left out."""
    factories: dict[str, Place] = {}
    compiled: list[Place] = []
    roots: dict[str, None] = {}
    for path in _python_files(project):
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                continue
            source = path.read_bytes()
        except OSError:
            continue
        file = path.relative_to(project)
        compiled += [Place(str(file), line) for line in compiled_places(source)]
        module, root = module_of(file, has_init=(project / file.parts[0] / "__init__.py").exists())
        for name, line in marked_functions(source) if module else ():
            factories[f"{module}:{name}"] = Place(str(file), line)
            if root:
                roots[root] = None
    return Found(factories, tuple(compiled), tuple(roots))


def _python_files(project: Path) -> Iterator[Path]:
    count = 0
    for directory, names, files in os.walk(project):
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".")
            and name not in _NOT_LOOKED_INTO
            and not Path(directory, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith(".py"):
                count += 1
                if count > MAX_FILES:
                    return
                yield Path(directory, name)


def module_of(file: Path, *, has_init: bool) -> tuple[str, str]:
    """The name that a file is imported by, and the directory that has to be on the path; pure.

    Empty for a file whose path is no module's name. ``has_init``: its first directory is a package.
    """
    parts = list(file.with_suffix("").parts)
    root = ""
    if len(parts) > 1 and parts[0] in _SOURCE_ROOTS and not has_init:
        root = parts.pop(0)
    if parts[-1] == "__init__":
        parts.pop()
    if not parts or not all(part.isidentifier() for part in parts):
        return "", ""
    return ".".join(parts), root


def configuration_text(found: Found) -> str:
    """A commented ``preheat.toml``; pure."""
    lines = ["# What preheat keeps warm. Every key is in docs/configuration.md.", ""]
    if found.factories:
        lines.append("targets = [")
        lines += [
            f'    "{name}",  # {place.file}, line {place.line}'
            for name, place in found.factories.items()
        ]
        lines.append("]")
    else:
        lines += [
            "# A target is a function that returns a preheat.Spec, marked with @preheat.target:",
            '# targets = ["package.module:function"]',
        ]
    if found.compiled:
        lines += ["", "# torch.compile is used here; each may be worth a target:"]
        lines += [f"#   {place.file}, line {place.line}" for place in found.compiled[:_SHOWN]]
        if len(found.compiled) > _SHOWN:
            lines.append(f"#   and {len(found.compiled) - _SHOWN} more")
    lines += [
        "",
        "# How many builds run at the same time.",
        "# jobs = 1",
        "",
        "# The interpreter of the workers, if it is another one than that of this command.",
        '# python = ".venv/bin/python"',
        "",
        "# Where the packages are. Workers look in the same place.",
        '# store = "build/preheat"',
        "",
        "# A command after each build; it goes through no shell.",
        '# on_failed = ["notify-send", "preheat", "a build failed"]',
        "",
        "# How large the store may become. What is in use or kept warm stays in any case.",
        "# [collection]",
        '# max_size = "20GiB"',
        "",
    ]
    if found.roots:
        lines += ["[env]", f'PYTHONPATH = "{os.pathsep.join(found.roots)}"', ""]
    return "\n".join(lines)


def write_configuration(project: Path) -> tuple[Path, Found]:
    """Look through the project and write ``preheat.toml``. Raises ``ConfigurationError`` if it is there."""
    file = project / CONFIG_NAME
    found = look_through(project)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(configuration_text(found))
    except FileExistsError:
        raise ConfigurationError(
            f"{file} is there already.", remedy="Edit it, or remove it first."
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}.") from error
    return file, found
