"""The configuration as a value: what to keep warm, what to watch, where the store is.

Read from the nearest ``preheat.toml``, or ``[tool.preheat]`` of the nearest ``pyproject.toml``, from the
current directory upwards. Reading never imports user code. Every complaint names the file and the key.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.errors import ConfigurationError
from preheat.sources import declaration
from preheat.store.keys import Signing, signing_of
from preheat.store.location import find_configuration
from preheatd.collection import settings as collecting
from preheatd.configured_paths import (
    interpreter_of,
    layer_paths,
    path_of,
    store_path,
    watched_paths,
)
from preheatd.control.settings import Control, control_of
from preheatd.executors import lines
from preheatd.executors.naming import line_name
from preheatd.flight.settings import Fleet, fleet_of
from preheatd.politeness.settings import Politeness, checked
from preheatd.written import (
    DEFAULT_TIMEOUT_SECONDS,
    PYPROJECT_NAME,
    ConfigTable,
    SignaturesTable,
    TargetTable,
    read_table,
    suggest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preheatd.executors.settings import Executor
    from preheatd.written import Device

CONFIG_NAME = "preheat.toml"

_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One target, ready to use: paths are absolute, defaults are filled in.

    ``timeout`` is in seconds, for build and proof together. ``jobs`` is the most builds that may run
    while this one runs, itself included; None: no limit of its own. ``device`` None: the default
    device of the target's environment. A larger ``priority`` is built first. ``on_fresh`` and
    ``on_failed`` are commands, empty for none. ``memory_limit`` is in bytes, None for none. ``executor``:
    who builds it, for another environment; ``name`` is then that of a line (``executors.naming``).
    """

    name: str
    factory: str
    python: str
    cwd: Path
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    jobs: int | None = None
    device: Device | None = None
    priority: int = 0
    tolerance: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    on_fresh: tuple[str, ...] = ()
    on_failed: tuple[str, ...] = ()
    memory_limit: int | None = None
    executor: Executor | None = None

    @property
    def module(self) -> str:
        """The dotted name of the factory's module."""
        return self.factory.partition(":")[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of one project."""

    file: Path
    project: Path
    store: Path
    targets: tuple[Target, ...]
    watch: tuple[Path, ...] | None = None
    layers: tuple[Path, ...] = ()
    jobs: int = 1
    zygote: bool = True
    politeness: Politeness = dataclasses.field(default_factory=Politeness)
    control: Control = dataclasses.field(default_factory=Control)
    signing: Signing = dataclasses.field(default_factory=lambda: Signing("off"))
    collection_table: collecting.CollectionTable = dataclasses.field(
        default_factory=collecting.CollectionTable
    )
    fleet: Fleet = dataclasses.field(default_factory=Fleet)

    @property
    def collection(self) -> collecting.Collection:
        """How the store is collected."""
        return collecting.of_file(self.collection_table, self.file)

    def here(self) -> Config:
        """Only what is built on this machine."""
        targets = tuple(target for target in self.targets if target.executor is None)
        return dataclasses.replace(self, targets=targets)

    def usual(self, names: Sequence[str]) -> Config:
        """The named targets; without names what is built on this machine, or all where nothing is.

        Raises as ``select``.
        """
        return self.select(names) if names or not self.here().targets else self.here()

    def through(self, executors: Sequence[str], names: Sequence[str]) -> Config:
        """What these executors build: all of it, or for the named targets. Raises ``ConfigurationError``."""
        known = {target.executor.name for target in self.targets if target.executor}
        for name in executors:
            if name not in known:
                raise ConfigurationError(
                    f"{self.file}: there is no executor `{name}`.",
                    remedy=suggest(name, known) or "Add it as `[executors.NAME]`.",
                )
        wanted = [line_name(target, name) for name in executors for target in names]
        if names:
            return self.select(wanted)
        targets = tuple(
            one for one in self.targets if one.executor and one.executor.name in executors
        )
        return dataclasses.replace(self, targets=targets)

    def select(self, names: Sequence[str]) -> Config:
        """Only the named targets, all if none is named. Raises ``ConfigurationError``."""
        known = {target.name: target for target in self.targets}
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"{self.file}: there is no target `{name}`.",
                    remedy=suggest(name, known) or "Add it to `targets`.",
                )
        if not names:
            return self
        chosen = tuple(target for target in self.targets if target.name in set(names))
        return dataclasses.replace(self, targets=chosen)


def find_config(start: Path) -> Path:
    """The nearest configuration file from ``start`` upwards. Raises ``ConfigurationError``."""
    found = find_configuration(start)
    if found is not None:
        return found[0]
    raise ConfigurationError(
        f"No {CONFIG_NAME} and no [tool.preheat] in a {PYPROJECT_NAME} in {start.absolute()} or above it.",
        remedy=f'Write {CONFIG_NAME} with `targets = ["package.module:function"]`, or use --config.',
    )


def load_config(path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Config:
    """Read the configuration from ``path`` (a file or a directory), else from the nearest file.

    Raises ``ConfigurationError``.
    """
    environ = os.environ if environ is None else environ
    file = find_config(Path.cwd()) if path is None else path.absolute()
    try:
        if file.is_dir():
            file = find_config(file)
        return _load(file, environ)
    except (OSError, RuntimeError, ValueError) as error:
        # Names that are too long for a file, homes of accounts that there are not, and the like.
        raise ConfigurationError(f"{file}: {error}."[:1000]) from error


def _load(file: Path, environ: Mapping[str, str]) -> Config:
    table = read_table(file)
    project = file.parent.resolve()
    politeness = checked(table.politeness, file)
    known = tuple(
        (dataclasses.replace(target, memory_limit=politeness.memory_limit), here)
        for target, here in _targets(table, file, project, environ)
    )
    _check_unique([target for target, _ in known], file)
    executors = _executors(table, file, project, environ)
    targets = lines.with_executors(known, table.executors, executors, file)
    if not targets:
        raise ConfigurationError(
            f"{file}: `targets` is empty, so there is nothing to keep warm.",
            remedy='Add one, for example `targets = ["package.module:function"]`.',
        )
    if table.jobs < 1:
        raise ConfigurationError(f"{file}: `jobs` must be 1 or more, not {table.jobs}.")
    watch = None if table.watch is None else tuple(watched_paths(table.watch, file, project))
    store = store_path(table.store, project, environ)
    if table.collection != collecting.CollectionTable():
        collecting.of_file(table.collection, file)  # says what is wrong
    return Config(
        file=file,
        project=project,
        store=store,
        targets=targets,
        watch=watch,
        layers=layer_paths(table.layers, project, environ),
        jobs=table.jobs,
        zygote=table.zygote,
        politeness=politeness,
        control=control_of(table.control, file, project),
        collection_table=table.collection,
        fleet=fleet_of(table.fleet, file, project),
        signing=_signing(table.signatures, project, environ),
    )


def _signing(table: SignaturesTable, project: Path, environ: Mapping[str, str]) -> Signing:
    return signing_of(
        environ,
        level=table.policy,
        trusted=path_of(project, table.trusted_keys) if table.trusted_keys else None,
        key=path_of(project, table.key) if table.key else None,
    )


def _targets(
    table: ConfigTable, file: Path, project: Path, environ: Mapping[str, str]
) -> Iterable[tuple[Target, bool]]:
    """Each target, and whether it is built on this machine."""
    entries: list[tuple[str, str | TargetTable]] = [
        *((f"targets[{index}]", entry) for index, entry in enumerate(table.targets)),
        *((f"target[{index}]", entry) for index, entry in enumerate(table.target)),
    ]
    for key, entry in entries:
        own = TargetTable(factory=entry) if isinstance(entry, str) else entry
        here = table.here if own.here is None else own.here
        yield _target(own, table, f"{file}: `{key}`", project, environ), here


def _executors(
    table: ConfigTable, file: Path, project: Path, environ: Mapping[str, str]
) -> dict[str, Executor]:
    found = {}
    for name, one in table.executors.items():
        python = interpreter_of(one.python, project, environ)
        found[name] = lines.executor_of(
            name, one, file, python, lambda path: path_of(project, path)
        )
    return found


def _target(
    own: TargetTable, table: ConfigTable, where: str, project: Path, environ: Mapping[str, str]
) -> Target:
    if not _FACTORY.fullmatch(own.factory):
        raise ConfigurationError(
            f"{where}: the factory {own.factory!r} is not of the form `package.module:function`."
        )
    name = own.name or declared_name(own.factory, project)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where}: the name {name!r} may have letters, digits, `_`, `-` and `.` only (100 at most)."
        )
    timeout = table.timeout if own.timeout is None else own.timeout
    if not 0 < timeout < float("inf"):
        raise ConfigurationError(f"{where}: `timeout` must be seconds above 0, not {timeout}.")
    if own.jobs is not None and own.jobs < 1:
        raise ConfigurationError(f"{where}: `jobs` must be 1 or more, not {own.jobs}.")
    env = {**table.env, **own.env}
    for variable in env:
        if not variable or "=" in variable:
            raise ConfigurationError(f"{where}: `env` has an impossible name: {variable!r}.")
    cwd = path_of(project, own.cwd or table.cwd or ".")
    if not cwd.is_dir():
        raise ConfigurationError(f"{where}: `cwd` is not a directory: {cwd}.")
    return Target(
        name=name,
        factory=own.factory,
        python=interpreter_of(own.python or table.python, project, environ),
        cwd=cwd,
        env=env,
        timeout=timeout,
        jobs=own.jobs,
        device=own.device or table.device,
        priority=own.priority,
        tolerance={**table.tolerance, **own.tolerance},
        on_fresh=_hook("on_fresh", own.on_fresh, table.on_fresh, where, project),
        on_failed=_hook("on_failed", own.on_failed, table.on_failed, where, project),
    )


def _hook(
    key: str, own: Sequence[str] | None, default: Sequence[str], where: str, project: Path
) -> tuple[str, ...]:
    """A command: a program's path counts from the project. It need not exist yet."""
    words = tuple(default if own is None else own)
    if words and not words[0]:
        raise ConfigurationError(f"{where}: `{key}` begins with an empty word, not with a program.")
    if words and os.sep in words[0]:
        return (str(path_of(project, words[0])), *words[1:])
    return words


def declared_name(factory: str, project: Path) -> str:
    """The name that ``@preheat.target(name=...)`` declares, found by parsing; else the function's name.

    A file that is missing or does not parse is no error here: the build says what is wrong with it.
    """
    module, _, function = factory.partition(":")
    base = project.joinpath(*module.split("."))
    for file in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if file.is_file():
            return _parse_declared_name(file, function) or function.rpartition(".")[2]
    return function.rpartition(".")[2]


def _parse_declared_name(file: Path, function: str) -> str | None:
    try:
        return declaration.declared_name(file.read_bytes(), function)
    except OSError:
        return None


def _check_unique(targets: Sequence[Target], file: Path) -> None:
    seen: dict[str, Target] = {}
    for target in targets:
        if target.name in seen:
            raise ConfigurationError(
                f"{file}: two targets are named `{target.name}`: {seen[target.name].factory} and "
                f"{target.factory}.",
                remedy='Give one another name: `[[target]]` with `name = "..."`, or '
                "`@preheat.target(name=...)`.",
            )
        seen[target.name] = target
