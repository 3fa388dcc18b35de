"""Daemons, zygotes, builds and proofs of one project, killed and stopped at random while it is edited."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.project import Project

TARGETS = ("one", "two")
_MODULE = """
    from app.shared import OFFSET

    FACTOR = 2.0


    def helper(x):
        return x.sin() * FACTOR


    def program(x):
        return helper(x) + OFFSET
"""
FILES = {
    "app/__init__.py": "",
    "app/shared.py": "OFFSET = 1.0\n",
    **{f"app/{name}.py": _MODULE for name in TARGETS},
    "app/warm.py": "import preheat\nimport torch\n\n"
    + "".join(f"from app import {name} as {name}_module\n" for name in TARGETS)
    + "".join(
        f"\n\n@preheat.target\ndef {name}():\n    return preheat.Spec(\n"
        f"        {name}_module.program, examples=[(torch.linspace(0, 1, 16),)], grad=False\n    )\n"
        for name in TARGETS
    ),
    "preheat.toml": "targets = ["
    + ", ".join(f'"app.warm:{name}"' for name in TARGETS)
    + ']\nwatch = ["app"]\ntimeout = 300\njobs = 2\n',
}
# A storm lets hardly any build end; a lull is over as soon as one has.
STORM_SECONDS = 12.0
LULL_SECONDS = 60.0
# A value that was there before leads back to an earlier package; these are seldom the same twice.
_VALUES = tuple(number / 4 for number in range(1, 200))


class Processes:
    """The live processes of one project, told by their variables; this process is not among them."""

    def __init__(self, project: Project) -> None:
        self._mark = f"PREHEAT_STATE={project.environment['PREHEAT_STATE']}".encode()

    def all(self) -> dict[int, str]:
        """Their numbers, and what each one is."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark not in (path / "environ").read_bytes().split(b"\0"):
                    continue
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in ("Z", "X"):
                    leads = path.name == fields[3]
                    found[int(path.name)] = _role((path / "cmdline").read_bytes(), leads=leads)
        return found

    def of(self, *roles: str) -> list[int]:
        """The numbers of those with one of these roles."""
        return [pid for pid, role in self.all().items() if role in roles]


def _role(command: bytes, *, leads: bool) -> str:
    words = command.split(b"\0")
    if b"preheatd" in words:
        return "daemon" if b"serve" in words else "command"
    for module in ("build", "verify", "environment"):
        if f"preheat.{module}".encode() in words:
            return {"verify": "proof"}.get(module, module)
    if b"preheat.zygote" in words:
        return "zygote" if leads else "zygote's"
    return "other"


class Chaos:
    """Does something bad to a project again and again. What was done is in ``done``, by name."""

    def __init__(self, project: Project, seed: int) -> None:
        self.project = project
        self.processes = Processes(project)
        self.done: collections.Counter[str] = collections.Counter()
        self._chance = random.Random(seed)  # noqa: S311 - moments of death, no secret
        self._daemon: subprocess.Popen[bytes] | None = None
        self._stopped: dict[int, float] = {}
        self.log = project.root.parent / "serve.log"

    def serve(self) -> None:
        """Start a daemon unless one lives."""
        if self._daemon is None or self._daemon.poll() is not None:
            with self.log.open("ab") as out:
                self._daemon = subprocess.Popen(
                    [sys.executable, "-m", "preheatd", "serve", "--json"],
                    cwd=self.project.root,
                    env=self.project.environment,
                    stdout=out,
                    stderr=out,
                )
            self.done["daemons"] += 1

    def work(self, seconds: float, load: Callable[[], None]) -> None:
        """Chaos for so long: storms, and lulls in which something can get done. ``load`` is called often."""
        end = time.monotonic() + seconds
        first: list[Callable[[], None]] = [self._edit, self._kill, self._stop, load, self._kill]
        while True:
            self._go_on(min(end, time.monotonic() + STORM_SECONDS), first, load)
            first = []
            if time.monotonic() >= end:
                return
            self._lull(min(end, time.monotonic() + LULL_SECONDS), load)

    def _go_on(self, end: float, first: list[Callable[[], None]], load: Callable[[], None]) -> None:
        steps = [self._edit, self._kill, self._stop, load, self._edit, self._kill]
        while time.monotonic() < end or first:
            self.serve()
            step = first.pop(0) if first else self._chance.choice(steps)
            step()
            self._wait()

    def _lull(self, end: float, load: Callable[[], None]) -> None:
        """Nobody edits, until something was published; sometimes something dies nevertheless."""
        self._let_go(float("inf"))
        before = self._generations()
        while time.monotonic() < end and self._generations() == before:
            self.serve()
            if self._chance.random() < 0.03:
                self._kill()
            load()
            self._wait()
        if self._generations() != before:
            self.done["publications waited for"] += 1
        for _ in range(3):
            load()

    def _generations(self) -> list[int]:
        return [self.project.generation(name) for name in TARGETS]

    def _wait(self) -> None:
        time.sleep(self._chance.uniform(0.1, 2.5))
        self._let_go(time.monotonic())

    def calm_down(self) -> None:
        """One last edit; every stopped process may go on, and a daemon runs."""
        self._let_go(float("inf"))
        self._edit()
        self.serve()

    def end(self) -> None:
        """End the daemon as a person would. Raises ``AssertionError`` when that fails."""
        assert self._daemon is not None
        self._daemon.terminate()
        assert self._daemon.wait(300) == 0, self.log.read_text()[-3000:]

    def kill_all(self) -> None:
        """For the end of a test that failed."""
        for pid in self.processes.all():
            _signal(pid, signal.SIGKILL)
        if self._daemon is not None:
            self._daemon.wait()

    def _edit(self) -> None:
        """One of the ways in which editors and version control write."""
        self.done["edits"] += 1
        shared = self._chance.random() < 0.1
        name = "shared" if shared else self._chance.choice(TARGETS)
        path = self.project.root / "app" / f"{name}.py"
        value = self._chance.choice(_VALUES)
        lines = path.read_text().splitlines(keepends=True)
        word = "OFFSET" if shared else "FACTOR"
        text = "".join(f"{word} = {value}\n" if one.startswith(word) else one for one in lines)
        how = self._chance.randrange(4)
        if how == 0:  # in place, and seen half-written
            with path.open("w") as file:
                file.write(text[: len(text) // 2])
                file.flush()
                time.sleep(self._chance.uniform(0, 0.5))
                file.write(text[len(text) // 2 :])
            return
        if how == 1:  # away for a moment
            path.unlink()
            time.sleep(self._chance.uniform(0, 0.5))
        if how == 2:  # many times in a row
            for _ in range(5):
                path.write_text(text + f"# {self._chance.random()}\n")
        new = path.with_name(f".{name}.new")
        new.write_text(text)
        new.replace(path)

    def _kill(self) -> None:
        if victim := self._victim():
            pid, role = victim
            _signal(pid, signal.SIGKILL)
            if self._daemon is not None and pid == self._daemon.pid:
                self._daemon.wait()
                time.sleep(self._chance.uniform(0, 1))
            self.done[f"kills of a {role}"] += 1

    def _stop(self) -> None:
        if victim := self._victim():
            pid, role = victim
            _signal(pid, signal.SIGSTOP)
            # Some are never let go: it is for the daemon to notice, and for its successor.
            forever = role != "daemon" and self._chance.random() < 0.1
            if not forever:
                self._stopped[pid] = time.monotonic() + self._chance.uniform(0.2, 12)
            self.done[f"stops of a {role}"] += 1

    def _victim(self) -> tuple[int, str] | None:
        """A role first: daemons are few and zygotes are many."""
        by_role: dict[str, list[int]] = {}
        for pid, role in self.processes.all().items():
            by_role.setdefault(role, []).append(pid)
        by_role.pop("command", None)
        if not by_role:
            return None
        role = self._chance.choice(sorted(by_role))
        return self._chance.choice(by_role[role]), role

    def _let_go(self, now: float) -> None:
        for pid, until_ in list(self._stopped.items()):
            if until_ <= now:
                del self._stopped[pid]
                if pid in self.processes.all():  # its number may be another's by now
                    _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def converged(project: Project) -> None:
    """Wait until everything is fresh."""
    project.until_fresh("converged", seconds=600)


def left_files(project: Project) -> Iterator[Path]:
    """Files that should not outlive the process that was making them."""
    store, state = project.store_path / "v1", project.root / "state"
    for directory in (store / "tmp", state / "work", state / "daemons", store / "quarantine"):
        yield from directory.iterdir()
    for name in ("failures", "probes", "published", "proofs"):
        yield from (state / name).glob(".*")
    yield from (store / "locks").glob("*.holder*")
    caches = state / "caches"
    yield from caches.glob("*.damaged")
    for pattern in ("*/tmp/tmp*", "*/tmp/cc*", "*/inductor/**/.*.tmp"):
        yield from caches.glob(pattern)
