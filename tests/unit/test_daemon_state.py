"""Records, owned directories, bounded logs, lines of a stream, work that is not cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from preheat.errors import StoreError, UntrustedStoreError
from preheatd import owned
from preheatd.logs import BoundedLog
from preheatd.process import LineSplitter, describe_status
from preheatd.state import Failure, State, state_path
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> State:
    made = State(tmp_path / "state")
    made.prepare()
    return made


def test_where_the_state_is(tmp_path: Path) -> None:
    assert state_path(tmp_path, {}) == tmp_path / "state"
    assert state_path(tmp_path, {"STATE_DIRECTORY": "/s:/t"}).as_posix() == "/s"
    both = {"STATE_DIRECTORY": "/s", "PREHEAT_STATE": "/p"}
    assert state_path(tmp_path, both).as_posix() == "/p"


def test_the_state_is_private(state: State) -> None:
    assert state.path.stat().st_mode & 0o777 == 0o700


def test_a_state_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="PREHEAT_STATE"):
        State(tmp_path / "file" / "state").prepare()


def test_failures_are_remembered_and_forgotten(state: State) -> None:
    failure = Failure(target="a.b", environment="e", kind="k", message="m", tried=("x",))
    state.remember(failure)

    assert state.failure("a.b", "e") == failure
    assert state.failure("a.b", "other") is None
    state.forget("a.b", "e")
    state.forget("a.b", "e")
    assert state.failure("a.b", "e") is None


def test_a_damaged_record_counts_as_none(state: State) -> None:
    state.remember(Failure(target="a", environment="e", kind="k", message="m"))
    (path,) = (state.path / "failures").iterdir()
    path.write_bytes(b'{"target": 3')
    assert state.failure("a", "e") is None


def owner(target: str = "encoder") -> owned.Owner:
    return owned.Owner(
        pid=os.getpid(), purpose="build", started_at="now", target=target, environment="e"
    )


def test_an_owned_directory_lives_as_long_as_its_block(state: State) -> None:
    with owned.OwnedDirectory(state.work, owner()) as path:
        assert state.building() == {("encoder", "e")}
        assert owned.sweep(state.work) == 0
        assert path.is_dir()
    assert state.building() == frozenset()
    assert list(state.work.iterdir()) == []


def test_what_a_killed_owner_left_is_swept(state: State) -> None:
    """The owner and its build process die or live on as after a ``kill -9``."""
    script = (
        "import sys, subprocess, time, pathlib\n"
        "from preheatd import abandoned, owned\n"
        "o = owned.Owner(pid=1, purpose='build', started_at='now', target='t', environment='e')\n"
        "with owned.OwnedDirectory(pathlib.Path(sys.argv[1]), o) as path:\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    abandoned.note_group(path, child.pid)\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    arguments = [sys.executable, "-c", script, str(state.work)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert state.building() == {("t", "e")}
        process.send_signal(signal.SIGKILL)
        process.wait()

    assert state.building() == frozenset()
    assert owned.sweep(state.work) == 1
    assert list(state.work.iterdir()) == []
    assert _is_gone(child)


def _is_gone(pid: int) -> bool:
    """Whether the process ended; it may still wait to be reaped by whoever adopted it."""
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


def test_a_number_that_was_used_again_is_not_ended(state: State) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        left = state.work / "build-1-x"
        left.mkdir()
        (left / "groups").write_text(f"{process.pid} 12345\nnonsense\n")
        assert owned.sweep(state.work) == 1
        assert process.poll() is None
        process.kill()


async def test_a_short_log_is_kept_whole(tmp_path: Path) -> None:
    async with BoundedLog(tmp_path / "log", head=10, tail=10) as log:
        await log.write(b"0123456")
        await log.write(b"789abcdefgh")
    assert (tmp_path / "log").read_bytes() == b"0123456789abcdefgh"


async def test_a_long_log_keeps_head_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with BoundedLog(path, head=100, tail=200) as log:
        for number in range(2000):
            await log.write(b"line %d\n" % number)
            assert path.stat().st_size <= 100 + 2 * 200 + 50
    text = path.read_bytes()
    assert text.startswith(b"line 0\nline 1\n")
    assert text.endswith(b"line 1998\nline 1999\n")
    assert b"bytes left out here" in text


async def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with BoundedLog(path, head=100, tail=200) as log:
        writers = [
            [log.write(b"%s%05d\n" % (name, number)) for number in range(500)]
            for name in (b"a", b"b")
        ]
        await asyncio.gather(*(write for pair in writers for write in pair))
    lines = path.read_bytes().split(b"left out here\n")[1].split(b"\n")[1:]
    assert all(len(line) == 6 for line in lines if line)


async def test_a_log_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    async with BoundedLog(tmp_path / "missing" / "log") as log:
        await log.write(b"x")
        await log.note("y")


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_come_out_whole(size: int) -> None:
    splitter = LineSplitter(limit=20)
    lines = [line for chunk in chunks(b"one\n\ntwo\nthree", size) for line in splitter.feed(chunk)]
    assert [*lines, *splitter.finish()] == [b"one", b"", b"two", b"three"]


def test_an_overlong_line_is_cut_once() -> None:
    splitter = LineSplitter(limit=20)
    lines = [
        line for chunk in chunks(b"x" * 100 + b"\nnext\n", 10) for line in splitter.feed(chunk)
    ]
    assert lines[-1] == b"next"
    assert len(lines) == 2
    assert splitter.finish() == []


def test_how_a_process_ended() -> None:
    assert "exit status 3" in describe_status(3)
    assert "SIGSEGV" in describe_status(-signal.SIGSEGV)
    assert "memory" in describe_status(-signal.SIGKILL)
    assert "signal 99" in describe_status(-99)


async def test_work_that_is_not_cancelled() -> None:
    gate, done = asyncio.Event(), []

    async def work() -> str:
        await gate.wait()
        done.append(1)
        return "result"

    task = asyncio.create_task(uncancelled(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]


async def test_results_and_errors_pass_through() -> None:
    async def give() -> int:
        return 3

    async def fail() -> int:
        raise ValueError("no")

    assert await uncancelled(give()) == 3
    with pytest.raises(ValueError, match="no"):
        await uncancelled(fail())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with another account's eyes")
def test_another_account_sees_no_owners_and_no_error(tmp_path: Path) -> None:
    parent = tmp_path / "work"
    parent.mkdir(mode=0o700)
    with owned.OwnedDirectory(parent, owner()):
        assert len(list(owned.live_owners(parent))) == 1
        os.seteuid(65534)
        try:
            assert list(owned.live_owners(parent)) == []
        finally:
            os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_state_directory_that_somebody_else_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    path.mkdir(0o777)
    os.chown(path, 54321, -1)
    with pytest.raises(UntrustedStoreError, match="belongs to uid 54321"):
        State(path).prepare()
    monkeypatch.setenv("PREHEAT_TRUSTED_UIDS", "54321")
    State(path).prepare()
    assert path.stat().st_mode & 0o777 == 0o700
