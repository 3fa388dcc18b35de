"""``[executors.NAME]``: who builds for an environment that this machine does not have."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_TIMEOUT_SECONDS = 6 * 60 * 60.0
DEFAULT_JOBS = 4
RESULT = "result"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}")
_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class ExecutorTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[executors.NAME]`` as written."""

    factory: str
    environment: str
    arguments: dict[str, Any] = {}
    targets: list[str] | None = None
    python: str | None = None
    jobs: int = DEFAULT_JOBS
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    through: str = RESULT
    remote_python: str | None = None
    remote_project: str | None = None
    remote_state: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executor:
    """One executor, ready to use.

    ``factory`` returns it when ``python`` calls it with ``arguments`` (JSON: this is hashed and compared).
    ``environment`` is the file that says what is built for. ``jobs`` is how many builds it has at a time,
    ``timeout`` how many seconds each may take, waiting included. ``through``: ``result``, or the URL or
    directory of a store that both nodes reach. ``remote_*``: interpreter, project and state directory there;
    None for those of whoever calls the build, for the same path as here, and for none.
    """

    name: str
    factory: str
    arguments: bytes
    environment: Path
    python: str
    jobs: int = DEFAULT_JOBS
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    through: str = RESULT
    remote_python: str | None = None
    remote_project: str | None = None
    remote_state: str | None = None

    @property
    def through_store(self) -> str | None:
        """The URL of the store that packages come through, if they do."""
        return None if self.through == RESULT else self.through

    def configured(self) -> list[object]:
        """What of this may make another try worth while."""
        return [
            self.factory,
            self.arguments.decode(),
            self.python,
            self.timeout,
            self.through,
            self.remote_python,
            self.remote_project,
            self.remote_state,
        ]


def check_table(name: str, table: ExecutorTable, file: Path) -> None:
    """Raises ``ConfigurationError`` for values that cannot be."""
    where = f"{file}: `executors.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{file}: the name of the executor {name!r} may have letters, digits, `_`, `-` and `.` only."
        )
    if not _FACTORY.fullmatch(table.factory):
        raise ConfigurationError(
            f"{where}.factory`: {table.factory!r} is not of the form `package.module:function`."
        )
    if table.jobs < 1:
        raise ConfigurationError(f"{where}.jobs` must be 1 or more, not {table.jobs}.")
    if not 0 < table.timeout < math.inf:
        raise ConfigurationError(f"{where}.timeout` must be seconds above 0, not {table.timeout}.")
    if not table.through:
        raise ConfigurationError(
            f"{where}.through` is empty.", remedy="Write `result`, a directory or a URL."
        )
    _check_arguments(table.arguments, where)


def _check_arguments(arguments: Mapping[str, Any], where: str) -> None:
    for name in arguments:
        if not name.isidentifier():
            raise ConfigurationError(f"{where}.arguments` has an impossible name: {name!r}.")
    try:
        msgspec.json.encode(arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}.arguments` cannot be passed on: {error}.") from error
