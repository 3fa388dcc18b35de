"""Everything that works on a store, for tests that interrupt it: one ``Operation`` a line or a few."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING

from preheat.manifest import encode, sha256
from preheat.store import DiskStore, build_lock, copy_package
from preheat.store.collection import Rules
from preheat.store.keys import Signing
from preheat.store.records import utc_now
from preheat.store.signatures import new_key
from preheat.store.temporary import process_space
from preheatd.arriving import Arrivals
from preheatd.bundles.importing import Importer, import_bundle
from preheatd.remotes.pulling import Puller
from preheatd.remotes.remote import Remote
from preheatd.state import Failure, State
from support.bundles import exported, proven
from support.faults import NEW, OLD, Operation, QuickFiles, opened
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.store.files import Files


def put(store: DiskStore, _: Files) -> None:
    store.put_object(NEW)
    store.put_object(OLD)  # which is there already


def put_file(store: DiskStore, _: Files) -> None:
    source = store.layout.root.parent / "source"
    for content in (NEW, OLD):
        source.write_bytes(content)
        store.put_object(source)


def publish(store: DiskStore, _: Files) -> None:
    store.publish(manifest_of(NEW))


def publish_another(store: DiskStore, _: Files) -> None:
    store.publish(manifest_of(NEW, target="another"))


def build_and_publish(store: DiskStore, _: Files) -> None:
    store.put_object(OLD)
    store.put_object(NEW)
    store.publish(manifest_of(NEW))


def read(store: DiskStore, _: Files) -> None:
    package = store.read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == manifest_of(OLD)
    for needed in package[1].objects():
        with_it = store.open_object(needed)
        assert with_it.read() == OLD
        with_it.close()
    # A list leaves out what cannot be read.
    assert [ref.target for ref in store.refs()] in ([], ["model"])


def quarantine_object(store: DiskStore, _: Files) -> None:
    store.quarantine_object(sha256(NEW), reason="damaged")


def is_quarantined(root: Path) -> None:
    layout = DiskStore(root).layout
    assert not layout.object(sha256(NEW)).exists()
    assert [path.name for path in layout.quarantine.iterdir() if path.name.startswith(sha256(NEW))]


def quarantine_ref(store: DiskStore, _: Files) -> None:
    store.quarantine_ref("model", ENVIRONMENT, reason="withdrawn")


def leave_temporary(store: DiskStore) -> None:
    for number in (1, 2):
        (store.layout.temporary / f"{process_space()}.{number}.4567").write_bytes(b"half")


def sweep(store: DiskStore, _: Files) -> None:
    store.sweep_temporary()


def lock(store: DiskStore, files: Files) -> None:
    with build_lock(store.layout.root, "model", ENVIRONMENT, files=files):
        pass


def locked_again(root: Path) -> None:
    with build_lock(root, "model", ENVIRONMENT, files=QuickFiles()):
        pass


def copy(store: DiskStore, _: Files) -> None:
    """From a second store, as a build's staging store is copied."""
    source = opened(store.layout.root.parent / "staging")
    source.put_object(NEW)
    copy_package(source, store, manifest_of(NEW))
    store.publish(manifest_of(NEW))


def sign(store: DiskStore, _: Files) -> None:
    """A publication that is signed."""
    key = store.layout.root.parent / "key"
    if not key.exists():
        key.touch(0o600)
        key.write_bytes(new_key())
    store.signing = Signing("off", key=key)
    store.publish(manifest_of(NEW))


def has_signed(root: Path) -> None:
    has_published(root)
    found = DiskStore(root).signatures(sha256(encode(manifest_of(NEW))))
    assert found is not None
    assert b'"signature":' in found


def prepare_collection(store: DiskStore) -> None:
    """An earlier package, and an object that nobody names."""
    store.put_object(b"lost")
    store.put_object(NEW)
    store.publish(manifest_of(NEW, target="another"))
    store.publish(manifest_of(OLD, target="another"))


def collect(store: DiskStore, files: Files) -> None:
    """As it is done a month later."""
    later = DiskStore(
        store.layout.root,
        create=True,
        files=files,
        now=lambda: utc_now() + datetime.timedelta(days=30),
    )
    later.collector().collect(Rules(keep_generations=0))


def is_collected(root: Path) -> None:
    """What could not be looked at may be left for the next time, and what is named is there."""
    assert sha256(OLD) in set(DiskStore(root).object_digests())


def elsewhere(store: DiskStore) -> DiskStore:
    """Another store with the new package, proven."""
    source = opened(store.layout.root.parent / "elsewhere")
    source.put_object(NEW)
    source.publish(proven(NEW))
    return source


def prepare_import(store: DiskStore) -> None:
    exported(elsewhere(store), store.layout.root.parent / "bundle")


def import_it(store: DiskStore, _: Files) -> None:
    file = store.layout.root.parent / "bundle"
    importer = Importer(lambda: store, Arrivals(None, replace=True), length=file.stat().st_size)
    asyncio.run(import_bundle(file, importer))


def pull(store: DiskStore, _: Files) -> None:
    remote = Remote(f"file://{store.layout.root.parent}/elsewhere")
    puller = Puller(remote, lambda: store, Arrivals(None, replace=True), jobs=1)
    asyncio.run(puller.pull(()))


def has_arrived(root: Path) -> None:
    package = DiskStore(root).read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == proven(NEW)
    has_new(root)


def failure(attempts: int) -> Failure:
    return Failure(
        target="model", environment=ENVIRONMENT, kind="build", message="no", attempts=attempts
    )


def state_of(root: Path, files: Files) -> State:
    state = State(root / "state", files)
    state.prepare()
    return state


def remember(store: DiskStore, files: Files) -> None:
    state_of(store.layout.root, files).remember(failure(2))


def remembered(store: DiskStore) -> None:
    state_of(store.layout.root, QuickFiles()).remember(failure(1))


def check_remembered(root: Path) -> None:
    """The failure is the one before or the new one, and the next one is remembered."""
    state = state_of(root, QuickFiles())
    assert state.failure("model", ENVIRONMENT) in (failure(1), failure(2))
    state.remember(failure(3))
    assert state.failure("model", ENVIRONMENT) == failure(3)


def has_new(root: Path) -> None:
    assert DiskStore(root).object_problem(manifest_of(NEW).objects()[0]) == ""


def has_published(root: Path, target: str = "model") -> None:
    package = DiskStore(root).read_package(target, ENVIRONMENT)
    assert package is not None
    assert package[1] == manifest_of(NEW, target=target)


def has_no_ref(root: Path) -> None:
    assert DiskStore(root).read_package("model", ENVIRONMENT) is None


def put_new(store: DiskStore) -> None:
    store.put_object(NEW)


PUT = Operation("put", put, finished=has_new)
PUT_FILE = Operation("put a file", put_file, finished=has_new)
PUBLISH = Operation("publish", publish, prepare=put_new, finished=has_published)
PUBLISH_ANOTHER = Operation(
    "publish another target",
    publish_another,
    prepare=put_new,
    finished=lambda root: has_published(root, "another"),
)
BUILD = Operation(
    "build into a new store", build_and_publish, finished=has_published, may_remove=True
)
COPY = Operation("copy and publish", copy, finished=has_published)
QUARANTINE_REF = Operation("quarantine a ref", quarantine_ref, finished=has_no_ref, may_remove=True)
QUARANTINE_OBJECT = Operation(
    "quarantine an object", quarantine_object, prepare=put_new, finished=is_quarantined
)
SWEEP = Operation("sweep", sweep, prepare=leave_temporary)
LOCK = Operation("lock", lock, check=locked_again)
READ = Operation("read", read)
PUBLISH_SIGNED = Operation("publish signed", sign, prepare=put_new, finished=has_signed)
COLLECT = Operation("collect", collect, prepare=prepare_collection, finished=is_collected)
IMPORT = Operation("import a bundle", import_it, prepare=prepare_import, finished=has_arrived)
PULL = Operation("pull from a remote", pull, prepare=elsewhere, finished=has_arrived)
REMEMBER = Operation("remember a failure", remember, prepare=remembered, check=check_remembered)

# Interrupted at every call: operations of the store, and what the daemon writes beside it.
OPERATIONS = (
    PUT,
    PUT_FILE,
    PUBLISH,
    PUBLISH_ANOTHER,
    COPY,
    QUARANTINE_REF,
    QUARANTINE_OBJECT,
    SWEEP,
    LOCK,
    READ,
    PUBLISH_SIGNED,
    COLLECT,
    IMPORT,
    PULL,
    REMEMBER,
)
# Those that promise that what they returned from survives a loss of power.
DURABLE = (
    PUT,
    PUT_FILE,
    PUBLISH,
    PUBLISH_ANOTHER,
    COPY,
    QUARANTINE_REF,
    QUARANTINE_OBJECT,
    PUBLISH_SIGNED,
    IMPORT,
    PULL,
)
