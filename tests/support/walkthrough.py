"""The beginning of docs/jobs.md, followed word for word on two machines: what a person would do and see.

Each machine is a root of its own (``support.container``). What the walk leaves is what recipes are tried
with: a project, and a remote with its package.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from support.container import PATH, Container

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
MACHINES = ("build", "node17")
# What the machines have already, by the beginning of the line; `make test-machine` does install it.
ALREADY = {
    "python3 -m venv venv": ". venv/bin/activate",
    "pip install": "true",
}
_ENVIRONMENT = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}
# Lines that change the shell itself are said again before each later line.
STAYS = re.compile(r"(^|&& )(cd|\.|export) ")


@dataclasses.dataclass(frozen=True)
class Step:
    """One line of the page: on which machine, what is typed, and what the page shows below it."""

    machine: str
    command: str
    shown: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Taken:
    """A step that was taken."""

    step: Step
    code: int
    seen: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    """The lines of console blocks whose prompt names a machine."""
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found: list[tuple[str, str, list[str]]] = []
        for line in block.splitlines():
            if match := re.match(r"(\w+)\$ (.*)", line):
                found.append((match[1], match[2], []))
            elif found:
                found[-1][2].append(line)
        for machine, command, shown in found:
            yield Step(machine, command, tuple(shown))


def files(text: str) -> dict[str, str]:
    """Python blocks whose first line says which file they are."""
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = (re.match(r"# (\S+\.py)\n", block) for block in blocks)
    return {match[1]: match.string for match in found if match}


def alike(shown: tuple[str, ...], seen: tuple[str, ...]) -> bool:
    """Whether the page shows what was seen, but for digests, numbers and spaces.

    A line ``[...]`` stands for any lines.
    """
    parts = ["".join(f"{re.escape(_plain(line))}\n" for line in part) for part in _split(shown)]
    text = "".join(f"{_plain(line)}\n" for line in seen)
    return re.fullmatch("(?:.*\n)*".join(parts), text) is not None


def _split(shown: tuple[str, ...]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == "[...]":
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _plain(line: str) -> str:
    line = re.sub(r"\b[0-9a-f]{12,}\b", "DIGEST", line)
    line = re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "N", line)
    return " ".join(line.split())


class Walkthrough:
    """Both machines, and what happened on them."""

    def __init__(self, place: Path, caches: Path) -> None:
        self.team = place / "team"
        self.team.mkdir(parents=True)
        self.machines = {name: Container(place / name) for name in MACHINES}
        for machine in self.machines.values():
            machine.bind(self.team, "/mnt/team", read_only=False)
            machine.install_preheat("/srv/shop/venv")
        # What other tests have compiled is not compiled again.
        self.build.bind(caches, "/root/.cache/preheat/state/caches", read_only=False)
        self.taken: list[Taken] = []
        self._before: dict[str, list[str]] = {name: [] for name in MACHINES}
        written = files(PAGE.read_text())
        for name, text in written.items():
            self.build.write(f"/srv/shop/{name}", text)

    @property
    def build(self) -> Container:
        return self.machines["build"]

    @property
    def node(self) -> Container:
        return self.machines["node17"]

    @property
    def remote(self) -> Path:
        """The remote with the package of the target ``classifier``."""
        return self.team / "packages"

    @property
    def project(self) -> Path:
        """What travels to a node: the project without its environment."""
        return self.team / "shop"

    def walk(self) -> None:
        for step in steps(PAGE.read_text()):
            self.taken.append(self.take(step))

    def take(self, step: Step) -> Taken:
        command = " && ".join(self._own(part) for part in step.command.split(" && "))
        before = self._before[step.machine]
        script = "\n".join([*(f"{one} >/dev/null" for one in before), "exec 2>&1", command])
        done = self.machines[step.machine].run("bash", "-uc", script, env=_ENVIRONMENT)
        if STAYS.search(command):
            before.append(command)
        return Taken(step, done.returncode, tuple((done.stdout + done.stderr).splitlines()))

    def _own(self, command: str) -> str:
        return next(
            (instead for start, instead in ALREADY.items() if command.startswith(start)), command
        )
