"""A daemon of a project, told by its events."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.project import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.project import Daemon, Project


class Watched:
    """A daemon in a project, and what it has said since one last asked."""

    def __init__(self, project: Project, daemon: Daemon) -> None:
        self.project = project
        self.daemon = daemon
        self._seen = 0

    def events(self) -> list[dict[str, Any]]:
        lines = [line for line in self.daemon.text().splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def wait(self, *actions: str) -> dict[str, Any]:
        """The next event of one of these kinds."""
        found: list[dict[str, Any]] = []

        def happened() -> bool:
            events = self.events()
            for index, event in enumerate(events[self._seen :], self._seen):
                if event["action"] in actions:
                    self._seen = index + 1
                    found.append(event)
                    return True
            return not self.daemon.alive()

        until(happened, " or ".join(actions))
        assert found, self.daemon.text()
        return found[0]

    def proof(self) -> Any:
        manifest = self.project.manifest("scaled")
        assert manifest.proof is not None
        return manifest.proof

    def log(self) -> str:
        (path,) = (self.project.root / "state" / "logs").glob("scaled@*.log")
        return path.read_text()

    def zygotes(self) -> list[int]:
        """The processes that fork, of this daemon."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"preheat.zygote" in words and _parents(path) & {self.daemon.process.pid}:
                    found.append(int(path.name))
        return found


def _parents(process: Path) -> set[int]:
    found = set()
    pid = int(process.name)
    while pid > 1:
        found.add(pid)
        pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return found


@contextlib.contextmanager
def watched(project: Project) -> Iterator[Watched]:
    with project.serving("--json") as daemon:
        yield Watched(project, daemon)
