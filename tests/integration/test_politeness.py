"""Politeness of real processes: their priority, their limit of memory, and pauses of a daemon."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from test_daemon_builds import assert_ended, assert_nothing_left, build, failed, log, request, until
from test_daemon_builds import project_at as plain_project_at
from test_daemon_double import make_project, write_double
from test_daemon_service import serving, wait_for_text

from preheatd import events
from preheatd.politeness import priority
from preheatd.politeness.memory import memory_of, processes_of
from preheatd.politeness.processors import COMPILE_THREADS
from preheatd.politeness.settings import Politeness
from preheatd.stages import Stages

if TYPE_CHECKING:
    from preheatd.project import Project

NICE = 15


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(COMPILE_THREADS, raising=False)


def project_at(path: Path, politeness: str, **control: str) -> Project:
    return plain_project_at(path, extra=f"[politeness]\n{politeness}\n", **control)


@dataclasses.dataclass(frozen=True)
class Manners:
    """How a process gives way."""

    nice: int
    idle_io: bool
    oom_score: int


def manners(pid: int) -> Manners:
    process = psutil.Process(pid)
    return Manners(
        nice=process.nice(),
        idle_io=process.ionice().ioclass == psutil.IOPRIO_CLASS_IDLE,
        oom_score=int(Path(f"/proc/{pid}/oom_score_adj").read_text()),
    )


@pytest.mark.parametrize("stage", ["build", "proof"])
async def test_processes_give_way_with_all_that_they_start(tmp_path: Path, stage: str) -> None:
    before = manners(os.getpid())
    project = project_at(tmp_path, f"nice = {NICE}", **{stage: "hang"})
    task = asyncio.create_task(build(project))
    pids = await until(tmp_path / "project" / "running-encoder")
    found = {manners(int(pid)) for pid in pids.split()}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    score = max(before.oom_score, priority.OOM_SCORE_ADJUSTMENT)
    assert found == {Manners(nice=NICE, idle_io=True, oom_score=score)}
    assert manners(os.getpid()) == before  # the daemon itself does not change


async def test_what_is_not_wanted_is_not_done(tmp_path: Path) -> None:
    before = manners(os.getpid())
    project = project_at(tmp_path, "nice = 0\nidle_io = false", build="hang")
    task = asyncio.create_task(build(project))
    pids = await until(tmp_path / "project" / "running-encoder")
    found = manners(int(pids.split()[0]))
    task.cancel()
    await asyncio.wait([task])
    assert (found.nice, found.idle_io) == (before.nice, before.idle_io)


async def test_what_is_not_possible_fails_no_build_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    def denied(self: psutil.Process, *arguments: object) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(os, "setpriority", forbidden)
    monkeypatch.setattr(psutil.Process, "ionice", denied)
    project = project_at(tmp_path, f"nice = {NICE}")
    heard: list[events.Event] = []
    assert (await build(project, heard)).result == "built"
    told = [event.detail for event in heard if event.action == events.POLITENESS_LIMITED]
    assert len(told) == 2  # of build and proof together
    assert any("`nice`" in detail for detail in told)
    assert any("`idle_io`" in detail for detail in told)


def test_a_process_that_has_ended_is_no_trouble() -> None:
    process = psutil.Popen(["true"])
    process.wait()
    assert priority.give_way(process.pid, Politeness()) == ()


@pytest.mark.parametrize("stage", ["build", "proof"])
async def test_too_much_memory_ends_the_build_and_all_that_it_started(
    tmp_path: Path, stage: str
) -> None:
    project = project_at(tmp_path, 'memory_limit = "200MiB"', **{stage: "allocate"})
    failure = failed(await build(project))

    assert failure.kind == "memory_limit"
    assert f"The {stage} used" in failure.message
    assert "200 MiB are allowed" in failure.message
    assert "`memory_limit`" in failure.remedy
    assert not failure.refused  # tried again, later and later
    assert "memory were in use" in log(project)
    # Its caches are not suspected, which would mean the same once more.
    stages = (tmp_path / "project" / "double.log").read_text().split("\n")
    assert stages.count(f"{stage} encoder") == 1
    assert_ended((tmp_path / "project" / "running-encoder").read_text())
    assert_nothing_left(project)


async def test_a_limit_that_is_kept_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preheatd.politeness.memory.LOOK_SECONDS", 0.0)
    assert (await build(project_at(tmp_path, 'memory_limit = "2GiB"'))).result == "built"


@pytest.mark.parametrize(("action", "kind"), [("segv", "build_crashed"), ("silent", "no_result")])
async def test_other_ends_are_what_they_are_without_a_limit(
    tmp_path: Path, action: str, kind: str
) -> None:
    project = project_at(tmp_path, 'memory_limit = "2GiB"', build=action)
    assert failed(await build(project)).kind == kind


async def test_an_interpreter_that_went_away_under_a_limit(tmp_path: Path) -> None:
    project = project_at(tmp_path, 'memory_limit = "2GiB"')
    (tmp_path / "project" / "python").unlink()
    outcome = await project.build(request(project), lambda event: None)
    assert failed(outcome).kind == "interpreter_failed"


async def test_cancelling_under_a_limit_ends_every_process(tmp_path: Path) -> None:
    project = project_at(tmp_path, 'memory_limit = "2GiB"', build="hang")
    task = asyncio.create_task(build(project))
    pids = await until(tmp_path / "project" / "running-encoder")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_ended(pids)


FORKS = """
import os, pathlib, signal
shared = b"x" * 2**26
for _ in range(3):
    if not os.fork():
        signal.pause()
pathlib.Path("ready").write_text("yes")
signal.pause()
"""


async def test_memory_that_is_shared_counts_once(tmp_path: Path) -> None:
    """After forks: the sum of what each process has resident is far more than there is."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKS, cwd=tmp_path, start_new_session=True
    )
    members: tuple[psutil.Process, ...] = ()
    try:
        await asyncio.to_thread(wait_for_text, tmp_path / "ready")
        members = tuple(processes_of(process.pid))
        assert len(members) == 4
        resident = memory_of(members, 2**60)
        assert resident > 4 * 2**26
        assert 2**26 < memory_of(members, 1) < resident / 2
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_build_processes_get_their_share_of_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, dict[str, str]] = {}
    run = Stages.run

    async def spy(
        self: Stages, stage: str, arguments: object, variables: dict[str, str], *how: object
    ) -> None:
        seen[stage] = dict(variables)
        await run(self, stage, arguments, variables, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(Stages, "run", spy)
    await build(project_at(tmp_path / "first", "compile_threads = 3"))
    assert seen["build"][COMPILE_THREADS] == "3"
    assert COMPILE_THREADS not in seen["proof"]
    await build(project_at(tmp_path / "second", ""))
    assert 1 <= int(seen["build"][COMPILE_THREADS]) <= len(os.sched_getaffinity(0))
    monkeypatch.setenv(COMPILE_THREADS, "7")
    await build(project_at(tmp_path / "third", "compile_threads = 3"))
    assert seen["build"][COMPILE_THREADS] == "7"


async def test_a_daemon_on_battery_pauses_until_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery = SimpleNamespace(percent=40.0, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)
    file = make_project(tmp_path / "project", extra="[politeness]\npause_on_battery = true\n")
    async with serving(file) as heard:
        paused = await heard.next(events.PAUSED)
        assert [reason.kind for reason in paused.reasons] == ["on_battery"]
        assert "40% left" in str(paused)
        assert heard.count(events.BUILD_STARTED) == 0
        file.write_text(file.read_text().replace("true", "false"))
        await heard.next(events.RESUMED)
        await heard.next(events.BUILD_PUBLISHED)


async def test_commands_after_a_build_keep_the_priority_of_the_daemon(tmp_path: Path) -> None:
    script = "import os, pathlib; pathlib.Path('nice').write_text(f'{os.nice(0)} ')"
    command = f"on_fresh = ['{sys.executable}', '-c', \"{script}\"]\n"
    file = make_project(tmp_path / "project", extra=f"{command}[politeness]\nnice = {NICE}\n")
    async with serving(file):
        nice = await asyncio.to_thread(wait_for_text, file.parent / "nice")
    assert int(nice) == os.nice(0)


async def test_the_charger_ends_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preheatd.politeness.machine_pauses.LOOK_SECONDS", 0.05)
    battery = SimpleNamespace(percent=40.0, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)
    file = make_project(tmp_path / "project", extra="[politeness]\npause_on_battery = true\n")
    async with serving(file) as heard:
        await heard.next(events.PAUSED)
        battery.power_plugged = True
        await heard.next(events.RESUMED)
        await heard.next(events.BUILD_PUBLISHED)


async def test_a_higher_limit_is_tried_at_once(tmp_path: Path) -> None:
    file = make_project(
        tmp_path / "project", extra='[politeness]\nmemory_limit = "1MiB"\n', build="gate"
    )
    async with serving(file) as heard:
        failed_build = await heard.next(events.BUILD_FAILED)
        assert "1.0 MiB are allowed" in failed_build.detail
        write_double(file.parent)
        file.write_text(file.read_text().replace("1MiB", "2GiB"))
        await heard.next(events.CONFIG_RELOADED)
        await heard.next(events.BUILD_PUBLISHED)


OWN_SESSION = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path("child").write_text(str(child.pid))
time.sleep(600)
"""


async def test_processes_in_groups_of_their_own_belong_to_the_build(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWN_SESSION, cwd=tmp_path, start_new_session=True
    )
    try:
        child = int(await asyncio.to_thread(wait_for_text, tmp_path / "child"))
        assert {one.pid for one in processes_of(process.pid)} == {process.pid, child}
        os.kill(child, signal.SIGKILL)
    finally:
        process.kill()
        await process.wait()
