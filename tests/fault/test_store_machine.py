"""Put, publish, read, lease, collect and crash in any order, against a model of what a store promises."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from preheat.manifest import sha256
from preheat.store import DiskStore
from preheat.store.files import Files
from support import collector, figures
from support.collecting import DAY_SECONDS, later_store
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from preheat.store.leases import Lease, LeasedPackage

TARGETS = ("model", "encoder")
CONTENTS = st.integers(0, 6).map(lambda number: b"%d" % number * 50)
COMMON = b"what packages have in common"
# Calls of the operating system after which the process dies: a publication makes about forty.
MOMENTS = st.integers(1, 60)


# In memory where that can be had: what is looked for is order, and a disk would take minutes.
MEMORY = "/dev/shm"  # noqa: S108 - directories of its own are made there
PLACE = MEMORY if os.access(MEMORY, os.W_OK) else None


class Killed(BaseException):
    """Stands for the end of the process."""


class Dying(Files):
    """The process ends at call number ``left``, and nothing happens after it. Closing is the kernel's."""

    def __init__(self, left: int) -> None:
        self.left = left


def _dying(name: str) -> Any:
    real = getattr(Files, name)

    @functools.wraps(real)
    def call(self: Dying, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise Killed(name)
        return real(self, *arguments, **named)

    return call


for _name in vars(Files):
    if not _name.startswith("_") and _name not in ("close", "process_exists"):
        setattr(Dying, _name, _dying(_name))


class StoreMachine(RuleBasedStateMachine):
    """``current``: what each target's ref must lead to. ``leased``: what somebody has loaded."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=PLACE, prefix="preheat-machine-")
        self.root = Path(self.directory.name) / "store"
        self.store = DiskStore(self.root, create=True)
        self.current: dict[str, bytes] = {}
        self.leased: list[LeasedPackage] = []

    def teardown(self) -> None:
        for one in self.leased:
            _release(one.lease)
        self.directory.cleanup()

    @rule(content=CONTENTS)
    def put(self, content: bytes) -> None:
        assert self.store.put_object(content) == (sha256(content), len(content))

    @rule(name=st.sampled_from(TARGETS), content=CONTENTS)
    def publish(self, name: str, content: bytes) -> None:
        _publish(self.store, name, content)
        self.current[name] = content

    @rule(name=st.sampled_from(TARGETS), content=CONTENTS, moment=MOMENTS)
    def publish_and_crash(self, name: str, content: bytes, moment: int) -> None:
        figures.note("state machine", crashes=1)
        try:
            _publish(DiskStore(self.root, files=Dying(moment)), name, content)
        except Killed:
            found = self._read(name)
            if found is None:
                assert name not in self.current
                return
            assert found in (content, self.current.get(name))
            self.current[name] = found
        else:
            self.current[name] = content

    @rule(name=st.sampled_from(TARGETS))
    def read(self, name: str) -> None:
        assert self._read(name) == self.current.get(name)

    @rule(name=st.sampled_from(TARGETS))
    def lease(self, name: str) -> None:
        package = collector.read(self.store, name, ENVIRONMENT)
        if package is not None:
            assert package.lease is not None
            assert package.lease.held
            self.leased.append(package)

    @precondition(lambda self: self.leased)
    @rule()
    def release(self) -> None:
        _release(self.leased.pop().lease)

    @rule()
    def collect(self) -> None:
        """Two days later, when nothing is within its grace any more."""
        collector.collect(later_store(self.root), DAY_SECONDS)
        keep = {package.ref.manifest for package in self.leased}
        keep |= {ref.manifest for ref in self.store.refs()}
        wanted = set(keep)
        for digest in keep:
            wanted |= {one.sha256 for one in self.store.read_manifest(digest).objects()}
        assert set(self.store.object_digests()) == wanted
        assert list(self.store.layout.temporary.iterdir()) == []
        figures.note("state machine", collections=1)

    @rule(moment=MOMENTS)
    def collect_and_crash(self, moment: int) -> None:
        figures.note("state machine", crashes=1)
        store = later_store(self.root, files=Dying(1_000_000))
        store._files.left = moment  # type: ignore[attr-defined]  # it opened the store already
        try:
            collector.collect(store, DAY_SECONDS)
        except Killed:
            pass

    @invariant()
    def nothing_is_lost(self) -> None:
        for target, content in getattr(self, "current", {}).items():
            assert self._read(target) == content
        for package in getattr(self, "leased", []):
            _contents(self.store, package)

    def _read(self, target: str) -> bytes | None:
        package = self.store.read_package(target, ENVIRONMENT)
        if package is None:
            return None
        own, common = (self.store.open_object(one) for one in package[1].objects())
        with own, common:  # type: ignore[attr-defined]
            assert common.read() == COMMON
            return own.read()


def _publish(store: DiskStore, target: str, content: bytes) -> None:
    for part in (content, COMMON):
        store.put_object(part)
    store.publish(manifest_of(content, COMMON, target=target))


def _contents(store: DiskStore, package: LeasedPackage) -> None:
    for needed in package.manifest.objects():
        store.open_object(needed).close()


def _release(lease: Lease | None) -> None:
    if lease is not None:
        lease.release()


StoreMachine.TestCase.settings = settings(
    max_examples=100 if figures.FULL else 15,
    stateful_step_count=40 if figures.FULL else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStore = StoreMachine.TestCase
