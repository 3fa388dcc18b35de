"""Many processes on one store, killed at random: nothing is torn, nothing that was published is lost."""

from __future__ import annotations

import collections
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.store import DiskStore, records
from support import collector, figures
from support.hosts import on_host, why_no_hosts
from support.manifests import ENVIRONMENT
from support.store_load import Reading, journals

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS, READERS, COLLECTORS = 8, 32, 2
SECONDS = 60.0 if figures.FULL else 8.0
HOSTS = ("", "preheat-host-b")
MEMORY = "/dev/shm"  # noqa: S108 - a directory of its own is made there
TESTS = Path(__file__).parents[1]


class Host:
    """A process that forks the processes of the load, here or in namespaces of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        command = (sys.executable, "-m", "support.store_load", str(directory), str(WRITERS))
        self._log = directory / f"host-{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                on_host(name, *command) if name else command,
                cwd=TESTS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, *words: object) -> dict[str, int]:
        """Raises ``AssertionError`` for whatever has ended by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        ended: dict[str, int] = json.loads(self.process.stdout.readline())
        return ended

    def close(self) -> None:
        self.process.communicate()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def totals(directory: Path, role: str) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for line in journals(directory, role):
        found.update({key: value for key, value in line.items() if isinstance(value, int)})
    return found


def lost_publications(directory: Path) -> list[str]:
    """Own targets whose package is older than the last one whose publication has returned."""
    begun: dict[str, int] = {}
    published: dict[str, int] = {}
    for line in journals(directory, "writer"):
        if line["target"].startswith("own-"):
            into = published if line["what"] == "published" else begun
            into[line["target"]] = line["number"]
    store, lost = DiskStore(directory / "store"), []
    for target, number in published.items():
        package = store.read_package(target, ENVIRONMENT)
        found = int(package[1].factory.partition(":")[2]) if package else -1
        if not number <= found <= begun[target]:
            lost.append(f"{target}: {found} is there, {number} was published")
    return lost


def run_load(directory: Path, names: tuple[str, ...], seconds: float) -> dict[str, int]:
    """Everybody at work for so long, one after the other killed and started again."""
    (directory / "journal").mkdir(parents=True)
    DiskStore(directory / "store", create=True)
    hosts = [Host(directory, name) for name in names]
    everybody = [
        (hosts[number % len(hosts)], role, number)
        for role, count in (("writer", WRITERS), ("reader", READERS), ("collector", COLLECTORS))
        for number in range(count)
    ]
    chance = random.Random(11)  # noqa: S311 - moments of death, no secret
    kills = 0
    try:
        for host, role, number in everybody:
            host.ask("start", role, number)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.01, 0.3))
            ended = {name: status for host in hosts for name, status in host.ask("look").items()}
            assert not ended, (ended, [host.log() for host in hosts])
            host, role, number = chance.choice(everybody)
            (status,) = host.ask("kill", role, number).values()
            assert status == -signal.SIGKILL, host.log()
            kills += 1
            host.ask("start", role, number)
    finally:
        for one in hosts:
            one.close()
    return {"kills": kills}


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory on a disk, where the store waits for it, or in memory, where races are much closer."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access(MEMORY, os.W_OK):
        pytest.skip("there is no /dev/shm to put a store in memory")
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="preheat-") as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("place", "names"),
    [("memory", HOSTS), ("disk", HOSTS), ("memory", HOSTS[:1])][: 3 if figures.FULL else 1],
    indirect=["place"],
    ids=["memory-2", "disk-2", "memory-1"][: 3 if figures.FULL else 1],
)
def test_nothing_is_torn_or_lost_while_processes_are_killed(
    place: Path, names: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    if len(names) > 1 and (why := why_no_hosts()):
        pytest.skip(f"a second host cannot be simulated: {why}")
    done = run_load(place, names, SECONDS)
    read, written = totals(place, "reader"), list(journals(place, "writer"))
    problems = [line for line in journals(place, "reader") if line["problems"]]
    published = sum(line["what"] == "published" for line in written)
    lost = lost_publications(place)
    collected = totals(place, "collector")
    collected["removed"] += check_after(place)
    figures.note(
        f"store under load, {request.node.callspec.id}",
        seconds=SECONDS,
        writers=WRITERS,
        readers=READERS,
        kills=done["kills"],
        published=published,
        reads=read["reads"],
        overtaken=read["overtaken"],
        collections=collected["rounds"],
        collected=collected["removed"],
        torn=read["torn"],
        lost=len(lost) + read["lost"],
        reader_crashes=0,
    )
    assert not problems
    assert not lost
    assert (read["torn"], read["lost"]) == (0, 0)
    assert read["reads"] > 0
    assert collected["removed"] > 0
    assert published > 0
    assert done["kills"] > 0


def check_after(directory: Path) -> int:
    """All refs lead to whole packages, before a last collection and after it; nothing is left half-made.

    Says how much that collection removed.
    """
    store = DiskStore(directory / "store", create=True)
    check_whole(directory, store)
    removed = collector.collect(store, grace_seconds=0.0)
    check_whole(directory, store)
    later = records.utc_now() + datetime.timedelta(days=2)  # what another host left is as old then
    DiskStore(store.layout.root, create=True, now=lambda: later).sweep_temporary()
    assert list(store.layout.temporary.iterdir()) == []
    return removed


def check_whole(directory: Path, store: DiskStore) -> None:
    reading = Reading(directory)
    for ref in store.refs():
        reading.read(ref.target)
    assert not reading.problems
    assert reading.counts.reads
