"""What a daemon does not do while nothing happens, and that a checkout of any size leads to one plan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_daemon_double import make_project
from test_daemon_service import Daemon

from preheatd import events

if TYPE_CHECKING:
    from collections.abc import Iterator


# Long enough for a loop that polls once a second to be caught twice.
WHILE_SECONDS = 2.5
TRIES = 12


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    made: list[Daemon] = []
    yield made
    for daemon in made:
        daemon.end(signal.SIGKILL)


def kept_fresh(file: Path) -> Daemon:
    """A daemon that has nothing to do any more."""
    daemon = Daemon(file)
    while daemon.next(events.PLANNED)["detail"] != "1 fresh":
        pass
    time.sleep(WHILE_SECONDS)
    come(daemon)  # about the build
    return daemon


def come(daemon: Daemon) -> list[bytes]:
    """The events that have come meanwhile, each with its end."""
    assert daemon.process.stdout is not None
    os.set_blocking(daemon.process.stdout.fileno(), False)
    lines = (daemon.process.stdout.read() or b"").splitlines(keepends=True)
    os.set_blocking(daemon.process.stdout.fileno(), True)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += daemon.process.stdout.readline()
    return lines


def figure(daemon: Daemon, file: str, name: str) -> int:
    text = Path(f"/proc/{daemon.process.pid}/{file}").read_text()
    return int(text.partition(f"{name}:")[2].split()[0])


def test_an_idle_daemon_reads_nothing_and_has_no_torch(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    daemon = kept_fresh(make_project(tmp_path / "project"))
    daemons.append(daemon)

    def reads_nothing() -> bool:
        before = figure(daemon, "io", "syscr"), figure(daemon, "io", "rchar")
        time.sleep(WHILE_SECONDS)
        return (figure(daemon, "io", "syscr"), figure(daemon, "io", "rchar")) == before

    # What follows a build takes longer on a slow machine, and once a minute it looks at everything.
    assert any(reads_nothing() for _ in range(TRIES))
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert "python" in maps
    assert "torch" not in maps
    assert figure(daemon, "status", "VmRSS") <= 50 * 1024


def git(project: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*command, *words], cwd=project, check=True, capture_output=True)


def test_a_checkout_of_3000_files_leads_to_one_plan(tmp_path: Path, daemons: list[Daemon]) -> None:
    file = make_project(tmp_path / "project")
    git(file.parent, "init")
    for branch, text in (("main", "x = 1\n"), ("other", "x = 22\n")):
        for number in range(3000):
            (file.parent / "app" / f"m{number}.py").write_text(text)
        git(file.parent, "add", "app")
        if branch != "main":
            git(file.parent, "checkout", "-b", branch)
        git(file.parent, "commit", "-m", branch)
    daemon = kept_fresh(file)
    daemons.append(daemon)
    # On a machine that does something else for half a second in the middle, the rest is a second burst.
    for number in range(TRIES):
        git(file.parent, "checkout", ("main", "other")[number % 2])
        heard = [daemon.next(events.CHANGED)["action"], daemon.next(events.PLANNED)["action"]]
        time.sleep(WHILE_SECONDS)
        heard += [json.loads(line)["action"] for line in come(daemon)]
        assert len(heard) < 20, "not one for every few files"
        if heard == [events.CHANGED, events.PLANNED]:
            break
    else:
        pytest.fail(f"never one plan: {heard}")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.stdout is not None
    rest = [json.loads(line)["action"] for line in daemon.process.stdout]
    assert rest[-1] == events.STOPPING
