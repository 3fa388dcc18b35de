"""Processes that put a store under load: ``python -m support.store_load DIRECTORY WRITERS``.

That is one host, told on its standard input what to start and what to kill. What a process did is
appended to its journal in ``DIRECTORY/journal``, one JSON value a line, so that nothing is lost with it.
No torch.

Targets ``own-W-K`` are written by the writer W alone, in ascending order; ``shared-K`` by all of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from preheat.errors import BusyError, CorruptedError, StoreError
from preheat.manifest import Form, ObjectRef
from preheat.store import DiskStore, build_lock
from support import collector
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheat.manifest import Manifest

OWN_TARGETS = 3
SHARED_TARGETS = 4
PARTS = ("one", "two", "common")
_REPORT_EVERY = 20
_TRIES = 5
# A day outside of tests: a writer that takes longer from its first object to its ref begins anew.
GRACE_SECONDS = 2.0


def own_target(writer: int, number: int) -> str:
    return f"own-{writer}-{number % OWN_TARGETS}"


def content_of(maker: str, part: str) -> bytes:
    """What a part of a package has to hold; packages of many makers have a part in common."""
    seed = maker if part != "common" else str(int(maker.partition(":")[2] or 0) % 7)
    return f"{seed} {part} ".encode() * (200 + len(seed) * 997 % 3000)


class Journal:
    """Lines that survive their writer's end by a signal."""

    def __init__(self, directory: Path, name: str) -> None:
        path = directory / "journal" / name
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **values: Any) -> None:
        os.write(self._descriptor, json.dumps(values).encode() + b"\n")


def journals(directory: Path, role: str) -> Iterator[dict[str, Any]]:
    """All that processes of a role have written, in order for each of them."""
    for path in sorted((directory / "journal").glob(f"{role}-*")):
        for line in path.read_bytes().splitlines():
            yield json.loads(line)


def write(directory: Path, number: int, writers: int) -> NoReturn:
    """Put and publish; say what is about to be published, and what was."""
    chance = random.Random(f"{number} {time.monotonic_ns()}")  # noqa: S311 - load, no secret
    journal = Journal(directory, f"writer-{number}")
    store = DiskStore(directory / "store", create=True)
    done = [line["number"] for line in journals(directory, "writer") if line["writer"] == number]
    count = max(done, default=0)
    while True:
        count += 1
        shared = chance.random() < 0.3
        target = f"shared-{count % SHARED_TARGETS}" if shared else own_target(number, count)
        about = {"writer": number, "number": count, "target": target}
        journal.write(what="begun", **about)
        if _publish(store, target, f"{number}:{count}", locked=shared and chance.random() < 0.5):
            journal.write(what="published", **about)


def _publish(store: DiskStore, target: str, maker: str, *, locked: bool) -> bool:
    if not locked:
        _put_and_publish(store, target, maker)
        return True
    try:
        with build_lock(store.layout.root, target, ENVIRONMENT):
            _put_and_publish(store, target, maker)
    except BusyError:
        return False
    return True


def _put_and_publish(store: DiskStore, target: str, maker: str) -> None:
    for attempt in range(_TRIES):
        manifest = _put(store, target, maker)
        try:
            store.publish(manifest)
        except StoreError as error:
            # Only for a writer that was kept from its processor for longer than the grace.
            if "is not in the store" not in error.message or attempt == _TRIES - 1:
                raise
        else:
            return


def _put(store: DiskStore, target: str, maker: str) -> Manifest:
    parts = []
    for part in PARTS:
        digest, size = store.put_object(content_of(maker, part))
        parts.append(ObjectRef(name=part, sha256=digest, size=size))
    form = Form(kind="dynamo", format=1, objects=tuple(parts))
    return msgspec.structs.replace(manifest_of(target=target), factory=maker, forms=(form,))


@dataclasses.dataclass
class Counts:
    """What a reader met since it last said so. ``overtaken``: read again, because a newer one was there."""

    reads: int = 0
    missing: int = 0
    overtaken: int = 0
    torn: int = 0
    lost: int = 0


class Reading:
    """Reads packages as a worker does, and knows what it has seen."""

    def __init__(self, directory: Path) -> None:
        self._store = DiskStore(directory / "store")
        self._seen: dict[str, int] = {}
        self.counts = Counts()
        self.problems: list[str] = []

    def read(self, target: str) -> None:
        """One package, every object of it."""
        while True:
            ref = None
            try:
                ref = self._store.read_ref(target, ENVIRONMENT)
                package = collector.read(self._store, target, ENVIRONMENT)
                if package is None:
                    self._missing(target)
                    return
                ref = package.ref
                self._check(target, package.manifest)
            except CorruptedError as error:
                now = self._store.read_ref(target, ENVIRONMENT)
                if ref is not None and now is not None and now.manifest != ref.manifest:
                    self.counts.overtaken += 1
                    continue
                self.counts.torn += 1
                self.problems.append(f"{target}: {error}")
            self.counts.reads += 1
            return

    def _missing(self, target: str) -> None:
        self.counts.missing += 1
        if target in self._seen:
            self.counts.lost += 1
            self.problems.append(f"{target}: is not there any more")

    def _check(self, target: str, manifest: Manifest) -> None:
        for needed in manifest.objects():
            opened = self._store.open_object(needed)
            if opened.read() != content_of(manifest.factory, needed.name):
                self.counts.torn += 1
                self.problems.append(f"{target}: {needed.name} of {manifest.factory} is another")
            opened.close()
        if target.startswith("own-"):
            number = int(manifest.factory.partition(":")[2])
            if number < self._seen.get(target, 0):
                self.counts.lost += 1
                self.problems.append(f"{target}: {number} after {self._seen[target]}")
            self._seen[target] = number
        else:
            self._seen[target] = 0


def read(directory: Path, number: int, writers: int) -> NoReturn:
    """Read for ever, and say now and then what was met."""
    chance = random.Random(f"{number} {time.monotonic_ns()}")  # noqa: S311 - load, no secret
    journal = Journal(directory, f"reader-{number}")
    reading = Reading(directory)
    targets = [own_target(writer, own) for writer in range(writers) for own in range(OWN_TARGETS)]
    targets += [f"shared-{shared}" for shared in range(SHARED_TARGETS)]
    while True:
        for _ in range(_REPORT_EVERY):
            reading.read(chance.choice(targets))
        journal.write(**dataclasses.asdict(reading.counts), problems=reading.problems)
        reading.counts, reading.problems = Counts(), []


def collect(directory: Path, number: int, writers: int) -> NoReturn:
    """Sweep and collect for ever, as a command would."""
    journal = Journal(directory, f"collector-{number}")
    store = DiskStore(directory / "store", create=True)
    while True:
        swept = len(store.sweep_temporary())
        removed = collector.collect(store, GRACE_SECONDS)
        journal.write(rounds=1, swept=swept, removed=removed)
        time.sleep(0.05)


ROLES = {"writer": write, "reader": read, "collector": collect}


class Host:
    """Forks processes of the load and kills them, as told by lines on standard input.

    ``start ROLE NUMBER``, ``kill ROLE NUMBER``, ``look``: the answer to each is one line of JSON, the exit
    statuses of what has ended. Forking spares each process the start of an interpreter.
    """

    def __init__(self, directory: Path, writers: int) -> None:
        self._directory = directory
        self._writers = writers
        self._processes: dict[str, int] = {}

    def serve(self) -> None:
        """Until standard input ends; then nothing of it is left."""
        try:
            for line in sys.stdin:
                what, *name = line.split()
                sys.stdout.write(json.dumps(self._do(what, *name)) + "\n")
                sys.stdout.flush()
        finally:
            for name in list(self._processes):
                self._kill(name)

    def _do(self, what: str, *name: str) -> dict[str, int]:
        if what == "start":
            self._start(*name)
        elif what == "kill":
            return {"-".join(name): self._kill("-".join(name))}
        return dict(self._look())

    def _start(self, role: str, number: str) -> None:
        pid = os.fork()
        if pid == 0:
            _live(self._directory, role, int(number), self._writers)
        self._processes[f"{role}-{number}"] = pid

    def _kill(self, name: str) -> int:
        pid = self._processes.pop(name)
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _look(self) -> Iterator[tuple[str, int]]:
        for name, pid in self._processes.items():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                yield name, os.waitstatus_to_exitcode(status)


def _live(directory: Path, role: str, number: int, writers: int) -> NoReturn:
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 0)
        os.dup2(devnull, 1)
        ROLES[role](directory, number, writers)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    Host(Path(sys.argv[1]), int(sys.argv[2])).serve()
