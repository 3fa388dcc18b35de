"""The options that every command has."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that every command has."""

    config_path: Path | None = None
    as_json: bool = False


def common_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that every command has; it gets an ``Options`` in their place."""

    @click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        help="preheat.toml, pyproject.toml, or a directory to look in.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @functools.wraps(command)
    def wrapped(config_path: Path | None, as_json: bool, **rest: Any) -> int:
        return command(Options(config_path, as_json), **rest)

    return wrapped
