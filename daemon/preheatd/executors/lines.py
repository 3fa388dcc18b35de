"""The lines of a configuration: every target here, and again for each executor that builds it. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import ConfigurationError
from preheatd.executors.naming import line_name
from preheatd.executors.settings import RESULT, Executor, ExecutorTable, check_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from preheatd.config import Target


def executor_of(
    name: str, table: ExecutorTable, file: Path, python: str, path: Callable[[str], Path]
) -> Executor:
    """An executor as a value; ``path`` says where a written path is. Raises ``ConfigurationError``."""
    check_table(name, table, file)
    through = table.through
    if through != RESULT and "://" not in through:
        through = str(path(through))
    return Executor(
        name=name,
        factory=table.factory,
        arguments=msgspec.json.encode(table.arguments),
        environment=path(table.environment),
        python=python,
        jobs=table.jobs,
        timeout=table.timeout,
        through=through,
        remote_python=table.remote_python,
        remote_project=table.remote_project,
        remote_state=table.remote_state,
    )


def with_executors(
    targets: Sequence[tuple[Target, bool]],
    tables: Mapping[str, ExecutorTable],
    executors: Mapping[str, Executor],
    file: Path,
) -> tuple[Target, ...]:
    """The lines, those of one target together. ``targets``: each, and whether it is built here.

    Raises ``ConfigurationError`` for an executor of a target that there is not, and for a target that nobody
    builds.
    """
    known = {target.name for target, _ in targets}
    for name, table in tables.items():
        for wanted in table.targets or ():
            if wanted not in known:
                raise ConfigurationError(
                    f"{file}: `executors.{name}.targets`: there is no target `{wanted}`.",
                    remedy="Name targets as they are called in this file.",
                )
    found: list[Target] = []
    for target, here in targets:
        elsewhere = list(_elsewhere(target, tables, executors))
        if not here and not elsewhere:
            raise ConfigurationError(
                f"{file}: `{target.name}` is not built here (`here = false`), and no executor builds it.",
                remedy="Remove `here = false`, or name it in `targets` of an executor.",
            )
        found += [target] * here + elsewhere
    return tuple(found)


def _elsewhere(
    target: Target, tables: Mapping[str, ExecutorTable], executors: Mapping[str, Executor]
) -> Iterator[Target]:
    for name, executor in executors.items():
        wanted = tables[name].targets
        if wanted is None or target.name in wanted:
            yield dataclasses.replace(
                target,
                name=line_name(target.name, name),
                executor=executor,
                timeout=executor.timeout,
                jobs=executor.jobs,
            )
