"""Stores for tests of collection: packages of few bytes, and a clock that can be set forward."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

import msgspec

from preheat.manifest import decode_manifest, environment_digest
from preheat.store import DiskStore
from support.manifests import SAMPLE, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.manifest import Manifest, Ref
    from preheat.store.files import Files

DAY_SECONDS = 24 * 3600.0


class Clock:
    """The store's time: real, and so many days ahead."""

    days = 0.0

    def __call__(self) -> datetime.datetime:
        seconds = time.time() + self.days * DAY_SECONDS
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

    def timestamp(self) -> float:
        return self().timestamp()


def later_store(root: Path, days: float = 2.0, files: Files | None = None) -> DiskStore:
    """The store as somebody sees it who comes so many days later."""
    clock = Clock()
    clock.days = days
    return DiskStore(root, create=True, files=files, now=clock)


def in_environment(manifest: Manifest, word: str) -> Manifest:
    """The same for another environment."""
    environment = msgspec.structs.replace(manifest.environment, torch=word)
    return msgspec.structs.replace(manifest, environment=environment)


def environment_of(word: str) -> str:
    """The digest of that environment."""
    environment = decode_manifest(SAMPLE).environment
    return environment_digest(msgspec.structs.replace(environment, torch=word))


def put_package(store: DiskStore, *contents: bytes, target: str = "model", word: str = "") -> Ref:
    """Put the objects and publish."""
    for content in contents:
        store.put_object(content)
    manifest = manifest_of(*contents, target=target)
    return store.publish(in_environment(manifest, word) if word else manifest)


def check_whole(store: DiskStore) -> None:
    """Nothing that a ref names is missing or damaged."""
    for ref in store.refs():
        manifest = store.read_manifest(ref.manifest)
        for needed in manifest.objects():
            store.open_object(needed).close()
