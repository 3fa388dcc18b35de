"""A daemon that is killed or cannot hear: what it had started ends, and what it did not hear counts.

With a double of the interpreter, so that a build takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from integration.test_daemon_double import environment, make_project, write_double
from preheat.manifest import environment_digest
from preheat.store import DiskStore
from preheatd.config import load_config
from preheatd.project import open_project
from support import figures
from support.project import until

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = environment_digest(environment())
NOT_PASSED_ON = ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY")
LIMIT_SECONDS = 300.0


class Daemon:
    """A daemon of a project of the double, and the events that it printed."""

    def __init__(self, file: Path, prefix: tuple[str, ...] = (), **variables: str) -> None:
        self.log = file.parent.parent / f"serve-{time.monotonic_ns()}.log"
        passed = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "preheatd", "serve", "--json"],
                cwd=file.parent,
                stdout=out,
                stderr=out,
                env={**passed, **variables},
            )

    def events(self, action: str) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]  # the last line may still be written
        lines = (line for line in whole.splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event["action"] == action]

    def wait(self, action: str, count: int = 1) -> None:
        def happened() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return len(self.events(action)) >= count

        until(happened, f"{action} in {self.log.read_text()[-2000:]}", LIMIT_SECONDS)


@contextlib.contextmanager
def serving(file: Path, prefix: tuple[str, ...] = (), **variables: str) -> Iterator[Daemon]:
    daemon = Daemon(file, prefix, **variables)
    try:
        yield daemon
    finally:
        daemon.process.send_signal(signal.SIGCONT)
        daemon.process.terminate()
        daemon.process.wait(LIMIT_SECONDS)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running(project: Path) -> list[int]:
    """A build of the double that hangs, and its child."""
    path = project / "running-encoder"
    until(lambda: path.exists() and len(path.read_text().split()) == 2, "running", LIMIT_SECONDS)
    return [int(word) for word in path.read_text().split()]


def mtime_of(path: Path) -> float:
    return path.stat().st_mtime


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("stage", ["build", "proof"])
def test_a_build_ends_with_its_daemon_and_its_children_with_the_next(
    tmp_path: Path, stage: str, stopped: bool
) -> None:
    file = make_project(tmp_path / "project", **{stage: "hang"})
    daemon = Daemon(file)
    try:
        process, child = running(file.parent)
        if stopped:
            os.kill(process, signal.SIGSTOP)
    finally:
        daemon.process.kill()
        daemon.process.wait()
    until(lambda: not is_running(process), "ended with the daemon", LIMIT_SECONDS)
    assert is_running(child)  # a program that knows nothing of preheat
    project = open_project(load_config(file), create=True)
    assert not is_running(child)
    assert list(project.state.work.iterdir()) == []
    assert list(project.state.daemons.iterdir()) == []


def test_a_daemon_that_is_started_again_during_a_build_builds_it_once_more(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", build="hang")
    first = Daemon(file)
    process, _ = running(file.parent)
    first.process.kill()
    first.process.wait()
    write_double(file.parent, build="ok")
    with serving(file) as second:
        second.wait("build_published")
    assert not is_running(process)
    assert DiskStore(tmp_path / "store").read_package("encoder", ENVIRONMENT) is not None


def test_events_that_the_kernel_dropped_are_not_missed(tmp_path: Path) -> None:
    """A stopped daemon hears nothing; the queue overflows, with the edit that matters at its end."""
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    count = max(6_000, queue // 3 + 1_000)  # created, written, closed
    if count > 60_000:
        pytest.skip(f"fs.inotify.max_queued_events is {queue}: too many files to fill it")
    file = make_project(tmp_path / "project", extra='watch = ["app"]\n')
    many = file.parent / "app" / "many"
    many.mkdir()
    with serving(file) as daemon:
        daemon.wait("build_published")
        daemon.process.send_signal(signal.SIGSTOP)
        for number in range(count):
            (many / f"f{number}.txt").write_text("x")
        (file.parent / "app" / "encoder.py").write_text("def encoder():\n    return 2\n")
        daemon.process.send_signal(signal.SIGCONT)
        daemon.wait("build_published", 2)
        assert daemon.events("watch_overflow")
    figures.note("inotify overflow", files=count, missed=0)


def test_a_clock_that_jumps_changes_nothing_about_what_is_fresh(tmp_path: Path) -> None:
    """Times of files do not decide, nor does the time of day: they may lie years away."""
    file = make_project(tmp_path / "project")
    source = file.parent / "app" / "encoder.py"
    with serving(file) as daemon:
        daemon.wait("build_published")
        for count, seconds in enumerate((0, 2**31 - 1, mtime_of(source)), start=2):
            source.write_text(f"def encoder():\n    return {count}\n")
            os.utime(source, (seconds, seconds))
            daemon.wait("build_published", count)
        ref = DiskStore(tmp_path / "store").read_ref("encoder", ENVIRONMENT)
        assert ref is not None
        assert ref.generation == 4
        os.utime(source, (1, 1))  # touched, not edited; the new file has it looked at
        planned = len(daemon.events("planned"))
        (source.parent / "other.py").touch()
        daemon.wait("planned", planned + 1)
        assert len(daemon.events("build_started")) == 4


def test_a_directory_for_temporary_files_that_is_wiped(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    wiped = tmp_path / "tmp"
    wiped.mkdir()
    with serving(file, TMPDIR=str(wiped)) as daemon:
        daemon.wait("build_published")
        wiped.rmdir()  # preheat put nothing there
        for path in (tmp_path / "store" / "state" / "caches").glob("*/tmp"):
            path.rmdir()
        (file.parent / "app" / "encoder.py").write_text("def encoder():\n    return 2\n")
        daemon.wait("build_published", 2)
