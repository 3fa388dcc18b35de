"""Writers that fail or die at any moment: what readers see, and what the next writer finds."""

from __future__ import annotations

import errno
import functools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from preheat.errors import StoreError
from preheat.manifest import (
    decode_manifest,
    encode,
    sha256,
)
from preheat.store import DiskStore
from preheat.store.files import Files
from support.manifests import ENVIRONMENT, SAMPLE, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheat.manifest import Ref

OLD, NEW = b"old" * 1000, b"new" * 1000
CALLS = [
    name
    for name in vars(Files)
    if not name.startswith("_") and name not in ("process_exists", "close")
]


class Killed(BaseException):
    """Stands for the end of the process: no handler may look at it."""


class Failing(Files):
    """Does something instead of call number ``first``, or of all from there on; None: just counts.

    Closing is left alone, as it is by a dying process: descriptors would leak into the tests.
    """

    def __init__(self, first: int | None, instead: Callable[[str], None], *, once: bool) -> None:
        self.count = 0
        self.first = first
        self.instead = instead
        self.once = once

    def process_exists(self, pid: int) -> bool:
        return False  # so that the next writer, which is this process, finds the files left over


def _counted(name: str) -> Callable[..., Any]:
    real = getattr(Files, name)

    @functools.wraps(real)
    def call(self: Failing, *arguments: Any, **named: Any) -> Any:
        self.count += 1
        first = self.first
        if first is not None and (self.count == first or (self.count > first and not self.once)):
            self.instead(name)
        return real(self, *arguments, **named)

    return call


for _name in CALLS:
    setattr(Failing, _name, _counted(_name))


def raise_error(number: int) -> Callable[[str], None]:
    def instead(name: str) -> None:
        raise OSError(number, f"{os.strerror(number)} (in {name})")

    return instead


def die(name: str) -> None:
    raise Killed(name)


def put_new(store: DiskStore) -> None:
    store.put_object(NEW)
    store.put_object(OLD)


def put_new_file(store: DiskStore) -> None:
    source = store.layout.root.parent / "source"
    source.write_bytes(NEW)
    store.put_object(source)
    source.write_bytes(OLD)
    store.put_object(source)


def publish_new(store: DiskStore) -> None:
    store.publish(manifest_of(NEW))


def publish_another(store: DiskStore) -> None:
    store.publish(manifest_of(NEW, target="another"))


def prepared(root: Path, action: Callable[[DiskStore], None]) -> None:
    """A store with the old package, and what ``action`` needs."""
    store = DiskStore(root, create=True)
    store.put_object(OLD)
    store.publish(manifest_of(OLD))
    if action in (publish_new, publish_another):
        store.put_object(NEW)


def check_recovered(root: Path) -> None:
    """The name leads to the old or the new package, whole; the next writer and the sweep succeed."""
    store = DiskStore(root, create=True, files=Failing(None, die, once=True))
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] in (manifest_of(OLD), manifest_of(NEW))
    for needed in package[1].objects():
        store.open_object(needed).close()
    for digest in store.object_digests():  # whatever has an object's name is that object
        assert sha256(store.layout.object(digest).read_bytes()) == digest
    store.put_object(NEW)
    assert store.publish(manifest_of(NEW)).generation > package[0].generation
    store.sweep_temporary()
    assert list(store.layout.temporary.iterdir()) == []
    after = store.read_package("model", ENVIRONMENT)
    assert after is not None
    assert after[1] == manifest_of(NEW)


def every_call(
    tmp_path: Path,
    action: Callable[[DiskStore], None],
    instead: Callable[[str], None],
    expected: type[BaseException],
    *,
    once: bool,
) -> int:
    """Let ``action`` go wrong at its first call, its second, ... until it gets through."""
    number = 0
    while True:
        number += 1
        root = tmp_path / str(number) / "store"
        prepared(root, action)
        files = Failing(None, instead, once=once)
        store = DiskStore(root, create=True, files=files)
        files.count, files.first = 0, number
        try:
            action(store)
            reached = files.count >= number
        except expected:
            reached = True
        check_recovered(root)
        if not reached:
            return number - 1


ACTIONS = [put_new, put_new_file, publish_new, publish_another]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("once", [True, False], ids=["once", "from-then-on"])
def test_an_error_at_any_call(
    tmp_path: Path, action: Callable[[DiskStore], None], number: int, once: bool
) -> None:
    assert every_call(tmp_path, action, raise_error(number), StoreError, once=once) > 20


@pytest.mark.parametrize("action", ACTIONS)
def test_the_end_at_any_call(tmp_path: Path, action: Callable[[DiskStore], None]) -> None:
    # From then on: not even the cleaning up happens.
    assert every_call(tmp_path, action, die, Killed, once=False) > 20


@pytest.mark.parametrize(
    ("instead", "expected"), [(raise_error(errno.ENOSPC), StoreError), (die, Killed)]
)
def test_a_failure_while_the_store_is_made(
    tmp_path: Path, instead: Callable[[str], None], expected: type[BaseException]
) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        root = tmp_path / str(number) / "store"
        files = Failing(number, instead, once=False)
        try:
            DiskStore(root, create=True, files=files)
            reached = files.count >= number
        except expected:
            assert DiskStore(root).read_package("model", ENVIRONMENT) is None
        prepared(root, put_new)
        check_recovered(root)
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

    prepared(tmp_path, put_new)
    store = DiskStore(tmp_path, create=True, files=Recording())
    store.put_object(NEW)
    store.publish(manifest_of(NEW))
    new, manifest = sha256(NEW)[:2], sha256(encode(manifest_of(NEW)))[:2]
    steps: list[str] = []
    for place in (new, manifest, "model"):
        steps += ["write", "fsync", f"replace {place}", f"fsync {place}"]
    # The first object with these two digits also makes their directory.
    assert [call for call in calls if call != "fsync objects"] == steps


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
