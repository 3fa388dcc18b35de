"""``preheat push`` and ``preheat pull`` with real file systems of fsspec, good ones and bad ones."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
import test_daemon_double as double
from fsspec.implementations.memory import MemoryFileSystem

from preheat.errors import (
    BundleError,
    ConfigurationError,
    RemoteError,
    StoreError,
    UnsignedPackageError,
)
from preheat.manifest import environment_digest, sha256
from preheat.store import DiskStore
from preheat.store.keys import Signing, read_signer
from preheat.store.signatures import decode_signatures, new_key
from preheatd import cli
from preheatd.arriving import Arrivals
from preheatd.remotes.pulling import Pulled, Puller
from preheatd.remotes.pushing import Pushed, Pusher
from preheatd.remotes.remote import (
    LOCAL_PIECE_BYTES,
    Remote,
    object_path,
    ref_path,
    without_secret,
)
from preheatd.selection import selected
from support.bundles import DECODER, ENCODER, proven, publish, two_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HERE = environment_digest(proven().environment)


class Trouble(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory that can be told to do wrong."""

    protocol = "trouble"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    before: ClassVar[Callable[[str, str], None]] = lambda call, path: None
    given: ClassVar[Callable[[str, bytes], bytes]] = lambda path, data: data
    sized: ClassVar[Callable[[str, int], int]] = lambda path, size: size

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        Trouble.before("read", path)
        return Trouble.given(path, bytes(super().cat_file(path, start=start, end=end)))

    def info(self, path: str, **named: Any) -> dict[str, Any]:
        Trouble.before("info", path)
        found: dict[str, Any] = dict(super().info(path, **named))
        if found["type"] == "file":
            found["size"] = Trouble.sized(path, found["size"])
        return found

    def pipe_file(self, path: str, value: bytes, **named: Any) -> None:
        Trouble.before("write", path)
        super().pipe_file(path, value, **named)

    def put_file(self, lpath: str, rpath: str, **named: Any) -> None:
        Trouble.before("write", rpath)
        super().put_file(lpath, rpath, **named)


fsspec.register_implementation("trouble", Trouble, clobber=True)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    for system in (MemoryFileSystem, Trouble):
        system.store.clear()
        system.pseudo_dirs[:] = [""]
    Trouble.before = lambda call, path: None
    Trouble.given = lambda path, data: data
    Trouble.sized = lambda path, size: size


@pytest.fixture(params=["directory", "memory", "trouble"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return f"file://{tmp_path}/remote"
    return f"{request.param}://shared/packages"


TROUBLE = "trouble://shared/packages"


def push(url: str, store: DiskStore, *targets: str, **options: Any) -> Pushed:
    return asyncio.run(Pusher(Remote(url), store, **options).push(selected(store, targets)))


def pull(
    url: str, to: Path | DiskStore, *targets: str, arrivals: Arrivals | None = None, **options: Any
) -> Pulled:
    puller = Puller(
        Remote(url),
        lambda: to if isinstance(to, DiskStore) else DiskStore(to, create=True),
        arrivals or Arrivals(None, targets=frozenset(targets)),
        **options,
    )
    return asyncio.run(puller.pull(targets))


def same_packages(one: Path, other: Path) -> bool:
    stores = [DiskStore(one), DiskStore(other)]
    for ref in stores[1].refs():
        for needed in stores[1].read_manifest(ref.manifest).objects():
            stores[1].open_object(needed).close()
    first, second = ({ref.manifest for ref in store.refs()} for store in stores)
    return first == second


def assert_nothing_visible(to: Path) -> None:
    store = DiskStore(to)
    assert list(store.refs()) == []
    if to.exists():
        assert list(store.layout.temporary.iterdir()) == []


def test_there_and_back(url: str, tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    pushed = push(url, store)
    assert [(one.target, one.result) for one in pushed.packages] == [
        ("decoder", "new"),
        ("encoder", "new"),
    ]
    pulled = pull(url, tmp_path / "to")
    assert [(one.target, one.result) for one in pulled.packages] == [
        ("decoder", "new"),
        ("encoder", "new"),
    ]
    assert same_packages(tmp_path / "from", tmp_path / "to")
    again = push(url, store)
    assert ({one.result for one in again.packages}, again.written) == ({"same"}, 0)
    assert pull(url, tmp_path / "to").written == 0


def test_a_directory_is_a_store_that_can_be_read_in_place(tmp_path: Path) -> None:
    push(f"file://{tmp_path}/remote", two_packages(tmp_path / "from"))
    assert same_packages(tmp_path / "from", tmp_path / "remote")
    left = [path for path in (tmp_path / "remote").rglob("*") if "unfinished" in path.name]
    assert left == []


def test_only_what_is_asked_for_and_fits(url: str, tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    publish(store, b"for another torch", target="encoder", torch="2.14")
    push(url, store)
    arrivals = Arrivals(None, only=frozenset({HERE, "0" * 32}), targets=frozenset({"encoder"}))
    pulled = pull(url, tmp_path / "to", "encoder", arrivals=arrivals)
    assert [(one.target, one.environment) for one in pulled.packages] == [("encoder", HERE)]
    assert sha256(b"for another torch") not in set(DiskStore(tmp_path / "to").object_digests())
    arrivals = Arrivals(None, only=frozenset({HERE}))
    assert len(pull(url, tmp_path / "all", arrivals=arrivals).packages) == 2
    arrivals = Arrivals(None, only=frozenset({HERE}), targets=frozenset({"encoder", "other"}))
    pulled = pull(url, tmp_path / "some", "encoder", "other", arrivals=arrivals)
    assert pulled.missing == ("other",)


def test_a_newer_push_takes_the_place(url: str, tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    push(url, store)
    pull(url, tmp_path / "to")
    publish(store, b"newer", target="encoder")
    assert [one.result for one in push(url, store).packages] == ["same", "replaced"]
    assert [one.result for one in pull(url, tmp_path / "to").packages] == ["same", "kept"]
    replacing = Arrivals(None, replace=True)
    assert [one.result for one in pull(url, tmp_path / "to", arrivals=replacing).packages] == [
        "same",
        "replaced",
    ]
    assert same_packages(tmp_path / "from", tmp_path / "to")


def test_there_is_no_store(url: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="There is no store at"):
        pull(url, tmp_path / "to")
    assert not (tmp_path / "to").exists()
    remote = Remote(url)
    remote.put_bytes("FORMAT", b"preheat store 9\n")
    for use in (
        lambda: pull(url, tmp_path / "to"),
        lambda: push(url, two_packages(tmp_path / "f")),
    ):
        with pytest.raises(RemoteError, match="of another format"):
            use()


def code_of(*contents: bytes) -> str:
    return object_path(sha256(contents[0]))


LIES: dict[str, tuple[Callable[[Remote], None], str]] = {
    "a ref that is no JSON": (
        lambda remote: remote.put_bytes(ref_path("encoder", HERE), b"{"),
        "damaged or not what its name says|^$",
    ),
    "a ref of another target": (
        lambda remote: remote.put_bytes(
            ref_path("encoder", HERE),
            remote.read(ref_path("decoder", HERE), 10_000) or b"",
        ),
        "another target or environment",
    ),
    "an object with other bytes": (
        lambda remote: remote.put_bytes(code_of(*ENCODER), b"X" * len(ENCODER[0])),
        "does not have the digest",
    ),
    "an object that is too short": (
        lambda remote: remote.put_bytes(code_of(*ENCODER), b"X"),
        "has 1 bytes; its manifest says 14",
    ),
    "an object that is too long": (
        lambda remote: remote.put_bytes(code_of(*ENCODER), ENCODER[0] + b"X"),
        "has 15 bytes; its manifest says 14",
    ),
    "an object that is missing": (
        lambda remote: remote._system.rm_file(remote._at(code_of(*ENCODER))),
        "is missing",
    ),
    "a manifest that is missing": (
        lambda remote: remote._system.rm_file(remote._at(object_path(sha256(_manifest(remote))))),
        "has no manifest",
    ),
    "a manifest with other bytes": (
        lambda remote: remote.put_bytes(object_path(sha256(_manifest(remote))), b"{}"),
        "damaged or not what its name says",
    ),
}


def _manifest(remote: Remote) -> bytes:
    ref = json.loads(remote.read(ref_path("encoder", HERE), 10_000) or b"")
    return remote.read(object_path(ref["manifest"]), 1 << 20) or b""


@pytest.mark.parametrize("lie", LIES)
def test_a_remote_that_lies(lie: str, url: str, tmp_path: Path) -> None:
    """Nothing of it becomes visible; pushing again with --again mends it."""
    store = two_packages(tmp_path / "from")
    push(url, store)
    change, words = LIES[lie]
    change(Remote(url))
    arrivals = Arrivals(None, only=frozenset({HERE}), targets=frozenset({"encoder"}))
    with pytest.raises(RemoteError, match=words):
        pull(url, tmp_path / "to", "encoder", arrivals=arrivals)
    assert_nothing_visible(tmp_path / "to")
    push(url, store, again=True)
    assert len(pull(url, tmp_path / "to").packages) == 2


@pytest.mark.parametrize(
    ("given", "sized", "words"),
    [
        (lambda data: data[:-1], None, "instead of"),
        (lambda data: data + b"x", None, "instead of"),
        (lambda data: b"", None, "gave 0 bytes"),
        (lambda data: bytes(len(data)), None, "does not have the digest"),
        (None, lambda size: size + 5, "its manifest says"),
    ],
    ids=["short", "long", "nothing", "other", "size"],
)
def test_answers_that_are_not_what_was_asked_for(
    given: Callable[[bytes], bytes] | None,
    sized: Callable[[int], int] | None,
    words: str,
    tmp_path: Path,
) -> None:
    push(TROUBLE, two_packages(tmp_path / "from"))
    if given is not None:
        Trouble.given = lambda path, data: given(data)
    if sized is not None:
        Trouble.sized = lambda path, size: sized(size)
    with pytest.raises(RemoteError, match=words):
        pull(TROUBLE, tmp_path / "to")
    assert_nothing_visible(tmp_path / "to")


def fail_at(number: int, error: OSError) -> list[int]:
    """Let call ``number`` fail, and all after it; the list counts."""
    count = [0]

    def before(call: str, path: str) -> None:
        count[0] += 1
        if count[0] >= number:
            raise error

    Trouble.before = before
    return count


def test_a_push_that_breaks_off_anywhere(tmp_path: Path) -> None:
    """A reader sees the packages from before or the new ones, each whole; and the next push goes on."""
    store = two_packages(tmp_path / "from")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    number = 0
    while True:
        number += 1
        count = fail_at(number, full)
        try:
            push(TROUBLE, store, jobs=1)
        except RemoteError as error:
            assert "No space left" in error.message
            assert TROUBLE in error.message
        else:
            break
        Trouble.before = lambda call, path: None
        if Remote(TROUBLE).is_founded():
            seen = pull(TROUBLE, tmp_path / f"to{number}", jobs=2)
            assert len(seen.packages) <= 2
    assert count[0] >= 8
    assert number >= 8


def test_a_pull_that_breaks_off_anywhere(tmp_path: Path) -> None:
    push(TROUBLE, two_packages(tmp_path / "from"))
    number = written = 0
    while True:
        number += 1
        fail_at(number, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        try:
            written = pull(TROUBLE, tmp_path / "to", jobs=1).written
        except RemoteError as error:
            assert "Connection reset" in error.message
            assert_nothing_visible(tmp_path / "to")
        else:
            break
    assert number > 4
    assert written < 4  # others had arrived before
    assert same_packages(tmp_path / "from", tmp_path / "to")


def test_a_remote_that_hangs(tmp_path: Path) -> None:
    push(TROUBLE, two_packages(tmp_path / "from"))
    Trouble.before = lambda call, path: time.sleep(30.0) if call == "read" else None
    with pytest.raises(RemoteError, match=r"did not answer within 0\.2 s"):
        pull(TROUBLE, tmp_path / "to", seconds=0.2)
    assert_nothing_visible(tmp_path / "to")


@pytest.mark.parametrize("how", ["time", "cancellation"])
def test_an_object_that_stops_half_way(how: str, tmp_path: Path) -> None:
    """Nothing is left of it, and nothing is written when its thread goes on later."""
    store = DiskStore(tmp_path / "from", create=True)
    publish(store, os.urandom(9 << 20), target="encoder")
    push(TROUBLE, store)
    reached, go_on, pieces = threading.Event(), threading.Event(), list[int]()

    def given(path: str, data: bytes) -> bytes:
        pieces.append(len(data))
        if len(data) == 4 << 20 and pieces.count(len(data)) == 2:
            reached.set()
            go_on.wait(60.0)
        return data

    async def pulled() -> None:
        seconds = 1.0 if how == "time" else 60.0
        to = DiskStore(tmp_path / "to", create=True)
        puller = Puller(Remote(TROUBLE), lambda: to, Arrivals(None), seconds=seconds)
        task = asyncio.ensure_future(puller.pull(()))
        await asyncio.to_thread(reached.wait, 60.0)
        if how == "cancellation":
            task.cancel()
        await task

    Trouble.given, before = given, set(threading.enumerate())
    with pytest.raises(RemoteError if how == "time" else asyncio.CancelledError):
        asyncio.run(pulled())
    assert_nothing_visible(tmp_path / "to")
    left = set(threading.enumerate()) - before
    assert left
    go_on.set()
    for thread in left:
        thread.join(60.0)
    assert pieces.count(4 << 20) == 2  # it asked for no more
    assert_nothing_visible(tmp_path / "to")
    assert pull(TROUBLE, tmp_path / "to").written == 1


def test_a_full_disk_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(TROUBLE, two_packages(tmp_path / "from"))

    class Usage:
        free = 3

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(StoreError, match="has 3 bytes left"):
        pull(TROUBLE, tmp_path / "to")
    assert_nothing_visible(tmp_path / "to")


def test_an_unproven_package_is_not_pushed(tmp_path: Path) -> None:
    import msgspec

    store = two_packages(tmp_path / "from")
    store.publish(msgspec.structs.replace(proven(*DECODER, target="decoder"), proof=None))
    with pytest.raises(BundleError, match="not proven"):
        push(TROUBLE, store)
    assert not Remote(TROUBLE).is_founded()


def test_urls(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Remote("nosuchprotocol://x/y")
    assert without_secret("s3://me:secret@host/a@b") == "s3://host/a@b"
    assert Remote(str(tmp_path)).is_local


@pytest.mark.parametrize("words", [["push", ""], ["pull", " "], ["warm", "--remote", ""]])
def test_an_empty_url_is_not_this_directory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "store"))
    two_packages(tmp_path / "store")
    here = tmp_path / "here"
    double.make_project(here / "project")
    monkeypatch.chdir(here / "project")
    before = sorted(here.rglob("*"))
    assert cli.run(words) == 2
    assert "The URL of the remote store is empty." in capsys.readouterr().err
    kept = [path for path in here.rglob("*") if path.name != "double.log"]
    assert sorted(kept) == before


def test_a_memory_that_is_bounded(tmp_path: Path) -> None:
    """Objects larger than one piece come in several."""
    store = DiskStore(tmp_path / "from", create=True)
    publish(store, os.urandom(9 << 20), target="encoder")
    push(TROUBLE, store)
    lengths: list[int] = []

    def given(path: str, data: bytes) -> bytes:
        lengths.append(len(data))
        return data

    Trouble.given = given
    pull(TROUBLE, tmp_path / "to")
    assert sorted(lengths)[-3:] == [1 << 20, 4 << 20, 4 << 20]
    assert same_packages(tmp_path / "from", tmp_path / "to")


def test_a_directory_needs_one_piece_of_memory(tmp_path: Path) -> None:
    """Its files are read into the same memory again and again; what is cut off ends early."""
    data = os.urandom(2 * LOCAL_PIECE_BYTES + 5)
    (tmp_path / "file").write_bytes(data)
    remote, places, passed = Remote(f"file://{tmp_path}"), set(), b""
    for piece in remote.pieces("file", len(data)):
        assert isinstance(piece, memoryview)
        places.add(id(piece.obj))
        passed += piece
    assert (passed, len(places)) == (data, 1)
    assert sum(map(len, remote.pieces("file", len(data) + 10))) == len(data)
    assert sum(map(len, remote.pieces("file", 10))) == 10
    with pytest.raises(RemoteError, match="nothing: No such file"):
        list(remote.pieces("nothing", 10))


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    two_packages(tmp_path / "from")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "from"))
    remote = f"file://{tmp_path}/remote"
    assert cli.run(["push", remote]) == 0
    assert "encoder" in capfd.readouterr().out
    monkeypatch.setenv("PREHEAT_STORE", str(tmp_path / "to"))
    assert cli.run(["pull", remote, "--all-environments", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert [one["result"] for one in answer["packages"]] == ["new", "new"]
    assert answer["url"] == remote
    assert same_packages(tmp_path / "from", tmp_path / "to")
    assert cli.run(["pull", f"file://{tmp_path}/nothing", "--all-environments"]) == 7
    assert "There is no store at" in capfd.readouterr().err


def test_signatures_travel_and_count(url: str, tmp_path: Path) -> None:
    keys = []
    for name in ("build host", "release"):
        keys.append(tmp_path / name)
        keys[-1].touch(0o600)
        keys[-1].write_bytes(new_key())
    trusted = tmp_path / "trusted_keys"
    trusted.write_text(f"{read_signer(keys[0]).public.line}\n")
    strict = Signing("require", trusted=trusted)
    store = two_packages(tmp_path / "from")
    push(url, store)
    with pytest.raises(UnsignedPackageError):
        pull(url, DiskStore(tmp_path / "unsigned", create=True, signing=strict))
    assert list(DiskStore(tmp_path / "unsigned").refs()) == []
    for ref in store.refs():
        store.sign(ref, keys[0])
    push(url, store)
    # Somebody else signs as well; what is there already stays.
    second = two_packages(tmp_path / "second")
    for ref in second.refs():
        second.sign(ref, keys[1])
    push(url, second)
    to = DiskStore(tmp_path / "to", create=True, signing=strict)
    pull(url, to)
    for ref in to.refs():
        to.check_signed(ref, to.read_manifest(ref.manifest))
        data = to.signatures(ref.manifest)
        assert data is not None
        assert {one.key for one in decode_signatures(data, ref.manifest, "").signatures} == {
            read_signer(key).public.id for key in keys
        }
