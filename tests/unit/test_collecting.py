"""Collecting a real directory: what is read, what goes, and who is in the way."""

from __future__ import annotations

import collections
import os
import threading
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from preheat import worker
from preheat.errors import BusyError, CorruptedError, StoreError
from preheat.loaded import LoadReport
from preheat.manifest import encode, sha256
from preheat.store import DiskStore
from preheat.store.collection import Limits, Rules
from preheat.store.files import Files
from preheat.store.gathering import NO_LOCKS_NOTE, KeptWarm, newest
from preheat.store.inspecting import Inspector
from preheat.store.leases import MARK_SECONDS, read_leased
from preheat.store.records import utc_now
from preheat.store.turns import collectors_turn, open_lock, writers_turn
from preheat.verdict import Verdict
from support.collecting import (
    Clock,
    check_whole,
    environment_of,
    later_store,
    put_package,
)
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.store.collecting import Collected

NOTHING = Rules(store=Limits(max_bytes=0), keep_generations=0)


def collected(root: Path, rules: Rules = NOTHING, days: float = 2.0, **named: Any) -> Collected:
    files = named.pop("files", None)
    return later_store(root, days, files).collector().collect(rules, **named)


def objects(root: Path) -> set[str]:
    return set(DiskStore(root).object_digests())


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "store", create=True)


def root_of(store: DiskStore) -> Path:
    return store.layout.root


def test_everything_may_go(store: DiskStore) -> None:
    put_package(store, b"one", b"two")
    put_package(store, b"one", b"three", target="other")
    done = collected(root_of(store))
    assert objects(root_of(store)) == set()
    assert list(store.refs()) == []
    assert [one.reason for one in done.deleted] == ["store_size"] * 2
    assert done.bytes == done.plan.bytes_before > 0
    assert done.spared == ()


def test_a_dry_run_is_the_plan_of_the_run_and_changes_nothing(store: DiskStore) -> None:
    put_package(store, b"one", b"two")
    put_package(store, b"two", b"three")
    store.put_object(b"lost")
    before = objects(root_of(store))
    later = later_store(root_of(store))
    frozen = later._now()
    later._now = lambda: frozen
    dry = later.collector().plan(NOTHING)
    assert objects(root_of(store)) == before
    assert [ref.generation for ref in store.refs()] == [2]
    done = later.collector().collect(NOTHING)
    assert done.plan == dry
    assert done.deleted == dry.deletions


def test_nothing_young_goes(store: DiskStore) -> None:
    put_package(store, b"one")
    store.put_object(b"lost")
    done = collected(root_of(store), days=0.9)
    assert done.deleted == ()
    assert [one.limit for one in done.plan.shortfalls] == ["store_size"]


def test_an_object_that_nothing_names_goes_also_with_a_limit_on_the_size(store: DiskStore) -> None:
    put_package(store, b"one")
    lost, _ = store.put_object(b"lost" * 1000)
    done = collected(root_of(store), Rules(store=Limits(max_bytes=3000)))
    assert [(one.digest, one.reason) for one in done.deleted] == [(lost, "unreferenced")]
    check_whole(store)


def test_generations_that_no_ref_names_are_packages(store: DiskStore) -> None:
    for number in range(4):
        put_package(store, b"shared", b"own %d" % number)
        time.sleep(0.01)
    done = collected(root_of(store), Rules(keep_generations=1))
    assert [one.reason for one in done.deleted] == ["superseded"] * 2
    left = objects(root_of(store))
    assert {sha256(b"own %d" % number) in left for number in (0, 1)} == {False}
    assert {sha256(part) in left for part in (b"own 2", b"own 3", b"shared")} == {True}
    check_whole(store)


def test_environments_that_no_target_has_any_more(store: DiskStore) -> None:
    for word in ("today", "before"):
        put_package(store, word.encode(), word=word)
    put_package(store, b"silent", target="silent")
    kept = KeptWarm(frozenset({("model", environment_of("today"))}), frozenset({"silent"}))
    assert collected(root_of(store), Rules(), days=20, kept=kept).deleted == ()
    done = collected(root_of(store), Rules(), days=31, kept=kept)
    assert [(one.reason, one.environment) for one in done.deleted] == [
        ("environment_vanished", environment_of("before"))
    ]
    # Who knows of no configuration judges no environment.
    assert collected(root_of(store), Rules(), days=400).deleted == ()


def test_what_is_kept_warm_stays_and_is_in_use_for_others(store: DiskStore) -> None:
    ref = put_package(store, b"one")
    path = store.layout.object(ref.manifest)
    os.utime(path, (1, 1))
    kept = KeptWarm(frozenset({("model", ENVIRONMENT)}))
    done = collected(root_of(store), kept=kept)
    assert done.deleted == ()
    assert [one.reason for one in done.plan.shortfalls[0].held] == ["kept_warm"]
    assert path.stat().st_mtime > time.time() - MARK_SECONDS


def test_a_package_that_is_loaded_stays_until_it_is_not(store: DiskStore) -> None:
    put_package(store, b"one")
    found = read_leased(store, "model", ENVIRONMENT)
    assert found is not None
    assert found.lease is not None
    assert found.lease.held
    done = collected(root_of(store), days=900)
    assert done.deleted == ()
    assert done.plan.leases == 1
    assert [one.reason for one in done.plan.shortfalls[0].held] == ["leased"]
    del found
    assert len(collected(root_of(store)).deleted) == 1


def test_many_loads_of_a_package_share_one_descriptor(store: DiskStore) -> None:
    ref = put_package(store, b"one")
    before = len(list(Path("/proc/self/fd").iterdir()))
    taken = [store.lease(ref.manifest) for _ in range(5)]
    assert all(one is not None and one.held for one in taken)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    for one in taken:
        assert one is not None
        one.release()
        one.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_package_that_a_worker_takes_away_gives_its_lease_back(store: DiskStore) -> None:
    ref = put_package(store, b"one")

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    loaded = types.SimpleNamespace(call=fails, uninstall=lambda: None)
    request = worker._Request("model", lambda x: x + 1, None, "eager", None, False)
    report = LoadReport("model", Verdict.FRESH, "lean")
    leases = [store.lease(ref.manifest)]
    manifest = store.read_manifest(ref.manifest)
    runner = worker._runner(request, manifest, report, loaded, leases.pop())
    assert later_store(root_of(store)).collector().plan(NOTHING).leases == 1
    with pytest.warns(match="runs without compilation"):
        assert runner.run(1) == 2
    assert later_store(root_of(store)).collector().plan(NOTHING).leases == 0


def test_a_lease_is_of_the_file_and_not_of_its_name(store: DiskStore) -> None:
    ref = put_package(store, b"one")
    old = store.lease(ref.manifest)
    store.quarantine_object(ref.manifest, reason="a test")
    assert store.lease(ref.manifest) is None
    put_package(store, b"one")
    new = store.lease(ref.manifest)
    assert new is not None
    assert new is not old
    assert collected(root_of(store)).plan.leases == 1


def test_a_load_marks_what_it_owns_at_most_once_an_hour(store: DiskStore) -> None:
    ref = put_package(store, b"one")
    path = store.layout.object(ref.manifest)
    for age, marks in ((60.0, False), (MARK_SECONDS + 60, True), (-MARK_SECONDS, True)):
        at = time.time() - age
        os.utime(path, (at, at))
        lease = store.lease(ref.manifest)
        assert lease is not None
        assert (path.stat().st_mtime != pytest.approx(at, abs=1)) == marks
        lease.release()
        del lease


class Refusing(Files):
    """Raises an error in place of one call."""

    def __init__(self, name: str, error: OSError) -> None:
        def refuse(*_: object, **__: object) -> Any:
            raise error

        setattr(self, name, refuse)


@pytest.mark.parametrize("name", ["try_lock", "touch", "open_for_reading", "fstat"])
def test_a_lease_never_fails_a_load(store: DiskStore, name: str) -> None:
    ref = put_package(store, b"one")
    os.utime(store.layout.object(ref.manifest), (1, 1))
    for error in (OSError(9, "no locks"), PermissionError(1, "not yours"), OSError(24, "too many")):
        reader = DiskStore(root_of(store), files=Refusing(name, error))
        lease = reader.lease(ref.manifest)
        assert lease is not None
        assert lease.held == (name == "touch")
        lease.release()


def test_without_locks_only_what_was_not_used_for_a_week_goes(store: DiskStore) -> None:
    put_package(store, b"one")
    none = Refusing("try_lock", OSError(9, "no locks here"))
    done = collected(root_of(store), days=6, files=none)
    assert done.deleted == ()
    assert done.plan.notes == (NO_LOCKS_NOTE,)
    assert len(collected(root_of(store), days=8, files=none).deleted) == 1


def test_a_look_is_no_load(store: DiskStore) -> None:
    for number in range(3):
        put_package(store, b"own %d" % number)
    paths = [store.layout.object(digest) for digest in objects(root_of(store))]
    for path in paths:
        os.utime(path, (1, 1))  # relatime would note any read of these
    later_store(root_of(store)).collector().plan(NOTHING)
    inspector = Inspector(Files(), store.layout, frozenset({os.geteuid(), 0}), utc_now)
    assert len(inspector.inspect().objects) == len(paths)
    for ref in store.refs():
        for needed in store.read_manifest(ref.manifest).code_objects():
            assert b"".join(store.pieces(needed))
    manifests = {store.layout.object(ref.manifest) for ref in store.refs()}
    # Of a manifest any reading is noted: its time of access counts for nothing.
    assert {path.stat().st_atime for path in paths if path not in manifests} == {1}


def test_a_load_by_another_account_is_known_by_the_time_of_access(store: DiskStore) -> None:
    put_package(store, b"mine", b"shared", target="mine")
    put_package(store, b"theirs", b"shared", target="theirs")
    for digest in objects(root_of(store)):
        os.utime(store.layout.object(digest), (100, 100))
    # As the kernel does when somebody reads it.
    read = time.time() - 3600
    for part in (b"theirs", b"shared"):
        os.utime(store.layout.object(sha256(part)), (read, 100))
    clock = Clock()
    clock.days = 3
    old = [ref.target for ref in store.refs()]
    assert old == ["mine", "theirs"]
    for ref in store.refs():  # the publication is a trace as well
        path = store.layout.ref(ref.target, ref.environment)
        text = path.read_bytes().replace(ref.published_at.encode(), b"1970-01-01T00:00:00+00:00")
        path.chmod(0o644)
        path.write_bytes(text)
    rules = Rules(store=Limits(max_age_seconds=30 * 24 * 3600))
    done = collected(root_of(store), rules, days=3)
    assert [one.target for one in done.deleted] == ["mine"]
    check_whole(store)


@pytest.mark.parametrize("at", [1.0, 2e10])
def test_times_that_make_no_sense_delete_nothing_young(store: DiskStore, at: float) -> None:
    put_package(store, b"one")
    lost, _ = store.put_object(b"lost")
    for digest in objects(root_of(store)):
        os.utime(store.layout.object(digest), (at, at))
    # When it came here is known from the inode, whatever its other times say.
    assert collected(root_of(store), days=0.5).deleted == ()
    assert {one.digest for one in collected(root_of(store), days=2).deleted} >= {lost}


def test_newest() -> None:
    assert newest((1.0, 5.0, 3.0), 10.0) == 5.0
    assert newest((1.0, 500.0), 10.0) == 1.0  # the future tells nothing
    assert newest((500.0, 600.0), 10.0) == 10.0  # unless nothing else is there
    assert newest((10.5,), 10.0) == 10.0


def change_before_unlink(then: Callable[[], object]) -> Files:
    """Files that let something happen before the first deletion, when everything has been planned."""

    class Meanwhile(Files):
        done = False

        def open_lock(self, path: Path) -> int:
            if path.name == "turns.lock" and not self.done:
                self.done = True
                then()
            return super().open_lock(path)

    return Meanwhile()


@pytest.mark.parametrize("again", [True, False])
def test_what_is_used_again_after_the_plan_stays(store: DiskStore, again: bool) -> None:
    shared, _ = store.put_object(b"again")
    put_package(store, b"old")
    time.sleep(0.01)

    def use() -> None:
        if again:
            store.put_object(b"again")
        else:  # it was put long before
            store.publish(manifest_of(b"again", target="new"))

    files = change_before_unlink(use)
    done = collected(root_of(store), files=files)
    assert [one.reason for one in done.spared] == ["changed"]
    assert shared in objects(root_of(store))
    check_whole(store)
    assert [ref.target for ref in store.refs()] == ([] if again else ["new"])


def test_a_package_that_is_published_again_after_the_plan_stays(store: DiskStore) -> None:
    manifest = manifest_of(b"one")
    put_package(store, b"one")
    put_package(store, b"two")
    files = change_before_unlink(lambda: store.publish(manifest))
    done = collected(root_of(store), files=files)
    assert {one.reason for one in done.spared} == {"changed"}
    check_whole(store)
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == manifest


def test_a_package_that_is_published_again_while_it_goes_stays(store: DiskStore) -> None:
    ref = put_package(store, b"one")
    path = store.layout.object(ref.manifest)
    before = path.stat()

    class Meanwhile(Files):
        def fsync_directory(self, path: Path | str, dir_fd: int | None = None) -> None:
            super().fsync_directory(path, dir_fd)
            place = Path(f"/proc/self/fd/{dir_fd}").readlink()
            if place.name == "model" and not list(store.refs()):
                store.publish(manifest_of(b"one"))
                # As a clock would have it that ticks seldom.
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    done = collected(root_of(store), files=Meanwhile())
    assert [one.reason for one in done.spared] == ["changed"]
    check_whole(store)
    assert [one.manifest for one in store.refs()] == [ref.manifest]


def test_a_package_that_is_loaded_after_the_plan_stays(store: DiskStore) -> None:
    ref = put_package(store, b"one", b"shared")
    put_package(store, b"two", b"shared", target="other")
    leases = []
    files = change_before_unlink(lambda: leases.append(store.lease(ref.manifest)))
    done = collected(root_of(store), files=files)
    assert [(one.digest, one.reason) for one in done.spared] == [(ref.manifest, "leased")]
    assert [one.target for one in done.deleted] == ["other"]
    check_whole(store)  # what it shares with the other one is there
    assert [one.target for one in store.refs()] == ["model"]


def test_a_publication_waits_for_a_deletion_and_not_for_long(store: DiskStore) -> None:
    files = Files()
    with collectors_turn(files, store.layout) as mine:
        assert mine
        with (
            pytest.raises(StoreError, match="held by a collection"),
            writers_turn(files, store.layout, patience_seconds=0.05),
        ):
            raise AssertionError
        writer = threading.Thread(target=put_package, args=(store, b"one"))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert list(store.refs()) == []
    writer.join(300)
    assert [ref.target for ref in store.refs()] == ["model"]


def test_writers_do_not_wait_for_each_other(store: DiskStore) -> None:
    files = Files()
    with writers_turn(files, store.layout), writers_turn(files, store.layout):
        put_package(store, b"one")
        with collectors_turn(files, store.layout, patience_seconds=0.05) as mine:
            assert not mine


def test_a_collector_that_gets_no_turn_deletes_nothing(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        collectors_turn.__wrapped__,
        "__kwdefaults__",
        {  # type: ignore[attr-defined]
            "patience_seconds": 0.05,
            "sleep": time.sleep,
        },
    )
    put_package(store, b"one")
    store.put_object(b"lost")
    before = objects(root_of(store))
    with writers_turn(Files(), store.layout):
        done = collected(root_of(store))
    assert {one.reason for one in done.spared} == {"busy"}
    assert len(done.spared) == 2
    assert objects(root_of(store)) == before


def test_a_second_collector_says_so(store: DiskStore) -> None:
    files = Files()
    descriptor = files.open_lock(store.layout.collector_lock)
    try:
        assert files.try_lock(descriptor, exclusive=True)
        with pytest.raises(BusyError, match="Another process is collecting"):
            collected(root_of(store))
        later_store(root_of(store)).collector().plan(NOTHING)  # looking is always possible
    finally:
        files.close(descriptor)


@pytest.mark.parametrize("name", ["collector.lock", "turns.lock"])
def test_locks_belong_to_the_writers_alone(store: DiskStore, name: str) -> None:
    """An account that may only read must not be able to hold up publications."""
    path = store.layout.locks / name
    owner = 12345 if os.geteuid() == 0 else os.geteuid()
    path.unlink(missing_ok=True)
    if os.geteuid() == 0:
        os.chown(store.layout.locks, owner, owner)
    descriptor = open_lock(Files(), path)
    assert descriptor is not None
    os.close(descriptor)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_uid == owner


def test_there_must_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no store"):
        DiskStore(tmp_path / "none").collector()


@pytest.mark.parametrize("directory", ["refs", "objects"])
def test_a_store_that_is_half_there_is_not_collected(store: DiskStore, directory: str) -> None:
    put_package(store, b"one")
    place = store.layout.version / directory
    place.rename(place.with_name("elsewhere"))
    with pytest.raises(StoreError, match=directory):
        collected(root_of(store))
    place.with_name("elsewhere").rename(place)
    check_whole(store)


def test_what_cannot_be_read_ends_a_collection(store: DiskStore) -> None:
    put_package(store, b"one")
    before = objects(root_of(store))
    for name in ("entries", "read"):
        with pytest.raises(StoreError):
            collected(root_of(store), files=Refusing(name, OSError(13, "denied")))
    assert objects(root_of(store)) == before


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"format": 99, "target": "model", "manifest": "x"}', b"x" * 70_000]
)
def test_a_damaged_ref_keeps_all_packages_of_its_target(store: DiskStore, text: bytes) -> None:
    ref = put_package(store, b"one")
    put_package(store, b"two", target="other")
    path = store.layout.ref("model", ENVIRONMENT)
    path.chmod(0o644)
    path.write_bytes(text)
    done = collected(root_of(store))
    assert [one.target for one in done.deleted] == ["other"]
    assert {ref.manifest, sha256(b"one")} <= objects(root_of(store))
    assert any("All packages of its target are kept" in note for note in done.plan.notes)


def test_a_manifest_of_another_format_keeps_what_it_may_name(store: DiskStore) -> None:
    part, _ = store.put_object(b"one")
    text = b'{"format":99,"target":"model","parts":{"new":"%s"}}' % part.encode()
    manifest, _ = store.put_object(text)
    lost, _ = store.put_object(b"lost")
    done = collected(root_of(store), Rules())
    assert [one.digest for one in done.deleted] == [lost]
    assert {part, manifest} <= objects(root_of(store))


@pytest.mark.parametrize("text", [b'{"format":', b'{"format": 2}', b'{"format":2}', b"\xff" * 40])
def test_an_object_that_only_begins_like_a_manifest_is_an_object(
    store: DiskStore, text: bytes
) -> None:
    lost, _ = store.put_object(text)
    assert [one.digest for one in collected(root_of(store), Rules()).deleted] == [lost]


def test_a_damaged_package_goes_like_any_other(store: DiskStore) -> None:
    ref = put_package(store, b"one", b"two")
    store.layout.object(sha256(b"one")).unlink()
    path = store.layout.object(ref.manifest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-10] + b" " * 10)
    with pytest.raises(CorruptedError):
        store.read_package("model", ENVIRONMENT)
    done = collected(root_of(store))
    assert objects(root_of(store)) == set()
    assert list(store.refs()) == []
    assert done.spared == ()


@pytest.mark.parametrize("damage", [b"", b"x" * 50, b'{"format":2,"target":"model"}'])
def test_a_collector_does_not_believe_what_a_damaged_file_said(
    store: DiskStore, damage: bytes
) -> None:
    ref = put_package(store, b"one")
    path = store.layout.object(ref.manifest)
    text = path.read_bytes()
    collector = later_store(root_of(store)).collector()
    path.chmod(0o644)
    path.write_bytes(damage)
    assert [one.digest for one in collector.plan(Rules()).deletions] == [sha256(b"one")]
    store.put_object(text)  # and now it is whole again
    assert collector.plan(Rules()).deletions == ()


def test_left_over_temporary_files_go(store: DiskStore) -> None:
    (store.layout.temporary / "somebody.1.2").touch()
    assert collected(root_of(store)).left_over == 1


class Calls(Files):
    """Counts what the store asks of the file system."""

    def __init__(self) -> None:
        self.made: collections.Counter[str] = collections.Counter()


def _counted(name: str) -> Callable[..., Any]:
    def call(self: Calls, *arguments: Any, **named: Any) -> Any:
        self.made[name] += 1
        return getattr(Files, name)(self, *arguments, **named)

    return call


for _name in [name for name in vars(Files) if not name.startswith("_")]:
    setattr(Calls, _name, _counted(_name))


def filled(root: Path, packages: int) -> DiskStore:
    store = DiskStore(root, create=True)
    for number in range(packages):
        put_package(store, b"shared", b"own %d" % number, target=f"target {number}")
    return store


def test_a_publication_looks_at_no_more_files_in_a_large_store(tmp_path: Path) -> None:
    counts = []
    for packages in (2, 30):
        root = filled(tmp_path / str(packages), packages).layout.root
        for part in (b"new", encode(manifest_of(b"new"))):  # its directories are there
            (root / "v1" / "objects" / sha256(part)[:2]).mkdir(exist_ok=True)
        files = Calls()
        store = DiskStore(root, create=True, files=files)
        files.made.clear()
        put_package(store, b"new")
        counts.append(files.made)
    assert counts[0] == counts[1]
    assert counts[0]["names"] == counts[0]["entries"] == 0


def test_the_work_of_a_collection_grows_with_the_store_and_no_faster(tmp_path: Path) -> None:
    totals = []
    for packages in (10, 20, 40):
        root = filled(tmp_path / str(packages), packages).layout.root
        files = Calls()
        collector = later_store(root, files=files).collector()
        files.made.clear()
        collector.collect(NOTHING)
        # There are at most 256 directories of objects, however many objects there are.
        totals.append(files.made.total() - files.made["entries"])
    first, second = totals[1] - totals[0], totals[2] - totals[1]
    assert second <= 2.1 * first


def test_a_collector_reads_a_manifest_once(store: DiskStore) -> None:
    class Counting(Files):
        reads = 0

        def read(self, descriptor: int, count: int) -> bytes:
            self.reads += 1
            return super().read(descriptor, count)

    for number in range(3):
        put_package(store, b"own %d" % number)
    put_package(store, b"other", target="other")
    files = Counting()
    collector = later_store(root_of(store), files=files).collector()
    first = collector.plan(NOTHING)
    files.reads = 0
    assert collector.plan(NOTHING).deletions == first.deletions
    assert files.reads == 2  # the refs


def test_of_two_leases_each_ends_by_itself(store: DiskStore) -> None:
    ref = put_package(store, b"one")
    first, second = store.lease(ref.manifest), store.lease(ref.manifest)
    assert first is not None
    assert second is not None
    first.release()
    assert not first.held
    assert second.held
    done = collected(root_of(store))
    assert done.deleted == ()
    check_whole(store)
    second.release()
    assert [one.digest for one in collected(root_of(store)).deleted] == [ref.manifest]
