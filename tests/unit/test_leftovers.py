"""What killed processes leave: half-made files, groups of processes, caches that were being replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.errors import BusyError
from preheat.lifeline import is_forsaken
from preheat.store import DiskStore, build_lock
from preheat.store.temporary import process_space
from preheatd import abandoned, owned
from preheatd.abandoned import Noted, Seen, members
from preheatd.caches import CompilerCaches
from preheatd.leftovers import temporary_beside
from preheatd.state import State
from preheatd.zygotes import Root, Zygote, Zygotes

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_SECONDS = 300.0
OWNER = owned.Owner(pid=1, purpose="build", started_at="now", target="t", environment="e")
ENDS = """
import os, sys, time
from preheat.lifeline import end_with_parent
end_with_parent()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def state(tmp_path: Path) -> State:
    made = State(tmp_path / "state")
    made.prepare()
    return made


def gone(pid: int) -> bool:
    """Wait for the end of a process; it may still wait to be reaped by whoever adopted it."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


# Ending with the parent.


@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_ends_with_its_parent_even_when_it_is_stopped(stopped: bool) -> None:
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ENDS!r}])"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if stopped:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
    assert gone(child)


def test_the_parent_is_the_thread_that_started_it() -> None:
    """That is why the daemon starts processes from its loop's thread alone."""
    found: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        child = subprocess.Popen([sys.executable, "-c", ENDS], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        found.append(child)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with found[0] as child:
        assert child.wait(LIMIT_SECONDS) == -signal.SIGKILL


def test_whose_reader_has_gone_is_forsaken(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    assert not is_forsaken(writing)
    os.close(reading)
    assert is_forsaken(writing)
    os.close(writing)
    with (tmp_path / "file").open("wb") as file:
        assert not is_forsaken(file.fileno())


# Ending what a killed daemon left running.


def left_running(state: State, *, ours: bool) -> tuple[Path, int]:
    """A child whose leader has gone; its variables name the state directory or they do not."""
    place = state.work / "build-1-x"
    place.mkdir()
    script = (
        "import subprocess, sys\n"
        "print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "sys.stdin.read()"
    )
    named = {"TMPDIR": str(state.path / "caches" / "tmp")} if ours else {}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **named},
    ) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        abandoned.note_group(place, leader.pid)
    return place, child


def test_the_rest_of_a_group_is_ended_though_its_leader_has_gone(state: State) -> None:
    _, child = left_running(state, ours=True)
    state.sweep()
    assert gone(child)
    assert list(state.work.iterdir()) == []


def test_a_group_that_does_not_show_whose_it_is_is_left_alone(state: State) -> None:
    _, child = left_running(state, ours=False)
    state.sweep()
    assert Path(f"/proc/{child}").exists()
    os.kill(child, signal.SIGKILL)


def test_numbers_of_another_boot_or_container_say_nothing(state: State) -> None:
    place, child = left_running(state, ours=True)
    groups = place / "groups"
    groups.write_text(groups.read_text().replace(process_space(), "elsewhere.0123456789ab"))
    state.sweep()
    assert Path(f"/proc/{child}").exists()
    os.kill(child, signal.SIGKILL)


def test_a_number_that_is_used_again_names_nobody(tmp_path: Path) -> None:
    note = Noted(70, started=1000, space="here")
    later = [Seen(70, 70, 70, started=5000), Seen(71, 70, 70, started=5001)]
    assert members([note], later, "here", tmp_path) == []
    leader = [Seen(70, 70, 70, started=1000), Seen(71, 71, 70, started=1005), Seen(72, 9, 9, 1010)]
    assert members([note], leader, "here", tmp_path) == [70, 71]
    assert members([note], leader, "there", tmp_path) == []


# Half-made files.


def test_records_that_a_killed_process_did_not_finish_are_removed(state: State) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from preheatd.leftovers import temporary_beside\n"
        "temporary_beside(Path(sys.argv[1])).write_bytes(b'{')\n"
        "os.kill(os.getpid(), 9)"
    )
    record = state.path / "failures" / "t@e.json"
    subprocess.run([sys.executable, "-c", script, str(record)], check=False)
    own = temporary_beside(record)
    own.write_bytes(b"{")  # of a process that lives
    assert len(list(record.parent.iterdir())) == 2
    state.sweep()
    assert list(record.parent.iterdir()) == [own]


def test_locks_without_a_directory_are_removed_when_they_are_old(state: State) -> None:
    old, new, held = (state.work / f"{name}.lock" for name in ("old", "new", "held"))
    for path in (old, new):
        path.touch()
    with owned.OwnedDirectory(state.work, OWNER) as place:
        os.utime(f"{place}.lock", (0, 0))
        os.utime(old, (0, 0))
        state.sweep()
        assert not old.exists()
        assert new.exists()
        assert Path(f"{place}.lock").exists()
    assert not held.exists()


@pytest.fixture
def temporary(state: State) -> Iterator[Path]:
    """What a killed compiler left."""
    caches = CompilerCaches(state.path / "caches" / "e").prepare()
    (caches.temporary / "tmpabc").mkdir()
    (caches.temporary / "tmpabc" / "x.cpp").touch()
    (caches.temporary / "ccAbCdEf.s").touch()
    (caches.inductor / "ab").mkdir()
    (caches.inductor / "ab" / ".12.34.tmp").touch()
    (caches.inductor / "ab" / "kept.so").touch()
    (state.path / "caches" / "e.0a.damaged").mkdir()
    yield caches.base


def test_what_compilers_left_is_removed_unless_somebody_builds(
    state: State, temporary: Path
) -> None:
    before = sorted(path for path in state.path.rglob("*"))
    with owned.OwnedDirectory(state.work, OWNER):
        state.sweep()
    assert sorted(path for path in state.path.rglob("*")) == before
    state.sweep()
    left = {str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()}
    assert left == {"inductor/ab/kept.so"}
    assert [path.name for path in (state.path / "caches").iterdir()] == ["e"]


def test_two_builds_may_replace_damaged_caches_at_the_same_time(tmp_path: Path) -> None:
    base = CompilerCaches(tmp_path / "caches").prepare()
    others = [CompilerCaches(tmp_path / f"fresh{number}").prepare() for number in range(2)]
    for number, other in enumerate(others):
        (other.inductor / f"of{number}").touch()
    base.base.rename(tmp_path / "taken away by the other one")
    base.replace_with(others[0])
    assert not base.base.exists()
    base.prepare()
    base.replace_with(others[1])
    assert [path.name for path in base.inductor.iterdir()] == ["of1"]
    assert not list(tmp_path.glob("*.damaged"))


def test_who_holds_a_lock_is_not_told_by_the_note_of_a_killed_one(tmp_path: Path) -> None:
    root = DiskStore(tmp_path, create=True).layout.root
    script = (
        "import os, sys; from preheat.store import build_lock\n"
        "with build_lock(sys.argv[1], 'model', 'env'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    note = DiskStore(tmp_path).layout.lock_holder("model", "env")
    stale = note.read_bytes()
    with build_lock(root, "model", "env"):
        note.write_bytes(stale)  # as in the moment before the new holder writes its own
        with pytest.raises(BusyError, match="by another process"):
            build_lock(root, "model", "env").__enter__()


# Zygotes.


async def test_two_who_ask_at_once_get_the_same_zygote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Zygote] = []

    async def start(self: Zygote, log: Path) -> None:
        started.append(self)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Zygote, "start", start)
    zygotes = Zygotes(tmp_path)
    root = Root(python=sys.executable, cwd=tmp_path, variables=(), stamp="")
    one, two = await asyncio.gather(zygotes.get(root), zygotes.get(root))
    assert one is two
    assert len(started) == 1
    await zygotes.close()


def test_a_daemon_removes_what_compilers_of_its_ended_builds_left(state: State) -> None:
    left = state.path / "caches" / "e" / "tmp" / "ccAbCd.s"
    left.parent.mkdir(parents=True, exist_ok=True)
    others = left.with_name("tmp1234")  # an idle process may have it open
    for path in (left, others):
        path.write_bytes(b"half")
    with owned.OwnedDirectory(state.work, OWNER):
        state.sweep_compilers()
        assert left.exists()
    state.sweep_compilers()
    assert not left.exists()
    assert others.exists()
