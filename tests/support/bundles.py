"""Small stores and bundles for tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from preheat.manifest import FormProof, Manifest, Proof, encode
from preheat.store import DiskStore
from preheat.store import bundle_format as form
from preheat.store import bundle_headers as headers
from preheat.store.bundle_parser import BundleParser
from preheatd.bundles.exporting import Exporter
from preheatd.selection import selected
from support.manifests import manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from preheat.store import Store
    from preheat.store.bundle_format import Index
    from preheat.store.bundle_parser import Event

PROOF = Proof(
    forms=(
        FormProof(form="dynamo", frames_compiled=0, max_error=0.0, load_seconds=0.1, modules=1),
    ),
    examples=1,
    against="eager",
    seconds=0.1,
)
ENCODER, DECODER = (b"encoder's code", b"shared"), (b"decoder's code" * 60, b"shared", b"")


def proven(*contents: bytes, target: str = "model", torch: str = "2.13") -> Manifest:
    """A proven package of these objects."""
    manifest = manifest_of(*contents, target=target)
    environment = msgspec.structs.replace(manifest.environment, torch=torch)
    return msgspec.structs.replace(manifest, proof=PROOF, environment=environment)


def publish(store: Store, *contents: bytes, target: str = "model", torch: str = "2.13") -> None:
    """Put a package into a store."""
    for content in contents:
        store.put_object(content)
    store.publish(proven(*contents, target=target, torch=torch))


def two_packages(path: Path) -> DiskStore:
    """A store with an encoder and a decoder that share an object."""
    store = DiskStore(path, create=True)
    publish(store, *DECODER, target="decoder")
    publish(store, *ENCODER, target="encoder")
    return store


def exported(store: DiskStore, path: Path, *targets: str) -> bytes:
    """The bytes of a bundle of these targets, or all."""
    asyncio.run(Exporter(store).to_file(selected(store, targets), path))
    return path.read_bytes()


def archive(
    manifests: Iterable[Manifest],
    contents: Iterable[bytes],
    *,
    index: Index | None = None,
    signatures: tuple[bytes, ...] = (),
) -> bytes:
    """A bundle made by hand, in memory: of parts that need not belong together."""
    made = {encode(one) for one in manifests}
    index = index or form.make_index(
        (msgspec.json.decode(one, type=Manifest), signatures) for one in made
    )
    parts = {form.part_of(one).sha256: one for one in (*made, *contents, *signatures)}
    data = member(form.INDEX_NAME, encode(index))
    for one in form.members(index):
        data += member(one.name, parts.get(one.part.sha256, bytes(one.part.size)))
    return data + headers.END


def member(name: str, content: bytes) -> bytes:
    """One member with its header."""
    return headers.header(name, len(content)) + content + bytes(headers.padding(len(content)))


def parsed(data: bytes, *, piece: int = 1 << 20, length: int | None = None) -> list[Event]:
    """What the parser says to these bytes, given so many at a time."""
    parser = BundleParser(length)
    events: list[Event] = []
    for start in range(0, len(data), piece):
        events.extend(parser.feed(data[start : start + piece]))
    parser.finish()
    return events
