"""Build leases in a remote: who of several makes a file, and what is believed of what is read there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat.errors import RemoteError
from preheat.manifest import Ref, encode
from preheat.store.locks import Holder
from preheatd.flight.lease import BuildLease, encode_lease
from preheatd.flight.shared import SharedStore
from preheatd.remotes.remote import Remote, build_lease_path, ref_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENVIRONMENT = "e" * 32
LEASE = BuildLease(
    target="encoder",
    environment=ENVIRONMENT,
    holder=Holder(host="node1", pid=7),
    token=f"{7}",
    length=60.0,
)
PATH = build_lease_path("encoder", ENVIRONMENT, "first.0")


async def ask(call: Callable[..., Any], *arguments: object) -> Any:
    return call(*arguments)


async def at_once(seconds: float) -> None:
    pass


def shared(remote: Remote) -> SharedStore:
    return SharedStore(
        remote=remote,
        target="encoder",
        environment=ENVIRONMENT,
        ask=ask,
        sleep=at_once,
        chance=lambda: 0.5,
    )


def other(**changes: object) -> BuildLease:
    return msgspec.structs.replace(LEASE, token="another", **changes)  # noqa: S106 - of a lease


@pytest.fixture(params=["directory", "memory"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    if request.param == "directory":
        return Remote(str(tmp_path / "remote"))
    return Remote(f"memory://leases{tmp_path}")


def test_of_many_that_create_one_file_one_is_told_so(tmp_path: Path) -> None:
    remote = Remote(str(tmp_path / "remote"))
    data = [str(number).encode() * 1000 for number in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda one: remote.create("v1/some/file", one), data))
    assert remote.creates_exclusively
    assert sorted(made) == [False] * 15 + [True]
    assert remote.read("v1/some/file", 10**6) == data[made.index(True)]
    assert remote.names("v1/some") == ["file"]  # nothing is left behind


def test_a_file_is_created_once_and_may_be_removed(remote: Remote) -> None:
    assert remote.create("v1/some/file", b"first")
    assert not remote.create("v1/some/file", b"second")
    assert remote.read("v1/some/file", 10) == b"first"
    remote.remove("v1/some/file")
    remote.remove("v1/some/file")
    assert remote.create("v1/some/file", b"again")


async def test_whoever_claims_second_is_told_who_was_first(remote: Remote) -> None:
    assert await shared(remote).claim(LEASE) == LEASE
    assert await shared(remote).claim(other()) == LEASE
    assert remote.read(PATH, 10_000) == encode_lease(LEASE)  # where docs/store.md says
    renewed = msgspec.structs.replace(LEASE, renewals=3)
    await shared(remote).renew(renewed)
    assert await shared(remote).lease(other()) == renewed
    assert await shared(remote).lease(other(term=1)) is None


async def test_a_claim_whose_answer_was_lost_is_found_to_be_the_own(remote: Remote) -> None:
    remote.create(PATH, encode_lease(LEASE))  # as a network file system may make and deny it
    assert await shared(remote).claim(LEASE) == LEASE


async def test_what_cannot_be_understood_is_somebody(remote: Remote) -> None:
    for data in (b"", b"{", encode_lease(other(format=2)), encode_lease(other(target="decoder"))):
        remote.put_bytes(PATH, data)
        standing = await shared(remote).claim(LEASE)
        assert (standing.state, standing.token == LEASE.token) == ("building", False)
        assert standing.who() == "another node"


async def test_a_lease_that_is_there_and_not_seen(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "create", lambda path, data: False)
    standing = await shared(remote).claim(LEASE)
    assert standing.token != LEASE.token


async def test_a_damaged_ref_names_nothing(remote: Remote) -> None:
    path = ref_path("encoder", ENVIRONMENT)
    assert await shared(remote).ref() is None
    remote.put_bytes(path, b"{}")
    assert await shared(remote).ref() is None
    named = Ref(
        target="encoder",
        environment=ENVIRONMENT,
        manifest="a" * 64,
        generation=1,
        published_at="2026-12-01T12:00:00.000+00:00",
    )
    remote.put_bytes(path, encode(named))
    assert await shared(remote).ref() == "a" * 64


async def test_only_leases_of_other_packages_are_tidied_away(remote: Remote) -> None:
    kept = ("b" * 64, None)
    for base in (*kept, "c" * 64):
        for term in range(2):
            await shared(remote).claim(other(base=base, term=term))
    await shared(remote).tidy(frozenset(kept))
    for base, term in [(base, term) for base in (*kept, "c" * 64) for term in range(2)]:
        found = await shared(remote).lease(other(base=base, term=term))
        assert (found is not None) == (base in kept)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match="file"):
        asyncio.run(shared(Remote(f"{tmp_path}/file/below")).claim(LEASE))
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - names alone
