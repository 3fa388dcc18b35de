"""The daemon as a whole: edits to fresh packages, trouble, stopping, dying and coming back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

import pytest
from test_daemon_builds import assert_ended
from test_daemon_double import environment, make_project, write_double

from preheat.errors import StoreError
from preheat.manifest import environment_digest
from preheat.store import DiskStore
from preheatd import cli, events, owned
from preheatd.config import load_config
from preheatd.inventory import Inventory
from preheatd.project import open_project
from preheatd.service import Service
from preheatd.state import State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from preheat.manifest import Ref

LIMIT_SECONDS = 300.0
ENVIRONMENT = environment_digest(environment())


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


class Listener:
    """Collects events and waits for them."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._arrived = asyncio.Event()
        self._seen = 0

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)
        self._arrived.set()

    async def next(self, action: str, target: str | None = None) -> events.Event:
        """The next event like this after the last one that was waited for."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                while self._seen < len(self.events):
                    event = self.events[self._seen]
                    self._seen += 1
                    if event.action == action and target in (None, event.target):
                        return event
                self._arrived.clear()
                await self._arrived.wait()

    def count(self, action: str) -> int:
        return len([event for event in self.events if event.action == action])


@contextlib.asynccontextmanager
async def serving(file: Path, **options: Any) -> AsyncIterator[Listener]:
    listener = Listener()
    service = Service(open_project(load_config(file), create=True), listener, **options)
    task = asyncio.create_task(service.run())
    try:
        yield listener
    finally:
        service.stop()
        async with asyncio.timeout(LIMIT_SECONDS):
            await task


def edit(file: Path, name: str, value: int) -> None:
    """As an editor does it: a new file over the old one."""
    path = file.parent / "app" / f"{name}.py"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(f"def {name}():\n    return {value}\n")
    temporary.replace(path)


def ref_of(file: Path, target: str = "encoder") -> Ref | None:
    return DiskStore(file.parents[1] / "store").read_ref(target, ENVIRONMENT)


def signal_gate(file: Path) -> None:
    (file.parent / "gate").write_text("")


@pytest.mark.parametrize("in_use", [False, True])
async def test_what_killed_processes_left_is_gone_when_it_stops(
    tmp_path: Path, in_use: bool
) -> None:
    """A zygote's child that was killed leaves a temporary directory; its daemon may be the last one."""
    file = make_project(tmp_path / "project")
    state = State(tmp_path / "store" / "state")
    command = owned.Owner(pid=os.getpid(), purpose="build", started_at="")
    with contextlib.ExitStack() as others:
        async with serving(file) as heard:
            await heard.next(events.BUILD_PUBLISHED)
            left = state.path / "caches" / ENVIRONMENT / "tmp" / "tmpksnr89cl"
            left.mkdir(parents=True)
            (left / "header.h").write_text("")
            if in_use:
                others.enter_context(owned.OwnedDirectory(state.work, command))
        assert left.exists() == in_use


async def test_an_edit_is_built_and_published(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", ("encoder", "decoder"))
    async with serving(file) as heard:
        await heard.next(events.READY)
        await heard.next(events.BUILD_PUBLISHED, "encoder")
        await heard.next(events.BUILD_PUBLISHED, "decoder")
        first, other = ref_of(file), ref_of(file, "decoder")

        edit(file, "encoder", 2)
        published = await heard.next(events.BUILD_PUBLISHED, "encoder")
        assert published.processes.keys() == {"build", "proof"}
        assert published.seconds is not None
        assert 0 < sum(published.processes.values()) <= published.seconds
        second = ref_of(file)
        assert first is not None
        assert second is not None
        assert second.generation == first.generation + 1
        assert ref_of(file, "decoder") == other


def builds(file: Path) -> int:
    return (file.parent / "double.log").read_text().split("\n").count("build encoder")


async def test_an_edit_that_is_undone_leads_back_without_a_build(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        first = ref_of(file)
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED)
        second = ref_of(file)
        for value, wanted in ((1, first), (2, second), (1, first)):
            edit(file, "encoder", value)
            published = await heard.next(events.BUILD_PUBLISHED)
            assert published.detail == "the package from before the edit"
            found = ref_of(file)
            assert found is not None
            assert wanted is not None
            assert found.manifest == wanted.manifest
        assert builds(file) == 2


@pytest.mark.parametrize("what", ["object", "flipped", "manifest", "record"])
async def test_an_earlier_package_that_is_not_whole_is_built_anew(
    tmp_path: Path, what: str
) -> None:
    file = make_project(tmp_path / "project")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        store = DiskStore(tmp_path / "store")
        found = store.read_package("encoder", ENVIRONMENT)
        assert found is not None
        ref, manifest = found
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED)
        record = tmp_path / "store" / "state" / "published" / f"encoder@{ENVIRONMENT}.json"
        if what == "object":
            store.layout.object(manifest.code_objects()[0].sha256).unlink()
        elif what == "flipped":
            path = store.layout.object(manifest.code_objects()[0].sha256)
            path.chmod(0o600)
            path.write_bytes(path.read_bytes().swapcase())
        elif what == "manifest":
            path = store.layout.object(ref.manifest)
            path.chmod(0o600)
            path.write_bytes(b"{}")
        else:
            record.write_text('{"manifests": ["' + "0" * 64 + '", "../../x", 3]')
        edit(file, "encoder", 1)
        assert (await heard.next(events.BUILD_PUBLISHED)).detail == ""
        assert builds(file) == 3


async def test_another_factory_is_another_program(tmp_path: Path) -> None:
    """The same name, and sources that fit: an earlier package of another factory is none."""
    file = make_project(tmp_path / "project")
    module = file.parent / "app" / "encoder.py"
    module.write_text(module.read_text() + "\n\ndef other():\n    return 1\n")
    text = file.read_text()
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        other = '{factory = "app.encoder:other", name = "encoder"}'
        file.write_text(text.replace('"app.encoder:encoder"', other))
        published = await heard.next(events.BUILD_PUBLISHED)
        assert published.detail == ""
        file.write_text(text)
        published = await heard.next(events.BUILD_PUBLISHED)
        assert published.detail == "the package from before the edit"
        assert builds(file) == 2


async def test_ready_comes_before_the_builds_are_done(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", build="gate")
    async with serving(file) as heard:
        ready = await heard.next(events.READY)
        assert "1 target" in ready.detail
        assert heard.count(events.BUILD_PUBLISHED) == 0
        signal_gate(file)
        await heard.next(events.BUILD_PUBLISHED)


async def test_a_build_whose_sources_change_is_ended_and_built_anew(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", build="hang")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PHASE)
        pids = await asyncio.to_thread(wait_for_text, file.parent / "running-encoder")

        write_double(file.parent)
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_SUPERSEDED, "encoder")
        await heard.next(events.BUILD_PUBLISHED, "encoder")

        assert_ended(pids)
        assert heard.count(events.BUILD_FAILED) == 0


def wait_for_text(path: Path) -> str:
    event = threading.Event()
    for _ in range(30_000):
        if path.exists() and (text := path.read_text()):
            return text
        event.wait(0.01)
    raise TimeoutError(path)


async def test_a_failure_is_tried_again_after_an_edit(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", ("encoder", "decoder"), build={"encoder": "fail"})
    async with serving(file) as heard:
        failed = await heard.next(events.BUILD_FAILED, "encoder")
        assert "ZeroDivisionError" in failed.detail
        await heard.next(events.BUILD_PUBLISHED, "decoder")

        write_double(file.parent)
        edit(file, "encoder", 2)
        await heard.next(events.BUILD_PUBLISHED, "encoder")


async def test_a_failure_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preheatd.schedule.BACKOFF_FIRST_SECONDS", 0.05)
    file = make_project(tmp_path / "project", build="fail")
    async with serving(file) as heard:
        await heard.next(events.BUILD_FAILED)
        await heard.next(events.BUILD_FAILED)
        write_double(file.parent)
        await heard.next(events.BUILD_PUBLISHED)


async def test_a_lost_package_is_found_by_the_rescan(tmp_path: Path) -> None:
    """Nothing tells of it: the store is not watched."""
    file = make_project(tmp_path / "project")
    async with serving(file, rescan_seconds=0.1) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        ref = DiskStore(tmp_path / "store").layout.ref("encoder", ENVIRONMENT)
        ref.unlink()
        await heard.next(events.BUILD_PUBLISHED)


async def test_sources_in_a_new_directory(tmp_path: Path) -> None:
    """A package directory that is removed and comes back, as in a checkout of another branch."""
    file = make_project(tmp_path / "project")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        app, aside = file.parent / "app", file.parent / "aside"
        app.rename(aside)
        write_double(file.parent, build="fail")
        await heard.next(events.BUILD_FAILED)
        write_double(file.parent)
        aside.rename(app)
        await heard.next(events.WATCH_ARMED)
        edit(file, "encoder", 5)
        await heard.next(events.BUILD_PUBLISHED)


async def test_a_new_configuration(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED, "encoder")

        good = file.read_text()
        file.write_text("targets = 3")
        refused = await heard.next(events.CONFIG_REFUSED)
        assert "`targets`" in refused.detail

        (file.parent / "app" / "decoder.py").write_text("def decoder():\n    return 1\n")
        file.write_text(good.replace("]", ', "app.decoder:decoder"]'))
        await heard.next(events.CONFIG_RELOADED)
        await heard.next(events.BUILD_PUBLISHED, "decoder")


async def test_a_removed_target_is_not_built_on(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", ("encoder", "decoder"), build={"encoder": "hang"})
    async with serving(file) as heard:
        await heard.next(events.BUILD_PHASE, "encoder")
        file.write_text(file.read_text().replace('"app.encoder:encoder", ', ""))
        await heard.next(events.BUILD_PUBLISHED, "decoder")


async def test_a_broken_interpreter_does_not_stop_the_daemon(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", probe="broken")
    async with serving(file) as heard:
        blocked = await heard.next(events.TARGET_BLOCKED, "encoder")
        assert "No module named 'torch'" in str(blocked)
        await heard.next(events.READY)
        write_double(file.parent)
        # The interpreter is another one as soon as anything about it changed.
        python = file.parent / "python"
        python.write_text(python.read_text() + "#\n")
        await heard.next(events.BUILD_PUBLISHED)


async def test_stopping_ends_what_runs(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", build="stubborn")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PHASE)
        pids = await asyncio.to_thread(wait_for_text, file.parent / "running-encoder")
    assert_ended(pids)
    assert events.BUILD_STOPPED in [event.action for event in heard.events]
    assert list((tmp_path / "store" / "state" / "work").iterdir()) == []


async def test_trouble_at_the_start_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trouble(*arguments: object) -> None:
        raise StoreError("The disk is away.")

    monkeypatch.setattr(Inventory, "look", trouble)
    project = open_project(load_config(make_project(tmp_path / "project")), create=True)
    with pytest.raises(StoreError, match="disk"):
        await Service(project, Listener()).run()


async def test_a_store_that_is_not_to_be_trusted_any_more(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project")
    async with serving(file) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        (tmp_path / "store").chmod(0o777)
        edit(file, "encoder", 3)
        blocked = await heard.next(events.TARGET_BLOCKED, "encoder")
        assert "writable by everybody" in str(blocked)
        (tmp_path / "store").chmod(0o755)
        edit(file, "encoder", 4)
        await heard.next(events.BUILD_PUBLISHED)


async def test_trouble_later_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preheatd.service.TROUBLE_RETRY_SECONDS", 0.05)
    file = make_project(tmp_path / "project")
    async with serving(file, rescan_seconds=0.1) as heard:
        await heard.next(events.BUILD_PUBLISHED)
        trouble = [True]

        def disk_trouble(*arguments: object) -> object:
            if trouble:
                raise OSError("the disk is away")
            return survey(*arguments)

        survey: Callable[..., object] = Inventory.look
        monkeypatch.setattr(Inventory, "look", disk_trouble)
        assert "disk" in (await heard.next(events.UNEXPECTED)).detail
        trouble.clear()
        edit(file, "encoder", 7)
        await heard.next(events.BUILD_PUBLISHED)


class Daemon:
    """``preheat serve --json`` as a process."""

    def __init__(self, file: Path, options: tuple[str, ...] = (), **variables: str) -> None:
        command = [sys.executable, "-m", "preheatd.cli", "serve", "--json", "--config", str(file)]
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )

    @classmethod
    def of(cls, process: subprocess.Popen[bytes]) -> Daemon:
        """One that was started in another way."""
        made = cls.__new__(cls)
        made.process = process
        return made

    def next(self, action: str) -> dict[str, Any]:
        """Read until an event like this."""
        assert self.process.stdout is not None
        return _next(self.process.stdout, action)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(LIMIT_SECONDS)
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()


def _next(stream: IO[bytes], action: str) -> dict[str, Any]:
    for line in stream:
        event: dict[str, Any] = json.loads(line)
        if event["action"] == action:
            return event
    raise EOFError(action)


@pytest.fixture
def started() -> Iterator[list[Daemon]]:
    daemons: list[Daemon] = []
    yield daemons
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signals_end_the_process_well(
    tmp_path: Path, started: list[Daemon], number: signal.Signals
) -> None:
    file = make_project(tmp_path / "project", build="hang")
    started.append(Daemon(file))
    started[0].next("build_phase")
    pids = wait_for_text(file.parent / "running-encoder")
    assert started[0].end(number) == 0
    assert_ended(pids)


def test_a_daemon_that_was_killed_leaves_nothing_for_long(
    tmp_path: Path, started: list[Daemon]
) -> None:
    file = make_project(tmp_path / "project", build="hang")
    started.append(Daemon(file))
    started[0].next("build_phase")
    pids = wait_for_text(file.parent / "running-encoder")
    assert started[0].end(signal.SIGKILL) == -signal.SIGKILL

    write_double(file.parent)
    started.append(Daemon(file))
    started[1].next("build_published")

    assert_ended(pids)
    work = tmp_path / "store" / "state" / "work"
    assert started[1].end(signal.SIGTERM) == 0
    assert list(work.iterdir()) == []
    assert ref_of(file) is not None


@pytest.mark.parametrize("own_state", [False, True])
def test_two_daemons_on_one_store(tmp_path: Path, started: list[Daemon], own_state: bool) -> None:
    """One builds, the other one waits, and both end up with the same package."""
    file = make_project(tmp_path / "project", build="gate")
    started.append(Daemon(file))
    started[0].next("build_started")
    wait_for_text(file.parent / "running-encoder")
    second = {"PREHEAT_STATE": str(tmp_path / "second")} if own_state else {}
    started.append(Daemon(file, **second))
    started[1].next("build_held" if own_state else "ready")

    signal_gate(file)
    started[0].next("build_published")
    (file.parent / "app" / "encoder.py").write_text("def encoder():\n    return 9\n")
    winners = [daemon.end(signal.SIGTERM) for daemon in _both_quiet(started, file)]

    assert winners == [0, 0]
    builds = (file.parent / "double.log").read_text().split("\n").count("build encoder")
    assert builds == 2
    ref = ref_of(file)
    assert ref is not None
    assert ref.generation == 2


def _both_quiet(daemons: list[Daemon], file: Path) -> list[Daemon]:
    event = threading.Event()
    for _ in range(30_000):
        ref = ref_of(file)
        if ref is not None and ref.generation == 2:
            return daemons
        event.wait(0.01)
    raise TimeoutError("the edit was not published")


def test_status_knows_a_daemon(
    tmp_path: Path, started: list[Daemon], capfd: pytest.CaptureFixture[str]
) -> None:
    file = make_project(tmp_path / "project")
    started.append(Daemon(file))
    started[0].next("build_published")
    # The daemon answers from its last plan.
    while started[0].next("planned")["detail"] != "1 fresh":
        pass
    assert cli.run(["status", "--json", "--config", str(file)]) == 0
    status = json.loads(capfd.readouterr().out)
    assert [one["pid"] for one in status["daemons"]] == [started[0].process.pid]


def test_warm_is_ended_with_its_builds(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", build="hang")
    command = [sys.executable, "-m", "preheatd.cli", "warm", "--json", "--config", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        pids = wait_for_text(file.parent / "running-encoder")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
    assert_ended(pids)
