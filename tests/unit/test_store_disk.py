"""What only the disk store has: making it, denied access, quarantine, left-over files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat.errors import CorruptedError, StoreError, UntrustedStoreError
from preheat.manifest import MAX_MANIFEST_BYTES, MAX_REF_BYTES, ObjectRef, sha256
from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.temporary import GRACE_SECONDS, process_space, temporary_name
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PART = ObjectRef(name="part0", sha256=sha256(b"content"), size=7)


class Denying(Files):
    """Every change is denied with one error number; reading works."""

    def __init__(self, number: int) -> None:
        self.number = number

    def _deny(self, *_: Any, **__: Any) -> Any:
        raise OSError(self.number, os.strerror(self.number))

    create = mkdir = replace = unlink = fchmod = chmod = touch = fsync_directory = _deny


def filled(root: Path) -> DiskStore:
    store = DiskStore(root, create=True)
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))
    return store


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_missing_store_is_empty_and_stays_missing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "none")
    assert store.read_ref("model", ENVIRONMENT) is None
    assert store.read_package("model", ENVIRONMENT) is None
    assert list(store.refs()) == list(store.refs("model")) == []
    assert list(store.object_digests()) == []
    with pytest.raises(CorruptedError):
        store.open_object(PART)
    for write in (lambda: store.put_object(b""), lambda: store.publish(manifest_of())):
        with pytest.raises(StoreError, match="There is no store at"):
            write()
    assert not (tmp_path / "none").exists()


def test_a_file_in_place_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert DiskStore(tmp_path / "file").read_ref("model", ENVIRONMENT) is None
    with pytest.raises(StoreError, match="file"):
        DiskStore(tmp_path / "file", create=True)


def test_what_is_created(tmp_path: Path, umask: None) -> None:
    store = filled(tmp_path / "a" / "store")
    layout = store.layout
    assert layout.format_file.read_bytes() == b"preheat store 1\n"
    assert layout.cachedir_tag.read_bytes().startswith(
        b"Signature: 8a477f597d28d172789f06886806bc55"
    )
    # The root has the mode that the user wants; what is in it can be read by whoever gets there.
    assert mode(layout.root) == 0o700
    assert mode(layout.state) == 0o700
    assert {mode(directory) for directory in layout.directories} == {0o755}
    assert mode(layout.object(PART.sha256)) == mode(layout.ref("model", ENVIRONMENT)) == 0o444
    assert mode(layout.object(PART.sha256).parent) == 0o755
    assert list(layout.temporary.iterdir()) == []


def test_an_interrupted_creation_is_finished(tmp_path: Path) -> None:
    (tmp_path / "v1" / "tmp").mkdir(parents=True)
    (tmp_path / "lost+found").mkdir()
    assert DiskStore(tmp_path).read_ref("model", ENVIRONMENT) is None
    filled(tmp_path)
    assert DiskStore(tmp_path).read_package("model", ENVIRONMENT) is not None


def test_a_store_that_was_removed_is_made_again(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "away")
    assert store.read_ref("model", ENVIRONMENT) is None
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))
    assert DiskStore(tmp_path / "store").read_package("model", ENVIRONMENT) is not None


def test_somebodys_directory_is_not_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match=r"holds 'thesis\.tex'"):
        DiskStore(tmp_path, create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (b"preheat store 2\n", "FORMAT says", "PREHEAT_STORE"),
        (b"", "is damaged", "preheat fsck"),
        (b"\xff\xfe", "is damaged", "preheat fsck"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, text: bytes, message: str, remedy: str) -> None:
    store = filled(tmp_path)
    store.layout.format_file.chmod(0o644)
    store.layout.format_file.write_bytes(text)
    for use in (
        lambda: DiskStore(tmp_path, create=True),
        lambda: DiskStore(tmp_path).read_ref("model", ENVIRONMENT),
        lambda: DiskStore(tmp_path).put_object(b""),
    ):
        with pytest.raises(StoreError, match=message) as raised:
            use()
        assert str(tmp_path) in raised.value.message
        assert remedy in raised.value.remedy


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, f"by uid {os.geteuid()}"),
        (errno.EROFS, "read-only file system"),
        (errno.ENOSPC, "No space left"),
        (errno.EIO, "cannot be written"),
    ],
)
def test_denied_changes_are_explained(tmp_path: Path, number: int, words: str) -> None:
    filled(tmp_path / "there")
    denied = DiskStore(tmp_path / "there", files=Denying(number))
    changes: list[Callable[[], object]] = [
        lambda: DiskStore(tmp_path / "new", create=True, files=Denying(number)),
        lambda: denied.put_object(b"new"),
        lambda: denied.publish(manifest_of(b"content", target="new")),
        lambda: denied.quarantine_object(PART.sha256, reason=""),
    ]
    for change in changes:
        with pytest.raises(StoreError, match=words) as raised:
            change()
        assert str(tmp_path) in raised.value.message
        assert raised.value.remedy


def test_reading_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    reader = DiskStore(tmp_path, files=Denying(errno.EROFS))
    package = reader.read_package("model", ENVIRONMENT)
    assert package is not None
    assert [ref.target for ref in reader.refs()] == ["model"]
    opened = reader.open_object(PART)
    assert opened.read() == b"content"
    opened.close()


def test_a_read_that_fails_on_the_disk_is_damage(tmp_path: Path) -> None:
    class Broken(Files):
        number = errno.EIO

        def read(self, descriptor: int, count: int) -> bytes:
            raise OSError(self.number, os.strerror(self.number))

    filled(tmp_path)
    broken = DiskStore(tmp_path)
    assert broken.read_ref("model", ENVIRONMENT) is not None
    broken = DiskStore(tmp_path, files=Broken())
    with pytest.raises(CorruptedError):
        broken.read_ref("model", ENVIRONMENT)
    Broken.number = errno.ESTALE
    with pytest.raises(CorruptedError, match="not in the store"):
        broken.open_object(PART)


def as_another_user(work: Callable[[], object]) -> str:
    """What ``work`` says as uid 65534, in a process of its own; its error if it raised."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                answer = str(work())
            except StoreError as error:
                answer = f"{type(error).__name__}: {error}"
            except BaseException:
                answer = traceback.format_exc()
            os.write(sending, answer.encode()[:60_000])
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_workers_of_another_user_read_but_do_not_write() -> None:
    # Not below the directories of pytest, which are closed to others.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        root = Path(directory) / "store"
        filled(root)

        def read() -> bytes:
            store = DiskStore(root)
            assert store.read_package("model", ENVIRONMENT) is not None
            return store.open_object(PART).read()

        assert as_another_user(read) == repr(b"content")
        for change in (
            lambda: DiskStore(root).put_object(b"new"),
            lambda: DiskStore(root).put_object(b"content"),
            lambda: DiskStore(Path(directory) / "other", create=True),
        ):
            answer = as_another_user(change)
            assert answer.startswith("StoreError: ")
            assert "cannot be written by uid 65534" in answer
        root.chmod(0o700)
        assert "cannot be read by uid 65534" in as_another_user(read)


def test_putting_again_marks_the_object_as_used(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = store.layout.object(PART.sha256)
    os.utime(path, (0, 0))
    store.put_object(b"content")
    assert path.stat().st_mtime > 0


def test_digests_are_listed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (manifest,) = store.manifest_digests()
    assert sorted(store.object_digests()) == sorted([PART.sha256, manifest])


def test_quarantine_keeps_the_file_and_the_reason(tmp_path: Path) -> None:
    store = filled(tmp_path)
    content = store.layout.object(PART.sha256).read_bytes()
    place = store.quarantine_object(PART.sha256, reason="altered")
    assert place is not None
    assert place.parent == store.layout.quarantine
    assert place.read_bytes() == content
    note = msgspec.json.decode(place.with_name(f"{place.name}.note").read_bytes())
    assert note == {"origin": f"v1/objects/{PART.sha256[:2]}/{PART.sha256}", "reason": "altered"}
    with pytest.raises(CorruptedError):
        store.open_object(PART)
    assert store.quarantine_ref("model", ENVIRONMENT, reason="damaged") is not None
    assert store.read_ref("model", ENVIRONMENT) is None
    before = sorted(store.layout.quarantine.iterdir())
    assert store.quarantine_ref("model", ENVIRONMENT, reason="damaged") is None
    assert sorted(store.layout.quarantine.iterdir()) == before


def test_left_over_files_are_swept(tmp_path: Path) -> None:
    class OthersGone(Files):
        def process_exists(self, pid: int) -> bool:
            return pid == os.getpid()

    store = DiskStore(tmp_path, create=True, files=OthersGone())
    mine = temporary_name()
    dead = f"{process_space()}.4000000.00"
    elsewhere, ancient = "elsewhere.00.1.00", "elsewhere.00.2.00"
    for name in (mine, dead, elsewhere, ancient):
        (store.layout.temporary / name).write_bytes(b"")
    os.utime(store.layout.temporary / ancient, times=(0, 0))
    assert GRACE_SECONDS > 0
    assert {path.name for path in store.sweep_temporary()} == {dead, ancient}
    assert {path.name for path in store.layout.temporary.iterdir()} == {mine, elsewhere}
    assert store.sweep_temporary() == ()


def test_real_processes_are_told_apart() -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0)
    os.waitpid(child, 0)
    assert Files().process_exists(os.getpid())
    assert not Files().process_exists(child)
    assert Files().process_exists(1)


def test_sizes_are_capped_before_reading(tmp_path: Path) -> None:
    store = filled(tmp_path)
    ref = store.publish(manifest_of(b"content"))
    path = store.layout.ref("model", ENVIRONMENT)
    for damaged, limit in (
        (store.layout.object(ref.manifest), MAX_MANIFEST_BYTES),
        (path, MAX_REF_BYTES),
    ):
        damaged.chmod(0o644)
        with damaged.open("wb") as file:
            file.truncate(limit + 1)
        with pytest.raises(CorruptedError, match="over the limit"):
            store.read_package("model", ENVIRONMENT)


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    for path, read in (
        (store.layout.object(PART.sha256), lambda: store.open_object(PART)),
        (
            store.layout.ref("model", ENVIRONMENT),
            lambda: store.read_ref("model", ENVIRONMENT),
        ),
    ):
        moved = path.rename(tmp_path / path.name)
        path.symlink_to(moved)
        with pytest.raises(UntrustedStoreError, match="symbolic link"):
            read()
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))
    assert store.read_package("model", ENVIRONMENT) is not None


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = store.layout.object(PART.sha256)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UntrustedStoreError, match="not a regular file"):
        store.open_object(PART)
    store.put_object(b"content")
    store.open_object(PART).close()
