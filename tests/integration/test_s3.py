"""``preheat push`` and ``preheat pull`` with a real server of the S3 protocol. By hand: ``make test-s3``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from typing import TYPE_CHECKING

import pytest

moto_server = pytest.importorskip(
    "moto.server", reason="needs moto[server] and s3fs: run `make test-s3`"
)
s3fs = pytest.importorskip("s3fs", reason="needs moto[server] and s3fs: run `make test-s3`")

from preheat.errors import RemoteError  # noqa: E402
from preheat.manifest import sha256  # noqa: E402
from preheat.store import DiskStore  # noqa: E402
from preheatd.arriving import Arrivals  # noqa: E402
from preheatd.remotes.pulling import Pulled, Puller  # noqa: E402
from preheatd.remotes.pushing import Pushed, Pusher  # noqa: E402
from preheatd.remotes.remote import Remote, object_path  # noqa: E402
from preheatd.selection import selected  # noqa: E402
from support.bundles import ENCODER, publish, two_packages  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# botocore and moto warn about things of their own.
pytestmark = pytest.mark.filterwarnings("default")
URL = "s3://packages/shop"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    if system.exists("packages"):  # the server keeps what it has for as long as the process lives
        system.rm("packages", recursive=True)
    system.mkdir("packages")
    yield
    running.stop()


def push(store: DiskStore) -> Pushed:
    return asyncio.run(Pusher(Remote(URL), store, seconds=20).push(selected(store, ())))


def pull(to: Path, *, replace: bool = False) -> Pulled:
    puller = Puller(
        Remote(URL), lambda: DiskStore(to, create=True), Arrivals(None, replace=replace), seconds=20
    )
    return asyncio.run(puller.pull(()))


def test_there_and_back(server: None, tmp_path: Path) -> None:
    store = two_packages(tmp_path / "from")
    publish(store, os.urandom(20 << 20), target="large")
    assert {one.result for one in push(store).packages} == {"new"}
    pulled = pull(tmp_path / "to")
    assert [one.target for one in pulled.packages] == ["decoder", "encoder", "large"]
    to = DiskStore(tmp_path / "to")
    assert {ref.manifest for ref in to.refs()} == {ref.manifest for ref in store.refs()}
    for ref in to.refs():
        for needed in to.read_manifest(ref.manifest).objects():
            to.open_object(needed).close()
    assert push(store).written == 0
    publish(store, b"newer", target="encoder")
    assert sorted(one.result for one in push(store).packages) == ["replaced", "same", "same"]
    assert sorted(one.result for one in pull(tmp_path / "to", replace=True).packages) == [
        "replaced",
        "same",
        "same",
    ]


def test_an_object_that_was_altered(server: None, tmp_path: Path) -> None:
    push(two_packages(tmp_path / "from"))
    Remote(URL).put_bytes(object_path(sha256(ENCODER[0])), b"X" * len(ENCODER[0]))
    with pytest.raises(RemoteError, match="does not have the digest"):
        pull(tmp_path / "to")
    assert list(DiskStore(tmp_path / "to").refs()) == []


def test_of_many_that_create_one_file_one_is_told_so(server: None) -> None:
    remotes = [Remote(URL) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        made = threads.map(lambda one: one.create("v1/file", str(id(one)).encode()), remotes)
        told = dict(zip(remotes, made, strict=True))
    assert all(one.creates_exclusively for one in remotes)
    (winner,) = (one for one, so in told.items() if so)
    assert remotes[0].read("v1/file", 100) == str(id(winner)).encode()


def test_no_server(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    puller = Puller(
        Remote(URL), lambda: DiskStore(tmp_path / "to", create=True), Arrivals(None), seconds=5
    )
    with pytest.raises(RemoteError, match="s3://packages/shop"):
        asyncio.run(puller.pull(()))
    assert not (tmp_path / "to").exists()
