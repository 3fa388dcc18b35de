"""Collectors that fail or die at any moment, and readers and writers in other processes meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_store_crash import CALLS, Failing, Killed, die, raise_error

from preheat.errors import CorruptedError, StoreError
from preheat.store import DiskStore
from preheat.store.collection import Limits, Rules
from preheat.store.files import Files
from preheat.store.leases import read_leased
from support.collecting import check_whole, later_store, put_package
from support.manifests import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parents[1]
NOTHING = Rules(store=Limits(max_bytes=0), keep_generations=0)
# One generation of each name is left, and what the other rules take is gone.
SOME = Rules(keep_generations=0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets with generations that share objects, and what nothing names."""
    root = tmp_path_factory.mktemp("prepared") / "store"
    store = DiskStore(root, create=True)
    put_package(store, b"shared", b"first")
    put_package(store, b"shared", b"second")
    put_package(store, b"shared", b"other", target="other")
    store.put_object(b"lost")
    return root


def digests(root: Path) -> set[str]:
    return set(DiskStore(root).object_digests())


class FailingChanges(Failing):
    """The same at calls that change or lock something: between two of them the disk stays as it is."""


for _name in CALLS:
    if _name not in ("unlink", "touch", "fsync_directory", "open_lock", "try_lock"):
        setattr(FailingChanges, _name, getattr(Files, _name))

KILLED = die, Killed
ERROR = raise_error(errno.EIO), StoreError
REFUSAL = raise_error(errno.EROFS), StoreError


@pytest.mark.parametrize(
    ("double", "rules", "wrong", "once"),
    [
        (FailingChanges, NOTHING, KILLED, False),
        (FailingChanges, SOME, KILLED, False),
        (FailingChanges, NOTHING, REFUSAL, False),
        (Failing, NOTHING, ERROR, True),
    ],
    ids=["killed", "killed-with-packages-left", "refused-from-then-on", "one-error"],
)
def test_the_end_of_a_collector_at_any_call(
    tmp_path: Path,
    prepared: Path,
    double: type[Failing],
    rules: Rules,
    wrong: tuple[Callable[[str], None], type[BaseException]],
    once: bool,
) -> None:
    instead, expected = wrong
    whole = tmp_path / "whole"
    shutil.copytree(prepared, whole)
    later_store(whole).collector().collect(rules)
    left = digests(whole)
    number, reached = 0, True
    while reached:
        # Between two reads there is nothing to tell apart, so not every one of the many is tried.
        number += 3 if double is Failing else 1
        root = tmp_path / str(number)
        shutil.copytree(prepared, root)
        files = double(None, instead, once=once)
        store = later_store(root, files=files)
        collector = store.collector()
        files.count, files.first = 0, number
        try:
            collector.collect(rules)
            reached = files.count >= number
        except expected:
            pass
        check_whole(DiskStore(root))
        later_store(root).collector().collect(rules)  # the next one finishes
        assert digests(root) == left
        check_whole(DiskStore(root))
        put_package(DiskStore(root, create=True), b"shared", b"first")  # and all goes on
        check_whole(DiskStore(root))
        shutil.rmtree(root)
    assert number > (200 if double is Failing else 12)


READER = """
import sys
from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.leases import read_leased

root, target, environment = sys.argv[1:]
store = DiskStore(root)
found = read_leased(store, target, environment)
assert found.lease.held
print("ready", flush=True)
sys.stdin.readline()
for needed in found.manifest.objects():
    store.open_object(needed).close()
print("whole", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A process that has leased a package and has read none of its objects yet."""
    root = tmp_path / "store"
    put_package(DiskStore(root, create=True), b"one", b"shared")
    put_package(DiskStore(root, create=True), b"two", b"shared", target="other")
    command = [sys.executable, "-c", READER, str(root), "model", ENVIRONMENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield root, process
        process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_store_is_cleared_under_a_reader(reader: tuple[Path, subprocess.Popen[str]]) -> None:
    root, process = reader
    done = later_store(root, days=900).collector().collect(NOTHING)
    assert [one.target for one in done.deleted] == ["other"]
    assert done.plan.leases == 1
    tell(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "whole\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = later_store(root).collector().collect(NOTHING)
    assert [one.target for one in done.deleted] == ["model"]
    assert digests(root) == set()


def test_a_new_generation_does_not_take_the_old_one_from_its_reader(
    reader: tuple[Path, subprocess.Popen[str]],
) -> None:
    root, process = reader
    put_package(DiskStore(root, create=True), b"three")
    done = later_store(root).collector().collect(SOME)
    assert done.deleted == ()
    tell(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "whole\n"
    tell(process)
    assert process.wait() == 0
    done = later_store(root).collector().collect(SOME)
    assert [one.reason for one in done.deleted] == ["superseded"]
    check_whole(DiskStore(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read as another account")
def test_another_account_leases_a_store_that_it_may_only_read(tmp_path_factory: object) -> None:
    # Not below pytest's own directory, which other accounts cannot enter.
    root = Path("/var/tmp") / f"preheat-test-{os.getpid()}"  # noqa: S108 - private by mode below
    root.mkdir(mode=0o755)
    try:
        put_package(DiskStore(root / "store", create=True), b"one")
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setgid(65534)
                os.setuid(65534)
                store = DiskStore(root / "store", trusted_owners=frozenset({0}))
                found = read_leased(store, "model", ENVIRONMENT)
                held = found is not None and found.lease is not None and found.lease.held
                code = 0 if held else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        shutil.rmtree(root)


def test_forked_processes_share_the_lease(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = DiskStore(root, create=True)
    put_package(store, b"one")
    found = read_leased(store, "model", ENVIRONMENT)
    assert found is not None
    go, wait = os.pipe()
    child = os.fork()
    if not child:
        os.close(wait)
        os.read(go, 1)
        os._exit(0)
    os.close(go)
    del found
    assert later_store(root).collector().plan(NOTHING).leases == 1
    os.close(wait)
    os.waitpid(child, 0)
    assert later_store(root).collector().plan(NOTHING).leases == 0


WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from preheat.errors import CorruptedError, StoreError
from preheat.store import DiskStore
from support.collecting import put_package

store = DiskStore(sys.argv[1], create=True)
print("ready", flush=True)
number = 0
while True:
    number += 1
    try:
        put_package(store, b"shared", b"own %d" % (number % 7))
    except StoreError as error:
        # Deleted after it was put and before it was published: that took longer than the grace.
        assert "was not published" in error.message, error
"""

# The grace is longer than a tick of the file system's clock, and shorter than many a publication here.
COLLECTOR = """
import sys
from preheat.store import DiskStore
from preheat.store.collection import Limits, Rules

collector = DiskStore(sys.argv[1], create=True).collector()
print("ready", flush=True)
while True:
    collector.collect(Rules(store=Limits(max_bytes=0), keep_generations=0, grace_seconds=0.03))
"""


def test_readers_see_whole_packages_or_none_while_everything_is_collected(tmp_path: Path) -> None:
    """Everything that is older than some milliseconds goes all the time, and is published again."""
    root = tmp_path / "store"
    DiskStore(root, create=True)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(root), str(TESTS)], stdout=subprocess.PIPE, text=True
        )
        for code in (WRITER, COLLECTOR)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        store = DiskStore(root)
        whole = none = 0
        while (whole < 40 or none < 10) and whole + none < 100_000:
            assert all(process.poll() is None for process in processes)
            try:
                found = read_leased(store, "model", ENVIRONMENT)
            except CorruptedError as error:  # the ref was new twice, and its manifest gone twice
                assert "The manifest" in error.message
                found = None
            if found is None:
                none += 1
                continue
            if found.lease is None:
                continue
            for needed in found.manifest.objects():
                store.open_object(needed).close()  # raises when it is missing
            whole += 1
            del found
        assert whole >= 40
        assert none >= 10
    finally:
        for process in processes:
            process.kill()
            with process:
                process.wait()
    check_whole(DiskStore(root))
