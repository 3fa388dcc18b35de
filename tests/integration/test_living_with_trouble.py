"""What goes wrong around a running daemon: it says so, shows it in ``status``, goes on, and recovers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import environment, make_project, write_double
from test_daemon_service import ENVIRONMENT, LIMIT_SECONDS, Daemon, edit, ref_of, serving

from preheat.manifest import environment_digest
from preheat.store import DiskStore
from preheatd import events, service, troubles
from preheatd.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def daemon_of(file: Path, **variables: str) -> Iterator[Daemon]:
    daemon = Daemon(file, **variables)
    try:
        yield daemon
        assert daemon.process.poll() is None, "the daemon has ended"
    finally:
        daemon.end(signal.SIGTERM)


def preheat(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preheatd", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, **variables},
        check=False,
    )


def status_of(file: Path, **variables: str) -> Any:
    return json.loads(preheat("status", "--json", "--config", str(file), **variables).stdout)


def kinds_of(file: Path, **variables: str) -> list[str]:
    (daemon,) = status_of(file, **variables)["daemons"]
    return [one["kind"] for one in daemon["troubles"]]


def until_troubled(file: Path, kinds: list[str], **variables: str) -> None:
    """Wait for the record, which is written beside everything else."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (found := kinds_of(file, **variables)) != kinds:
        assert time.monotonic() < deadline, found


def test_a_broken_configuration_is_shown_and_the_one_from_before_stays(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    good = file.read_text()
    with daemon_of(file) as daemon:
        daemon.next(events.BUILD_PUBLISHED)
        for value, more in ((2, "watsch = []"), (3, "targets = [")):
            file.write_text(f"{good}{more}\n")
            daemon.next(events.CONFIG_REFUSED)
            edit(file, "encoder", value)
            daemon.next(events.BUILD_PUBLISHED)
            shown = preheat("status", "--config", str(file))
            assert shown.returncode == 2
            assert f"process {daemon.process.pid}" in shown.stdout
            assert "TROUBLE: configuration refused since" in shown.stdout
            assert "stays in force" in shown.stdout
            assert str(file) in shown.stderr
        file.write_text(good)
        daemon.next(events.CONFIG_RELOADED)
        assert kinds_of(file) == []


def test_a_configuration_whose_fault_was_elsewhere_is_read_again_when_asked(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    with daemon_of(file) as daemon:
        daemon.next(events.BUILD_PUBLISHED)
        file.write_text(file.read_text() + 'cwd = "later"\n')
        daemon.next(events.CONFIG_REFUSED)
        (file.parent / "later").mkdir()
        assert preheat("reload", "--config", str(file)).returncode == 0
        daemon.next(events.CONFIG_RELOADED)


def test_a_project_that_is_deleted_and_created_again(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    aside = shutil.copytree(file.parent, tmp_path / "aside")
    with daemon_of(file) as daemon:
        daemon.next(events.BUILD_PUBLISHED)
        shutil.rmtree(file.parent)
        gone = daemon.next(events.WATCH_GONE)
        assert str(file.parent) in gone["detail"]
        shutil.copytree(aside, file.parent)
        daemon.next(events.WATCH_BACK)
        for value in (5, 6):
            edit(file, "encoder", value)
            daemon.next(events.BUILD_PUBLISHED)
        until_troubled(file, [])


def test_a_directory_of_sources_that_is_deleted_is_shown(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", ("encoder",))
    with daemon_of(file) as daemon:
        daemon.next(events.BUILD_PUBLISHED)
        shutil.rmtree(file.parent / "app")
        daemon.next(events.WATCH_GONE)
        until_troubled(file, [troubles.WATCH_GONE])
        (file.parent / "app").mkdir()
        (file.parent / "app" / "__init__.py").write_text("")
        edit(file, "encoder", 7)
        daemon.next(events.WATCH_BACK)
        daemon.next(events.BUILD_PUBLISHED)
        edit(file, "encoder", 8)
        daemon.next(events.BUILD_PUBLISHED)
        until_troubled(file, [])


async def test_a_limit_of_the_kernel_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preheatd.observers.POLL_SECONDS", 0.05)

    def no_watches(on_limit: object) -> object:
        raise OSError(errno.ENOSPC, "inotify watch limit reached")

    def watcher(emit: events.Emit, ignored: tuple[str, ...]) -> Watcher:
        return Watcher(emit, ignored=ignored, native=no_watches)  # type: ignore[arg-type]

    file = make_project(tmp_path / "project")
    async with serving(file, watcher=watcher) as heard:
        await heard.next(events.WATCH_POLLING)
        await heard.next(events.BUILD_PUBLISHED)
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED)
        (found,) = status_of(file)["daemons"][0]["troubles"]
        assert found["kind"] == troubles.WATCH_POLLING
        assert "max_user_watches" in found["detail"]


async def test_a_hook_that_fails_is_shown_until_the_next_build(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", extra='on_fresh = ["./not-there"]\n')
    async with serving(file) as heard:
        await heard.next(events.HOOK_FAILED)
        until_troubled(file, [troubles.HOOK_FAILED])
        (found,) = status_of(file)["daemons"][0]["troubles"]
        assert (found["kind"], found["target"]) == (troubles.HOOK_FAILED, "encoder")
        hook = file.parent / "not-there"
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED)
        await heard.next(events.PLANNED)
        until_troubled(file, [])


def two_interpreters(path: Path) -> Path:
    file = make_project(path / "project", ("encoder", "decoder"))
    shutil.copy(file.parent / "python", path / "other-python")
    file.write_text(
        file.read_text().replace(', "app.decoder:decoder"', "")
        + '[[target]]\nfactory = "app.decoder:decoder"\npython = "../other-python"\n'
    )
    return file


def test_an_interpreter_that_is_removed_and_comes_back(tmp_path: Path) -> None:
    """It is not watched: the look at everything finds it."""
    file = two_interpreters(tmp_path)
    with daemon_of(file) as daemon:
        for _ in range(2):
            daemon.next(events.BUILD_PUBLISHED)
        aside = (tmp_path / "other-python").rename(tmp_path / "aside")
        edit(file, "encoder", 2)
        blocked = daemon.next(events.TARGET_BLOCKED)
        assert blocked["target"] == "decoder"
        assert "cannot be started" in blocked["reasons"][0]["detail"]
        assert daemon.next(events.BUILD_PUBLISHED)["target"] == "encoder"
        answers = {one["target"]: one for one in status_of(file)["targets"]}
        assert answers["encoder"]["verdict"] == "FRESH"
        assert answers["decoder"]["verdict"] == "FAILED"
        assert "other-python cannot be started" in answers["decoder"]["failure"]["message"]
        aside.rename(tmp_path / "other-python")
        edit(file, "decoder", 3)
        assert daemon.next(events.BUILD_PUBLISHED)["target"] == "decoder"


def test_an_interpreter_that_is_upgraded_is_asked_again(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    with daemon_of(file) as daemon:
        daemon.next(events.BUILD_PUBLISHED)
        write_double(file.parent, environment="two")
        python = file.parent / "python"
        (file.parent / "new").write_text(python.read_text() + "# another one\n")
        (file.parent / "new").chmod(0o755)
        (file.parent / "new").replace(python)
        published = daemon.next(events.BUILD_PUBLISHED)
        assert published["environment"] == environment_digest(environment("two")) != ENVIRONMENT


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of half a mebibyte, which root can mount."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=755", "none", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: that needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def until_planned(daemon: Daemon, detail: str, *, without: str) -> None:
    """Read until the plan that says this; nothing else may have come before it."""
    assert daemon.process.stdout is not None
    for line in daemon.process.stdout:
        event = json.loads(line)
        assert event["action"] != without, event
        if event["action"] == events.PLANNED and event["detail"] == detail:
            return
    raise EOFError(detail)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_state_directory(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    with small_disk(tmp_path / "disk") as disk:
        state = {"PREHEAT_STATE": str(disk / "state")}
        with daemon_of(file, **state) as daemon:
            daemon.next(events.BUILD_PUBLISHED)
            filler = fill(disk)
            edit(file, "encoder", 2)
            assert "No space left" in daemon.next(events.STATE_UNWRITABLE)["detail"]
            failed = daemon.next(events.BUILD_FAILED)
            assert failed["kind"] == "state_unusable"
            # What could not be written is remembered: it is not tried again at once.
            # A plan may have been under way when it failed; the one that knows of it follows.
            until_planned(daemon, "1 failed", without=events.BUILD_STARTED)
            assert ref_of(file) is not None
            until_troubled(file, [troubles.STATE_UNWRITABLE], **state)
            # Over the socket it needs no room; the daemon still answers.
            reloaded = preheat("reload", "--config", str(file), "--timeout", "60", **state)
            assert reloaded.returncode == 0, reloaded.stderr
            filler.unlink()
            edit(file, "encoder", 3)
            daemon.next(events.BUILD_PUBLISHED)
            until_troubled(file, [], **state)
            assert os.listdir(disk / "state" / "work") == []  # noqa: PTH208


def test_a_full_store_is_read_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        file = make_project(disk / "project", extra="")
        state = {"PREHEAT_STATE": str(tmp_path / "state")}
        with daemon_of(file, **state) as daemon:
            daemon.next(events.BUILD_PUBLISHED)
            before = ref_of(file)
            edit(file, "encoder", 2)
            daemon.next(events.CHANGED)
            daemon.next(events.BUILD_PUBLISHED)
            middle = ref_of(file)
            write_double(file.parent)
            (file.parent / "app" / "encoder.new").write_text("def encoder():\n    return 3\n")
            filler = fill(disk)
            (file.parent / "app" / "encoder.new").replace(file.parent / "app" / "encoder.py")
            failed = daemon.next(events.BUILD_FAILED)
            assert "No space left" in failed["detail"]
            (answer,) = status_of(file, **state)["targets"]
            assert answer["verdict"] == "FAILED"
            assert "Free some space" in answer["failure"]["remedy"]
            # A worker reads what is there, whole.
            store = DiskStore(disk / "store")
            found = store.read_package("encoder", ENVIRONMENT)
            assert found is not None
            assert before != found[0] == middle
            for needed in found[1].objects():
                store.open_object(needed).close()
            filler.unlink()
            edit(file, "encoder", 4)
            daemon.next(events.BUILD_PUBLISHED)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
async def test_a_clock_that_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """A failure that waits for its next try is not put off by a clock that was set, nor is an edit."""
    monkeypatch.setattr("preheatd.schedule.BACKOFF_FIRST_SECONDS", 3600.0)
    monkeypatch.setattr("preheatd.schedule.BACKOFF_LONGEST_SECONDS", 3600.0)
    file = make_project(tmp_path / "project", ("encoder", "decoder"), build={"encoder": "fail"})
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(service.time, "time", lambda: real() + ahead[0])
    async with serving(file, rescan_seconds=0.1) as heard:
        await heard.next(events.BUILD_FAILED, "encoder")
        await heard.next(events.BUILD_PUBLISHED, "decoder")
        ahead[0] = jump
        jumped = await heard.next(events.CLOCK_JUMPED)
        assert f"{'forward' if jump > 0 else 'back'} by 86400 s" in jumped.detail
        # Tried once more because of the jump, and then not for an hour again.
        await heard.next(events.BUILD_FAILED, "encoder")
        for _ in range(5):
            await heard.next(events.PLANNED)
        assert heard.count(events.BUILD_FAILED) == 2
        until_troubled(file, [troubles.CLOCK_JUMPED])
        edit(file, "decoder", 2)
        await heard.next(events.BUILD_PUBLISHED, "decoder")
        write_double(file.parent)
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED, "encoder")


async def test_a_slow_survey_does_not_repeat_a_build_that_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before the failure says that there is something to build; it is not built again."""
    monkeypatch.setattr("preheatd.schedule.BACKOFF_FIRST_SECONDS", 3600.0)
    survey = service.Service._survey

    async def slowly(self: service.Service) -> Any:
        read = await survey(self)
        await asyncio.sleep(0.5)
        return read

    monkeypatch.setattr(service.Service, "_survey", slowly)
    file = make_project(tmp_path / "project", build={"encoder": "fail"})
    async with serving(file, rescan_seconds=0.05) as heard:
        await heard.next(events.BUILD_FAILED)
        for _ in range(4):
            await heard.next(events.PLANNED)
        assert heard.count(events.BUILD_STARTED) == 1
