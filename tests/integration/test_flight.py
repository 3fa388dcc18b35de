"""``preheat warm --remote``: several nodes, one store that they share, and builds by a double, counted."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
import test_daemon_double as double
from fsspec.implementations.memory import MemoryFileSystem

from preheat.errors import ConfigurationError
from preheat.store import DiskStore
from preheatd import cli, events
from preheatd.config import load_config
from preheatd.flight.settings import Fleet
from preheatd.flight.warming import warm_in_fleet
from preheatd.project import open_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheatd.warming import Warmed

LIMIT_SECONDS = 120


class Counted(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory that counts what is read of each file, and can be told to fail."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    reads: ClassVar[collections.Counter[str]] = collections.Counter()
    before: ClassVar[Callable[[str], None]] = lambda path: None

    def _open(self, path: str, mode: str = "rb", **named: Any) -> Any:
        Counted.before(path)
        opened = super()._open(path, mode, **named)
        if mode == "rb":
            Counted.reads[path] += 1
        return opened

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        Counted.reads[path] += start == 0
        return bytes(super().cat_file(path, start=start, end=end))


# Not among those of which it is known that one of several makers of a file is told so.
fsspec.register_implementation("counted", Counted, clobber=True)
URL = "counted://shared/packages"


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PREHEAT_STORE", raising=False)
    yield
    Counted.store.clear()
    Counted.pseudo_dirs[:] = [""]
    Counted.reads.clear()
    Counted.before = lambda path: None


@dataclasses.dataclass
class Node:
    """One node's store, and what it told."""

    file: Path
    store: Path
    told: list[events.Event] = dataclasses.field(default_factory=list)

    async def warm(self, url: str = URL, *, once: bool = True, **fleet: Any) -> Warmed:
        config = dataclasses.replace(load_config(self.file), store=self.store)
        project = open_project(config, create=True)
        wanted = Fleet(remote=url, **{"lease": 4.0, **fleet})
        (warmed,) = await warm_in_fleet(project, self.told.append, wanted, retry=not once)
        return warmed

    def actions(self) -> list[str]:
        return [one.action for one in self.told]


def nodes(tmp_path: Path, number: int, **control: Any) -> list[Node]:
    file = double.make_project(tmp_path / "project", ("encoder",), **control)
    return [Node(file, tmp_path / f"store{one}") for one in range(number)]


def builds(file: Path) -> int:
    return (file.parent / "double.log").read_text().splitlines().count("build encoder")


def results(warmed: list[Warmed]) -> list[str]:
    return sorted(one.result for one in warmed)


async def all_warm(some: list[Node], **fleet: Any) -> list[Warmed]:
    return list(await asyncio.gather(*(one.warm(**fleet) for one in some)))


async def test_one_node_builds_and_each_other_one_reads_each_object_once(tmp_path: Path) -> None:
    four = nodes(tmp_path, 4)
    warmed = await all_warm(four)
    assert results(warmed) == ["built", "pulled", "pulled", "pulled"]
    assert builds(four[0].file) == 1
    reads = {path: count for path, count in Counted.reads.items() if "/objects/" in path}
    assert len(reads) >= 2  # the manifest and what it names
    # One by each node that did not build, and nobody read before it was there.
    assert set(reads.values()) == {3}
    manifests = {ref.manifest for one in four for ref in DiskStore(one.store).refs()}
    assert len(manifests) == 1
    assert await all_warm(four) and builds(four[0].file) == 1  # all fresh: nothing is asked


async def test_an_edit_is_built_once_more_and_an_old_package_is_not_fetched(tmp_path: Path) -> None:
    three = nodes(tmp_path, 3)
    await all_warm(three)
    module = three[0].file.parent / "app" / "encoder.py"
    module.write_text(module.read_text().replace("1", "2"))
    before = Counted.reads.copy()
    warmed = await all_warm(three)
    assert results(warmed) == ["built", "pulled", "pulled"]
    assert builds(three[0].file) == 2
    old = {path for path in before if "/objects/" in path}
    # Of the package from before, the manifest alone is looked at.
    assert {Counted.reads[path] - before[path] for path in old} <= {0, 3}


async def test_nodes_that_do_not_wait_for_the_one_that_builds(tmp_path: Path) -> None:
    holder, skips, builds_too = nodes(tmp_path, 3, build="gate")
    held = asyncio.ensure_future(holder.warm())
    await asyncio.to_thread(wait_for, holder.file.parent / "running-encoder")
    skipped = await skips.warm(when_busy="skip")
    assert (skipped.result, skipped.holder.partition(" on ")[0]) == (
        "held",
        f"process {os.getpid()}",
    )
    double.write_double(holder.file.parent)
    also = await builds_too.warm(when_busy="build")
    assert (also.result, builds(holder.file)) == ("built", 2)
    assert events.BUILD_ALONE in builds_too.actions()
    (holder.file.parent / "gate").touch()
    assert (await held).result == "built"


async def test_a_failure_is_said_to_those_who_wait(tmp_path: Path) -> None:
    three = nodes(tmp_path, 3, build="refuse")
    warmed = await all_warm(three)
    assert results(warmed) == ["failed"] * 3
    assert builds(three[0].file) == 1
    elsewhere = [
        one.failure for one in warmed if one.failure and one.failure.kind == "failed_elsewhere"
    ]
    assert len(elsewhere) == 2
    assert "Cannot be packaged." in elsewhere[0].message
    double.write_double(three[0].file.parent)
    assert (await Node(three[0].file, tmp_path / "late").warm()).result == "failed"
    assert (await Node(three[0].file, tmp_path / "late").warm(once=False)).result == "built"
    # What failed here is not tried again, and taken where another node could build it.
    assert [(await one.warm()).result for one in three] == ["pulled"] * 3


async def test_a_remote_that_fails_does_not_keep_a_node_from_building(tmp_path: Path) -> None:
    (node,) = nodes(tmp_path, 1)

    def fail(path: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    Counted.before = fail
    assert (await node.warm()).result == "built"
    assert events.REMOTE_TROUBLE in node.actions()
    assert Counted.store == {}


async def test_some_calls_that_fail_are_made_again(tmp_path: Path) -> None:
    (node,) = nodes(tmp_path, 1)
    seen: collections.Counter[str] = collections.Counter()

    def fail_first(path: str) -> None:
        directory = path.rpartition("/")[0]
        seen[directory] += 1
        if seen[directory] == 1 and not path.endswith("FORMAT"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    Counted.before = fail_first
    assert (await node.warm()).result == "built"
    other = Node(node.file, tmp_path / "other")
    Counted.before = lambda path: None
    assert (await other.warm()).result == "pulled"


async def test_a_damaged_package_is_built_again_and_mended(tmp_path: Path) -> None:
    first, second, third = nodes(tmp_path, 3)
    await first.warm()
    for path, file in Counted.store.items():
        if "/objects/" in path:
            file.seek(0)
            file.write(b"X" * file.size)
    assert (await second.warm()).result == "built"
    assert (await third.warm()).result == "pulled"


def test_an_url_that_cannot_be_opened_is_a_mistake(tmp_path: Path) -> None:
    (node,) = nodes(tmp_path, 1)
    with pytest.raises(ConfigurationError, match="nothing-knows"):
        asyncio.run(node.warm("nothing-knows://there"))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("[fleet]\nlease = 0.1\n", "`fleet.lease` must be seconds"),
        ('[fleet]\nremote = ""\n', "`fleet.remote` is empty"),
        ("[fleet]\nremotes = 1\n", "Did you mean `remote`?"),
        ('[fleet]\nwhen_busy = "never"\n', "fleet.when_busy"),
    ],
)
def test_mistakes_in_the_configuration(tmp_path: Path, extra: str, said: str) -> None:
    file = double.make_project(tmp_path / "project", extra=extra)
    with pytest.raises(ConfigurationError, match=said):
        load_config(file)


def test_when_busy_needs_a_remote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = double.make_project(tmp_path / "project")
    assert cli.run(["warm", "--config", str(file), "--when-busy", "skip"]) == 2
    assert "--remote URL" in capsys.readouterr().err


def command(tmp_path: Path, number: int, *words: str) -> subprocess.Popen[str]:
    """A node of its own: other process, other store; `[fleet]` says the rest."""
    return subprocess.Popen(
        [sys.executable, "-m", "preheatd", "warm", "--json", "--once", *words],
        cwd=tmp_path / "project",
        env={"PATH": os.environ["PATH"], "PREHEAT_STORE": str(tmp_path / f"store{number}")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    (target,) = json.loads(out)["targets"] if out else ({"result": err},)
    return f"{process.returncode} {target['result']}"


FLEET = '[fleet]\nremote = "../remote"\nlease = 2\n'


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def test_five_commands_at_once_build_once(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", extra=FLEET)
    processes = [command(tmp_path, number) for number in range(5)]
    assert sorted(map(result, processes)) == ["0 built"] + ["0 pulled"] * 4
    assert builds(file) == 1
    assert DiskStore(tmp_path / "remote").refs()


def test_after_kill_9_of_the_holder_another_command_builds(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", extra=FLEET, build="hang")
    holder = command(tmp_path, 0)
    running = wait_for(file.parent / "running-encoder")
    followers = [command(tmp_path, number) for number in (1, 2)]
    double.write_double(file.parent)
    time.sleep(1)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert sorted(map(result, followers)) == ["0 built", "0 pulled"]
    assert builds(file) == 2
    for pid in running.split():
        with contextlib.suppress(ProcessLookupError):  # what it started ends with it
            os.kill(int(pid), signal.SIGKILL)


def test_a_holder_that_is_ended_says_so_and_nobody_waits_for_its_lease(tmp_path: Path) -> None:
    file = double.make_project(
        tmp_path / "project", extra=FLEET.replace("lease = 2", "lease = 3600"), build="hang"
    )
    holder = command(tmp_path, 0)
    wait_for(file.parent / "running-encoder")
    holder.send_signal(signal.SIGTERM)
    holder.communicate(timeout=LIMIT_SECONDS)
    double.write_double(file.parent)
    assert result(command(tmp_path, 1)) == "0 built"


def test_the_limit_of_time_counts_while_waiting_too(tmp_path: Path) -> None:
    file = double.make_project(tmp_path / "project", extra=FLEET, build="hang")
    holder = command(tmp_path, 0)
    wait_for(file.parent / "running-encoder")
    waits = command(tmp_path, 1, "--timeout", "2", "--fail-open")
    out, err = waits.communicate(timeout=LIMIT_SECONDS)
    assert (waits.returncode, builds(file)) == (0, 1)
    assert "Not everything was warm after 2 s" in out + err
    holder.send_signal(signal.SIGTERM)
    holder.communicate(timeout=LIMIT_SECONDS)
