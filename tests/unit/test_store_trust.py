"""Who could have changed the store: owners and modes of everything on the way to a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preheat.errors import ConfigurationError, StoreError, UntrustedStoreError
from preheat.manifest import ObjectRef
from preheat.store import DiskStore
from preheat.store.files import Files
from preheat.store.trust import objection, trusted_uids, walk

if TYPE_CHECKING:
    from collections.abc import Callable

STRANGER = 54321
ME = os.geteuid()
needs_root = pytest.mark.skipif(ME != 0, reason="only root can give files away")


@pytest.fixture
def part(tmp_path: Path) -> ObjectRef:
    """An object in a store at ``tmp_path / "home" / "store"``."""
    (tmp_path / "home").mkdir(0o755)
    digest, size = DiskStore(tmp_path / "home" / "store", create=True).put_object(b"content")
    return ObjectRef(name="part", sha256=digest, size=size)


def status(mode: int, owner: int = ME) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "complaint"),
    [
        (stat.S_IFDIR | 0o755, ME, None),
        (stat.S_IFDIR | 0o700, 0, None),
        (stat.S_IFREG | 0o444, ME, None),
        (stat.S_IFDIR | 0o1777, 0, None),
        (stat.S_IFDIR | 0o1775, ME, None),
        (stat.S_IFLNK | 0o777, ME, None),
        (stat.S_IFLNK | 0o777, STRANGER, "belongs to uid 54321"),
        (stat.S_IFDIR | 0o755, STRANGER, "belongs to uid 54321"),
        (stat.S_IFDIR | 0o1777, STRANGER, "belongs to uid 54321"),
        (stat.S_IFDIR | 0o775, ME, "writable by its group"),
        (stat.S_IFDIR | 0o757, ME, "writable by everybody"),
        (stat.S_IFREG | 0o664, ME, "writable by its group"),
        (stat.S_IFREG | 0o1666, ME, "writable by everybody"),
    ],
)
def test_objection(mode: int, owner: int, complaint: str | None) -> None:
    found = objection(Path("/some/where"), status(mode, owner), frozenset({0, ME}))
    if complaint is None:
        assert found is None
    else:
        assert found is not None
        assert "/some/where" in found.message
        assert complaint in found.message
        assert found.remedy


def test_trusted_uids_are_read() -> None:
    assert trusted_uids({}) == frozenset()
    assert trusted_uids({"PREHEAT_TRUSTED_UIDS": ""}) == frozenset()
    assert trusted_uids({"PREHEAT_TRUSTED_UIDS": " 998, 5,"}) == {998, 5}
    for wrong in ("preheat", "-1", "1 2", "²"):
        with pytest.raises(ConfigurationError, match="PREHEAT_TRUSTED_UIDS"):
            trusted_uids({"PREHEAT_TRUSTED_UIDS": wrong})


def test_a_wrong_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="require, warn or off"):
        DiskStore(tmp_path, trust="no")  # type: ignore[arg-type]


def walked(path: Path) -> tuple[Path, list[Path]]:
    """Where a walk ends, and what it has passed."""
    seen: list[Path] = []
    descriptor = walk(Files(), path, lambda place, _: seen.append(Path(place)))
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink(), seen
    finally:
        os.close(descriptor)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_walk_follows_links_as_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "disk" / "cache").mkdir()
    (tmp_path / "far").symlink_to(tmp_path / "disk" / "deep")
    (tmp_path / "near").symlink_to("./far/../cache//")
    before = open_descriptors()
    place, seen = walked(tmp_path / "near")
    assert place == tmp_path / "disk" / "cache"
    assert {tmp_path / "near", tmp_path / "far", tmp_path / "disk" / "deep", place} <= set(seen)
    assert seen[0] == Path("/")
    assert walked(tmp_path / "far" / ".." / ".." / "near")[0] == place
    assert walked(Path("/../..") / tmp_path.relative_to("/"))[0] == tmp_path
    assert open_descriptors() == before


def test_walk_gives_up_on_a_circle_and_on_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "file").write_text("")
    before = open_descriptors()
    with pytest.raises(UntrustedStoreError, match="links"):
        walk(Files(), tmp_path / "a", lambda *_: None)
    with pytest.raises(NotADirectoryError):
        walk(Files(), tmp_path / "file", lambda *_: None)
    with pytest.raises(FileNotFoundError):
        walk(Files(), tmp_path / "nothing" / "more", lambda *_: None)
    assert open_descriptors() == before


class Exchanging(Files):
    """Exchanges something at the worst moment: right after it was judged, before what is in it is opened."""

    def __init__(self, trigger: str, exchange: Callable[[], None]) -> None:
        self.trigger = trigger
        self.exchange: Callable[[], None] | None = exchange

    def open_component(self, name: str, dir_fd: int | None = None) -> tuple[int, os.stat_result]:
        found = super().open_component(name, dir_fd)
        place = str(Path(f"/proc/self/fd/{found[0]}").readlink())
        if place == self.trigger and self.exchange is not None:
            exchange, self.exchange = self.exchange, None
            exchange()
        return found


@pytest.mark.parametrize("place", ["home", "home/store", "home/store/v1/objects", "prefix"])
@pytest.mark.parametrize("by_link", [True, False], ids=["link", "directory"])
def test_a_directory_that_is_exchanged_after_it_was_judged_is_not_used(
    tmp_path: Path, part: ObjectRef, place: str, by_link: bool
) -> None:
    layout = DiskStore(tmp_path / "home" / "store").layout
    judged = layout.object(part.sha256).parent if place == "prefix" else tmp_path / place
    # What would be opened in its place: the same names, other bytes, and writable by everybody.
    hostile = tmp_path / "hostile"
    shutil.copytree(judged, hostile)
    for path in (hostile, *hostile.rglob("*")):
        path.chmod(0o777)
        if path.is_file():
            path.write_bytes(b"hostile")

    def exchange() -> None:
        judged.rename(tmp_path / "away")
        if by_link:
            judged.symlink_to(hostile)
        else:
            hostile.rename(judged)

    files = Exchanging(str(judged), exchange)
    store = DiskStore(tmp_path / "home" / "store", files=files)
    with store.open_object(part) as opened:  # of the directory that was judged
        assert opened.read() == b"content"
    assert files.exchange is None
    with pytest.raises(UntrustedStoreError, match="writable by everybody"):
        store.open_object(part)


def test_a_temporary_file_goes_where_it_was_judged_to_go(tmp_path: Path, part: ObjectRef) -> None:
    root = tmp_path / "home" / "store"
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    judged = DiskStore(root).layout.temporary

    def exchange() -> None:
        judged.rename(tmp_path / "away")
        judged.symlink_to(hostile)

    files = Exchanging(str(judged), exchange)
    store = DiskStore(root, files=files)
    with contextlib.suppress(StoreError):  # its temporary file is not there any more
        store.put_object(b"more")
    assert files.exchange is None
    assert list(hostile.iterdir()) == []


@pytest.mark.skipif(ME != 0, reason="only root can become another user")
def test_a_store_in_a_directory_that_cannot_be_listed_is_read(tmp_path: Path) -> None:
    """To pass a directory is enough, as for every other program."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # no other user can enter tmp_path
        Path(place).chmod(0o711)
        digest, _ = DiskStore(Path(place) / "store", create=True).put_object(b"content")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
            pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setuid(STRANGER)
                with DiskStore(Path(place) / "store").open_object(
                    ObjectRef(name="part", sha256=digest, size=7)
                ) as opened:
                    code = 0 if opened.read() == b"content" else 2
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_store_behind_a_link_is_read(tmp_path: Path, part: ObjectRef) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "home" / "store")
    DiskStore(tmp_path / "link").open_object(part).close()


@pytest.mark.parametrize(
    "place", ["home", "home/store", "home/store/v1", "home/store/v1/objects", "prefix"]
)
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_directory_that_others_may_write_is_named(
    tmp_path: Path, part: ObjectRef, place: str, mode: int
) -> None:
    store = DiskStore(tmp_path / "home" / "store")
    path = store.layout.object(part.sha256).parent if place == "prefix" else tmp_path / place
    path.chmod(mode)
    with pytest.raises(UntrustedStoreError, match=f"{path} is writable") as raised:
        store.open_object(part)
    assert f"chmod go-w {path}" in raised.value.remedy
    path.chmod(mode | stat.S_ISVTX)
    store.open_object(part).close()


def test_writing_into_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UntrustedStoreError, match="everybody"):
        DiskStore(tmp_path / "store", create=True)


def test_an_object_that_others_may_write_is_refused(tmp_path: Path, part: ObjectRef) -> None:
    store = DiskStore(tmp_path / "home" / "store")
    path = store.layout.object(part.sha256)
    path.chmod(0o464)
    with pytest.raises(UntrustedStoreError, match=str(path)):
        store.open_object(part)
    store.put_object(b"content")
    store.open_object(part).close()


def test_warn_says_it_and_goes_on(
    tmp_path: Path, part: ObjectRef, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").chmod(0o777)
    DiskStore(tmp_path / "home" / "store", trust="off").open_object(part).close()
    assert caplog.messages == []
    DiskStore(tmp_path / "home" / "store", trust="warn").open_object(part).close()
    assert f"{tmp_path / 'home'} is writable by everybody" in caplog.messages[0]


def give_root(store: Path, path: Path) -> None:
    os.chown(store, STRANGER, -1)


def give_object(store: Path, path: Path) -> None:
    os.chown(path, STRANGER, -1)


def give_parent(store: Path, path: Path) -> None:
    os.chown(store.parent, STRANGER, -1)


@needs_root
@pytest.mark.parametrize("give", [give_root, give_object, give_parent])
def test_what_a_stranger_owns_is_refused_unless_trusted(
    tmp_path: Path,
    part: ObjectRef,
    give: Callable[[Path, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "home" / "store"
    give(root, DiskStore(root).layout.object(part.sha256))
    with pytest.raises(UntrustedStoreError, match=f"belongs to uid {STRANGER}") as raised:
        DiskStore(root).open_object(part)
    assert f"PREHEAT_TRUSTED_UIDS={STRANGER}" in raised.value.remedy
    DiskStore(root, trusted_owners=frozenset({STRANGER})).open_object(part).close()
    monkeypatch.setenv("PREHEAT_TRUSTED_UIDS", f"1,{STRANGER}")
    DiskStore(root).open_object(part).close()


@needs_root
def test_a_strangers_link_to_the_store_is_refused(tmp_path: Path, part: ObjectRef) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home" / "store")
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    with pytest.raises(UntrustedStoreError, match=f"{link} belongs"):
        DiskStore(link).open_object(part)


@needs_root
def test_a_strangers_object_is_replaced_by_an_own_one(tmp_path: Path, part: ObjectRef) -> None:
    store = DiskStore(tmp_path / "home" / "store")
    path = store.layout.object(part.sha256)
    os.chown(path, STRANGER, -1)
    store.put_object(b"content")
    assert path.stat().st_uid == ME
