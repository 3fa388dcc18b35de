"""The daemon under a service manager: what it is told, reload, drain, the watchdog, a second daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import make_project, write_double
from test_daemon_service import LIMIT_SECONDS, Daemon, Listener, ref_of, signal_gate, wait_for_text

from preheatd import events
from preheatd.config import load_config
from preheatd.notify import Notifier
from preheatd.project import open_project
from preheatd.service import Service
from preheatd.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preheatd.project import Project


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


class Manager:
    """A service manager's socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(LIMIT_SECONDS)
        self.heard: list[str] = []

    def until(self, start: str) -> str:
        """Read until a notification that starts like this."""
        while True:
            text = self.socket.recv(65536).decode()
            self.heard.append(text)
            if text.startswith(start):
                return text


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    made: list[Daemon] = []
    yield made
    for daemon in made:
        daemon.end(signal.SIGKILL)


def preheat(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preheatd", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_a_life_under_a_service_manager(
    tmp_path: Path, manager: Manager, daemons: list[Daemon]
) -> None:
    file = make_project(tmp_path / "project", build="gate")
    daemon = Daemon(file, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")
    daemons.append(daemon)
    manager.until("READY=1")
    # The first plan was made before; what it says was told.
    assert "STATUS=1 missing" in manager.heard
    manager.until("STATUS=1 missing; building encoder")
    manager.until("WATCHDOG=1")
    manager.until("WATCHDOG=1")
    signal_gate(file)
    manager.until("STATUS=1 fresh")

    daemon.process.send_signal(signal.SIGHUP)
    assert "\nMONOTONIC_USEC=" in manager.until("RELOADING=1")
    manager.until("READY=1")

    assert daemon.end(signal.SIGTERM) == 0
    manager.until("STOPPING=1")


def test_reload_waits_for_the_daemon_and_running_builds_go_on(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    file = make_project(tmp_path / "project", ("encoder",), build={"encoder": "gate"})
    (file.parent / "app" / "decoder.py").write_text("def decoder():\n    return 1\n")
    daemon = Daemon(file)
    daemons.append(daemon)
    wait_for_text(file.parent / "running-encoder")
    text = file.read_text()
    file.write_text(text.replace("]", ', "app.decoder:decoder"]'))
    done = preheat("reload", "--config", str(file))
    assert done.returncode == 0, done.stderr
    assert str(daemon.process.pid) in done.stdout

    signal_gate(file)
    published = {daemon.next(events.BUILD_PUBLISHED)["target"] for _ in range(2)}
    assert published == {"encoder", "decoder"}
    # One build of each: that of the encoder was not begun again.
    log = (file.parent / "double.log").read_text().split("\n")
    assert log.count("build encoder") == log.count("build decoder") == 1


def test_reload_without_a_daemon_or_with_a_wrong_configuration(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    file = make_project(tmp_path / "project")
    assert preheat("warm", "--config", str(file)).returncode == 0
    alone = preheat("reload", "--config", str(file))
    assert (alone.returncode, "No daemon keeps" in alone.stderr) == (6, True)

    daemons.append(Daemon(file))
    daemons[0].next(events.READY)
    good = file.read_text()
    file.write_text("targets = 3")
    wrong = preheat("reload", "--config", str(file))
    assert (wrong.returncode, "`targets`" in wrong.stderr) == (2, True)
    daemons[0].next(events.CONFIG_REFUSED)
    file.write_text(good)
    daemons[0].next(events.CONFIG_RELOADED)
    assert preheat("reload", "--config", str(file)).returncode == 0


def test_a_stop_signal_lets_builds_end(tmp_path: Path, daemons: list[Daemon]) -> None:
    file = make_project(tmp_path / "project", build="gate")
    daemon = Daemon(file, options=("--drain", "60"))
    daemons.append(daemon)
    wait_for_text(file.parent / "running-encoder")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.next(events.STOPPING)
    signal_gate(file)
    daemon.next(events.BUILD_PUBLISHED)
    assert daemon.process.wait(LIMIT_SECONDS) == 0
    assert ref_of(file) is not None


def test_a_second_stop_signal_ends_them(tmp_path: Path, daemons: list[Daemon]) -> None:
    file = make_project(tmp_path / "project", build="hang")
    daemon = Daemon(file, options=("--drain", "600"))
    daemons.append(daemon)
    wait_for_text(file.parent / "running-encoder")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.next(events.STOPPING)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.next(events.BUILD_STOPPED)
    assert daemon.process.wait(LIMIT_SECONDS) == 0
    assert ref_of(file) is None


@pytest.mark.parametrize("first", ["refuse", "follow"])
def test_a_second_daemon_refuses_or_follows(
    tmp_path: Path, daemons: list[Daemon], first: str
) -> None:
    file = make_project(tmp_path / "project")
    daemons.append(Daemon(file, options=("--second", first)))
    daemons[0].next(events.READY)
    refused = preheat("serve", "--config", str(file), "--second", "refuse")
    assert refused.returncode == 75
    assert f"process {daemons[0].process.pid}" in refused.stderr
    daemons.append(Daemon(file, options=("--second", "follow")))
    daemons[1].next(events.READY)
    # Another configuration of the same store is another matter.
    other = make_project(tmp_path / "other")
    daemons.append(Daemon(other, options=("--second", "refuse")))
    daemons[2].next(events.READY)


def test_a_daemon_that_was_killed_is_no_first_one(tmp_path: Path, daemons: list[Daemon]) -> None:
    file = make_project(tmp_path / "project")
    for _ in range(2):
        daemon = Daemon(file, options=("--second", "refuse"))
        daemons.append(daemon)
        daemon.next(events.READY)
        daemon.end(signal.SIGKILL)


# --- the watchdog ------------------------------------------------------------------------------


class Counting(Notifier):
    """A notifier that counts how often the daemon said that it lives."""

    def __init__(self, seconds: float) -> None:
        super().__init__("/nobody", seconds)
        self.lives = 0

    def alive(self) -> None:
        self.lives += 1


def supervised(notifier: Notifier, is_well: Any, tmp_path: Path) -> Supervised:
    project = open_project(load_config(make_project(tmp_path / "project")), create=True)
    return Supervised(notifier, lambda event: None, is_well, project.state)


async def until(condition: Any) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110  what is waited for happens in a thread
            await asyncio.sleep(0.01)


async def test_the_watchdog_hears_nothing_of_a_store_that_hangs_or_fails(tmp_path: Path) -> None:
    notifier = Counting(0.2)
    now = ["well"]
    asked: list[str] = []

    def is_well() -> bool:
        asked.append(now[0])
        if now[0] == "hangs":
            time.sleep(0.5)
        if now[0] == "fails":
            raise OSError("the disk is away")
        return now[0] != "dead"

    task = asyncio.create_task(supervised(notifier, is_well, tmp_path).keep_watchdog())
    await until(lambda: notifier.lives >= 2)
    for trouble in ("hangs", "fails", "dead"):
        now[0] = trouble
        await until(lambda trouble=trouble: asked.count(trouble) >= 2)
        before = notifier.lives
        await until(lambda trouble=trouble: asked.count(trouble) >= 4)
        assert notifier.lives == before, trouble
        now[0] = "well"
        await until(lambda before=before: notifier.lives > before)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_daemon_is_well_while_its_watch_and_its_store_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project: Project = open_project(load_config(make_project(tmp_path / "project")), create=True)
    heard = Listener()
    service = Service(project, heard)
    task = asyncio.create_task(service.run())
    await heard.next(events.READY)
    assert await asyncio.to_thread(service._is_well)
    for observer in service._watcher._observers:
        observer.stop()
        await asyncio.to_thread(observer.join)
    assert not await asyncio.to_thread(service._is_well)
    # The next look at everything arms the watch again.
    service.reload()
    await heard.next(events.WATCH_ARMED)
    assert await asyncio.to_thread(service._is_well)
    project.store.layout.format_file.unlink()
    assert not await asyncio.to_thread(service._is_well)
    service.stop()
    await task


def test_children_hear_nothing_of_the_service_manager(
    tmp_path: Path, manager: Manager, daemons: list[Daemon]
) -> None:
    file = make_project(tmp_path / "project", build="hang")
    write_double(file.parent, build="hang")
    daemons.append(Daemon(file, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="60000000"))
    for pid in wait_for_text(file.parent / "running-encoder").split():
        with open(f"/proc/{pid}/environ", "rb") as environ:  # noqa: PTH123
            names = {entry.partition(b"=")[0] for entry in environ.read().split(b"\0")}
        assert b"PATH" in names
        assert not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID", b"LISTEN_FDS"}
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH115, PTH208
        assert not [link for link in links if link.startswith("socket:")]
    assert daemons[0].end(signal.SIGTERM) == 0
