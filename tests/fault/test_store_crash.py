"""Writers that fail or die at any moment: what readers see, and what the next writer finds."""

from __future__ import annotations

import dataclasses
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.errors import CorruptedError, PreheatError, StoreError
from preheat.manifest import decode_manifest, encode, sha256
from preheat.store import DiskStore
from preheat.store.files import Files
from support.faults import (
    BROKEN,
    FULL,
    NEW,
    OLD,
    FailingFiles,
    Killed,
    Operation,
    die,
    fail_at_every_call,
    next_call,
    opened,
)
from support.manifests import ENVIRONMENT, SAMPLE, manifest_of
from support.operations import BUILD, DURABLE, OPERATIONS, PUBLISH, PUT, REMEMBER, has_published
from support.power import fail_then_lose_power, lose_power_at_every_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.manifest import Ref


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@pytest.mark.parametrize(("instead", "once"), [(BROKEN, True), (FULL, False)], ids=["once", "on"])
def test_an_error_at_any_call(
    tmp_path: Path, operation: Operation, instead: Callable[[str], None], once: bool
) -> None:
    expected = (PreheatError, OSError) if operation is REMEMBER else PreheatError
    assert fail_at_every_call(operation, tmp_path, instead, expected, once=once) >= 4


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_the_end_at_any_call(tmp_path: Path, operation: Operation) -> None:
    # From then on: not even the cleaning up happens.
    assert fail_at_every_call(operation, tmp_path, die, Killed, once=False) >= 4


@pytest.mark.parametrize("operation", DURABLE, ids=str)
def test_a_loss_of_power_at_any_call(tmp_path: Path, operation: Operation) -> None:
    changes, disks = lose_power_at_every_call(operation, tmp_path)
    assert changes >= 5
    assert disks > 5


def test_a_loss_of_power_while_the_store_is_made(tmp_path: Path) -> None:
    changes, disks = lose_power_at_every_call(BUILD, tmp_path, founded=False)
    assert changes > 50
    assert disks > 200


def test_the_work_of_a_dead_process_that_the_next_one_goes_on_with_is_durable(
    tmp_path: Path,
) -> None:
    assert fail_then_lose_power(BUILD, tmp_path, die, Killed, has_published) > 50


def test_the_model_of_a_disk_shows_what_a_missing_fsync_costs(tmp_path: Path) -> None:
    """A writer that leaves out an fsync, of bytes or of a name, is caught by these tests."""
    for left_out in ("fsync", "fsync_directory"):

        def forgetful(store: DiskStore, files: Files, left_out: str = left_out) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(files), left_out, lambda *_: None)
                store.publish(manifest_of(NEW))

        operation = dataclasses.replace(PUBLISH, act=forgetful)
        with pytest.raises((AssertionError, CorruptedError)):
            lose_power_at_every_call(operation, tmp_path / left_out)


@pytest.mark.parametrize(("instead", "expected"), [(FULL, StoreError), (die, Killed)])
def test_a_failure_while_the_store_is_made(
    tmp_path: Path, instead: Callable[[str], None], expected: type[BaseException]
) -> None:
    number = 0
    reached = True
    while reached:
        number = next_call(number)
        root = tmp_path / str(number) / "store"
        files = FailingFiles(number, instead, once=False)
        try:
            opened(root, files)
            reached = files.count >= number
        except expected:
            assert DiskStore(root).read_package("model", ENVIRONMENT) is None
        PUT.make(root)
        PUT.check_all(root)
    assert number > 20


def test_bytes_are_on_disk_before_a_name_leads_to_them(tmp_path: Path) -> None:
    calls: list[str] = []

    def place(descriptor: int | None) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    class Recording(Files):
        def write(self, descriptor: int, data: memoryview) -> int:
            calls.append("write")
            return super().write(descriptor, data)

        def fsync(self, descriptor: int) -> None:
            calls.append("fsync")
            super().fsync(descriptor)

        def replace(
            self,
            source: Path | str,
            destination: Path | str,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
        ) -> None:
            calls.append(f"replace {place(dst_dir_fd)}")
            super().replace(source, destination, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        def fsync_directory(self, path: Path | str, dir_fd: int | None = None) -> None:
            calls.append(f"fsync {place(dir_fd)}")
            super().fsync_directory(path, dir_fd)

    PUT.make(tmp_path)
    store = DiskStore(tmp_path, create=True, files=Recording())
    calls.clear()
    store.put_object(NEW)
    store.publish(manifest_of(NEW))
    new, manifest = sha256(NEW)[:2], sha256(encode(manifest_of(NEW)))[:2]
    steps: list[str] = []
    for place in (new, manifest, "model"):
        steps += ["write", "fsync", f"replace {place}", f"fsync {place}"]
    # The directories of these names have names themselves.
    parents = ("fsync objects", "fsync refs")
    assert [call for call in calls if call not in parents] == steps


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    class Trickling(Files):
        def write(self, descriptor: int, data: memoryview) -> int:
            return super().write(descriptor, data[:100])

        def read(self, descriptor: int, count: int) -> bytes:
            return super().read(descriptor, min(count, 100))

    store = DiskStore(tmp_path, create=True, files=Trickling())
    store.put_object(OLD)
    store.publish(manifest_of(OLD))
    package = DiskStore(tmp_path).read_package("model", ENVIRONMENT)
    assert package is not None
    assert package == store.read_package("model", ENVIRONMENT)
    assert store.open_object(package[1].objects()[0]).read() == OLD


WRITER = """
import sys
from pathlib import Path
import msgspec
from preheat.manifest import Form, ObjectRef, decode_manifest
from preheat.store import DiskStore

root, sample, mark = sys.argv[1:]
store = DiskStore(root, create=True)
sample = decode_manifest(Path(sample).read_bytes())
print("ready", flush=True)
for number in range(int(mark), 1_000_000, 10):
    parts = []
    for name in ("one", "two"):
        content = f"{number} {name} ".encode() * 5000
        digest, size = store.put_object(content)
        parts.append(ObjectRef(name=name, sha256=digest, size=size))
    form = Form(kind="dynamo", format=1, objects=tuple(parts))
    store.publish(msgspec.structs.replace(sample, factory=str(number), forms=(form,)))
"""


def check_whole(store: DiskStore) -> Ref | None:
    """Read the package as a worker does."""
    package = store.read_package("model", ENVIRONMENT)
    if package is None:
        return None
    ref, manifest = package
    for needed in manifest.objects():
        opened = store.open_object(needed)
        assert opened.read() == f"{manifest.factory} {needed.name} ".encode() * 5000
        opened.close()
    return ref


def test_readers_see_whole_packages_while_writers_are_killed(tmp_path: Path) -> None:
    sample = tmp_path / "sample.json"
    sample.write_bytes(encode(decode_manifest(SAMPLE)))
    root = tmp_path / "store"
    reader = DiskStore(root)
    chance = random.Random(20)  # noqa: S311 - moments of death, no secret
    last: Ref | None = None
    for round_number in range(6):
        arguments = [sys.executable, "-c", WRITER, str(root), str(sample)]
        writers = [
            subprocess.Popen([*arguments, str(mark)], stdout=subprocess.PIPE)
            for mark in (2 * round_number, 2 * round_number + 1)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        reads = chance.randrange(20, 60)
        seen = last
        while reads > 0 or seen == last:  # at least one new package in each round
            seen = check_whole(reader)
            reads -= 1
            assert all(writer.poll() is None for writer in writers)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            with writer:
                assert writer.wait() == -signal.SIGKILL
        last = check_whole(reader)
    writing = DiskStore(root, create=True)
    writing.sweep_temporary()
    assert list(writing.layout.temporary.iterdir()) == []
    assert list(writing.refs()) == [last]
