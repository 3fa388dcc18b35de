"""Builds a Dockerfile stage by stage in containers of ``support.container``, as far as our recipes need.

An instruction that is not known here is an error, and so is a ``RUN`` that fails.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from support.base_image import ENVIRONMENT, base_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from support.container import Container

# What a stage has of its own; the rest is this machine's, and read-only.
OWN = ("srv", "opt", "var", "tmp", "image")


class BuildError(Exception):
    """A ``RUN`` ended with another code than 0."""


@dataclasses.dataclass
class Stage:
    """One stage: its files, and what its containers start with."""

    root: Container
    environment: dict[str, str]
    directory: str = "/"
    uid: int = 0
    command: tuple[str, ...] = ()
    arguments: dict[str, str] = dataclasses.field(default_factory=dict)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction with its words, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


class Builder:
    """Builds one Dockerfile in ``place`` with ``context``; the last stage is the image."""

    def __init__(self, place: Path, context: Path, arguments: Mapping[str, str]) -> None:
        self._place = place
        self._context = context
        self._given = dict(arguments)
        self._global: dict[str, str] = {}
        self._stages: dict[str, Stage] = {}

    def build(self, text: str) -> Stage:
        stage: Stage | None = None
        for name, rest in instructions(text):
            if name == "FROM":
                stage = self._from(rest)
            elif stage is None:
                self._argument(self._global, rest)
            else:
                getattr(self, f"_{name.lower()}")(stage, rest)
        assert stage is not None
        return stage

    def _from(self, rest: str) -> Stage:
        image, _, name = rest.partition(" AS ")
        image = self._expand(image, self._global)
        place = self._place / f"stage{len(list(self._place.iterdir()))}"
        made = base_image(place)
        if image in self._stages:
            before = self._stages[image]
            for own in OWN:
                shutil.copytree(before.root.at(own), made.at(own), dirs_exist_ok=True)
            made.binds = [*before.root.binds]
            stage = Stage(made, dict(before.environment), before.directory, before.uid)
        else:
            assert image.startswith("python:"), image
            stage = Stage(made, dict(ENVIRONMENT))
        self._stages[name or str(place)] = stage
        return stage

    def _argument(self, known: dict[str, str], rest: str) -> None:
        name, _, default = rest.partition("=")
        known[name] = self._given.get(name, default)

    def _arg(self, stage: Stage, rest: str) -> None:
        self._argument(stage.arguments, rest)

    def _expand(self, text: str, known: Mapping[str, str]) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda match: known[match[1]], text)

    def _workdir(self, stage: Stage, rest: str) -> None:
        stage.directory = rest
        stage.root.at(rest).mkdir(parents=True, exist_ok=True)

    def _env(self, stage: Stage, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            stage.environment[name] = value

    def _user(self, stage: Stage, rest: str) -> None:
        stage.uid = int(rest.partition(":")[0])

    def _cmd(self, stage: Stage, rest: str) -> None:
        stage.command = tuple(json.loads(rest))

    def _copy(self, stage: Stage, rest: str) -> None:
        words = rest.split()
        options = [words.pop(0) for _ in [*words] if words[0].startswith("--")]
        *sources, target = words
        root = self._context
        for option in options:
            if option.startswith("--from="):
                root = self._stages[option.removeprefix("--from=")].root.root
            else:
                assert option == "--chown=root:root", option
        place = stage.root.at(str(Path(stage.directory, target)))
        found = [one for source in sources for one in sorted(root.glob(source.lstrip("/")))]
        assert found, rest
        for one in found:
            into = place / one.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            if one.is_dir():
                shutil.copytree(one, into, dirs_exist_ok=True)
            else:
                shutil.copy2(one, into)

    def _run(self, stage: Stage, rest: str) -> None:
        done = stage.root.run(
            "/bin/sh",
            "-c",
            rest,
            env={**stage.environment, **stage.arguments},
            uid=stage.uid,
            cwd=stage.directory,
        )
        if done.returncode:
            raise BuildError(f"RUN {rest}: {done.returncode}\n{done.stdout}{done.stderr}")
