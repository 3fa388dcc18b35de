"""Collection as a user meets it: the command, the daemon's own, and workers that have packages loaded."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from test_daemon_double import environment, make_project
from test_daemon_service import Listener, edit, serving

from preheat.manifest import environment_digest
from preheat.store import DiskStore
from preheat.store.gathering import KeptWarm
from preheatd import cli, events, project, troubles
from preheatd.collection import periodic
from preheatd.config import load_config
from preheatd.metrics import Metrics
from preheatd.store_figures import StoreFigures
from support.collecting import Clock, check_whole, in_environment, put_package
from support.manifests import manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.project import Project

ENVIRONMENT = environment_digest(environment())


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's clock, for what opens a store in this process."""
    clock = Clock()

    def opened(root: Any, **named: Any) -> DiskStore:
        return DiskStore(root, now=clock, **named)

    monkeypatch.setattr(project, "DiskStore", opened)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


class Command:
    """Runs the command in this process."""

    def __init__(self, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._file, self._capfd = file, capfd
        self.err = ""

    def text(self, *arguments: str) -> tuple[int, str]:
        self._capfd.readouterr()
        code = cli.run([*arguments, "--config", str(self._file)])
        out, self.err = self._capfd.readouterr()
        return code, out

    def json(self, *arguments: str) -> tuple[int, Any]:
        code, out = self.text(*arguments, "--json")
        assert out.count("\n") == 1, out
        return code, json.loads(out)


@pytest.fixture
def preheat(file: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(file, capfd)


def store_of(file: Path) -> DiskStore:
    return DiskStore(load_config(file).store, create=True)


def test_the_command(preheat: Command, file: Path, clock: Clock) -> None:
    assert preheat.text("collect")[0] == 2
    assert "There is no store" in preheat.err
    assert preheat.text("warm")[0] == 0
    store = store_of(file)
    lost, _ = store.put_object(b"lost")
    put_package(store, b"of another project", target="foreign")
    code, answer = preheat.json("collect")
    assert (code, answer["done"]["deleted"]) == (0, [])

    clock.days = 40
    code, dry = preheat.json("collect", "--dry-run")
    assert code == 0
    assert dry["done"] is None
    assert [(one["reason"], one["target"]) for one in dry["plan"]["deletions"]] == [
        ("unreferenced", None),
        ("environment_vanished", "foreign"),
    ]
    code, text = preheat.text("collect", "--dry-run")
    assert code == 0
    assert "environment_vanished  no target here has this environment; not used for 40 days" in text
    assert "would delete 1 of 2 packages and 1 unreferenced object: " in text
    assert sorted(ref.target for ref in store.refs()) == ["encoder", "foreign"]

    code, done = preheat.json("collect")
    assert code == 0
    assert done["done"]["deleted"] == [one["digest"] for one in dry["plan"]["deletions"]]
    assert done["done"]["bytes"] == dry["plan"]["bytes_before"] - dry["plan"]["bytes_after"]
    assert [ref.target for ref in store.refs()] == ["encoder"]
    assert not store.layout.object(lost).exists()
    check_whole(store)
    # What the configuration keeps warm stays, whatever the limit, and is fresh.
    code, answer = preheat.json("collect", "--max-size", "1B")
    assert code == 3
    (short,) = answer["plan"]["shortfalls"]
    assert [one["reason"] for one in short["held"]] == ["kept_warm"]
    assert "its limit is 1 B. 1 package" in preheat.text("collect", "--max-size", "1B")[1]
    assert preheat.text("plan")[0] == 0


def test_limits_of_the_configuration_and_of_the_command_line(
    preheat: Command, file: Path, clock: Clock
) -> None:
    assert preheat.text("warm")[0] == 0
    store = store_of(file)
    for target in ("one", "two", "three"):
        put_package(store, target.encode() * 1000, target=target)
    clock.days = 2
    file.write_text(file.read_text() + '[collection]\nmax_size = "8KiB"\n')
    code, answer = preheat.json("collect", "--dry-run")
    assert code == 0
    assert {one["reason"] for one in answer["plan"]["deletions"]} == {"store_size"}
    assert answer["plan"]["bytes_after"] <= 8192 < answer["plan"]["bytes_before"]
    code, answer = preheat.json("collect", "--dry-run", "--max-size", "1G")
    assert (code, answer["plan"]["deletions"]) == (0, [])
    code, answer = preheat.json("collect", "--max-size", "1G", "--target-max-size", "4500B")
    assert [one["target"] for one in answer["plan"]["deletions"]] == ["three"]
    assert {one["reason"] for one in answer["plan"]["deletions"]} == {"target_size"}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ('max_size = "10"', "`collection.max_size` must be a size"),
        ('max_age = "soon"', "`collection.max_age` must be a time"),
        ('grace = "1min"', "`collection.grace` must be 10 minutes or more"),
        ('grace = "never"', "`collection.grace` must be 10 minutes or more"),
        ('interval = "0s"', "`collection.interval` must be above 0"),
        ("keep_generations = -1", "`collection.keep_generations` must be 0 or more"),
        ("target_max_objects = -1", "`collection.target_max_objects` must be 0 or more"),
        ("max_sise = 1", "Did you mean `max_size`?"),
    ],
)
def test_impossible_settings_are_named(
    preheat: Command, file: Path, written: str, says: str
) -> None:
    file.write_text(f"{file.read_text()}[collection]\n{written}\n")
    assert preheat.text("plan")[0] == 2
    assert says in preheat.err


@pytest.mark.parametrize(
    "option", ["--max-size=ten", "--max-age=old", "--grace=5s", "--vanished-after=x"]
)
def test_impossible_options_are_named(preheat: Command, option: str) -> None:
    assert preheat.text("collect", option)[0] == 2
    assert option.partition("=")[0].lstrip("-").replace("-", "_") in preheat.err.replace("-", "_")


def rewrite(file: Path, old: str, new: str) -> None:
    """Replace a part of a configuration, or add to its end."""
    text = file.read_text()
    file.write_text(text.replace(old, new) if old else text + new)


def move(source: Path, destination: Path) -> None:
    source.rename(destination)


async def test_a_daemon_collects_and_tells(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "FIRST_SECONDS", 0.1)
    # Earlier generations beyond the newest one go, once the day of grace is over.
    settings = '[collection]\ninterval = "0.2s"\nkeep_generations = 0\nmax_size = "1B"\n'
    rewrite(file, "", settings)
    async with serving(file, rescan_seconds=0.5) as listener:
        await listener.next(events.BUILD_PUBLISHED)
        short = await listener.next(events.STORE_OVER_LIMIT)
        assert "is younger than the grace" in short.detail or "keeps it warm" in short.detail
        edit(file, "encoder", 2)
        await listener.next(events.BUILD_PUBLISHED)
        clock.days = 2
        collected = await listener.next(events.COLLECTED)
        assert "1 superseded" in collected.detail
        store = store_of(file)
        check_whole(store)
        assert len(list(store.manifest_digests())) == 1
        rewrite(file, 'max_size = "1B"', "")
        await listener.next(events.STORE_WITHIN_LIMITS)
    assert listener.count(events.COLLECTED) >= 1
    assert listener.count(events.COLLECTION_FAILED) == 0


async def test_trouble_with_a_collection_is_told_once_and_ends(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(file)
    listener = Listener()
    task = periodic.PeriodicCollection(store, listener, lambda: True)
    task.planned(load_config(file).collection, ())
    place = store.layout.refs.with_name("elsewhere")
    move(store.layout.refs, place)
    await task.collect_once()
    await task.collect_once()
    move(place, store.layout.refs)
    await task.collect_once()
    assert [one.action for one in listener.events] == [events.COLLECTION_FAILED, events.COLLECTED]
    found: tuple[troubles.Trouble, ...] = ()
    kinds = []
    for event in listener.events:
        found = troubles.after(found, event, "noon")
        kinds.append([one.kind for one in found])
    assert kinds == [[troubles.COLLECTION_FAILED], []]


async def test_a_daemon_waits_until_nothing_is_built(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(periodic, "_LOOK_SECONDS", 0.01)
    store = store_of(file)
    idle = False
    asked = 0

    def is_idle() -> bool:
        nonlocal asked, idle
        asked += 1
        idle = idle or asked > 5
        return idle

    task = periodic.PeriodicCollection(store, lambda event: None, is_idle)
    seen: list[bool] = []
    done = asyncio.Event()

    async def collect_once() -> None:
        seen.append(idle)
        done.set()

    monkeypatch.setattr(task, "collect_once", collect_once)
    task.planned(load_config(file).collection, ())
    running = asyncio.create_task(task.run())
    async with asyncio.timeout(300):
        await done.wait()
    running.cancel()
    assert seen[0] is True
    assert asked > 5


def test_metrics_of_collections(file: Path) -> None:
    store = store_of(file)
    put_package(store, b"one")
    clock = Clock()
    clock.days = 60
    later = DiskStore(store.location, create=True, now=clock)
    store.put_object(b"lost")
    done = later.collector().collect(load_config(file).collection.rules, KeptWarm())
    metrics = Metrics(StoreFigures(store.layout))
    metrics.collection.add(done, 0.5)
    text = metrics.render().decode()
    assert 'preheat_store_evictions_total{reason="environment_vanished"} 1.0' in text
    assert 'preheat_store_evictions_total{reason="unreferenced"} 1.0' in text
    assert 'preheat_store_evictions_total{reason="store_size"} 0.0' in text
    assert f"preheat_store_freed_bytes_total {float(done.bytes)}" in text
    assert "preheat_store_leases 0.0" in text
    assert "preheat_last_collection_seconds 0.5" in text


def test_a_worker_that_has_a_package_loaded_has_a_lease(zoo: Project) -> None:
    script = """
    import gc, time
    import torch
    import preheat
    from preheat.store import DiskStore, find_store
    from preheat.store.collection import Limits, Rules
    from zoo import model

    def leases():
        return DiskStore(find_store()).collector().plan(Rules(store=Limits(max_bytes=0))).leases

    seen = [leases()]
    program = model.Encoder().eval()
    first = preheat.load("encoder", program, on_miss="error")
    seen.append(leases())
    second = preheat.load("encoder", program, on_miss="error")
    first(torch.randn(8, 16))
    del first
    gc.collect()
    seen.append(leases())
    del second
    gc.collect()
    seen.append(leases())
    print(json.dumps(seen))
    """
    done = zoo.python("import json\n" + script.replace("\n    ", "\n"))
    assert done.code == 0, done.err
    assert done.json() == [0, 1, 1, 0]


def test_two_configurations_share_a_store(tmp_path: Path, clock: Clock) -> None:
    """What one of them keeps warm is in use for the other, as long as somebody looks after it."""
    store = DiskStore(tmp_path / "store", create=True)
    store.put_object(b"theirs")
    store.publish(in_environment(manifest_of(b"theirs", target="theirs"), "torch"))
    files = [make_project(tmp_path / name, (name,)) for name in ("mine", "theirs")]
    assert [load_config(file).store for file in files] == [tmp_path / "store"] * 2
    for _ in range(3):
        clock.days += 20
        # The other one's daemon has marked it, a moment ago by the clock of both.
        at = clock.timestamp()
        ref = next(iter(store.refs()))
        os.utime(store.layout.object(ref.manifest), (at, at))
        assert cli.run(["collect", "--config", str(files[0]), "--max-size", "1B"]) == 3
        assert [ref.target for ref in store.refs()] == ["theirs"]
