"""What a store costs with 100 packages and with 10,000. Run by hand: ``make bench-store``.

Packages of ten small objects each, two of which all share, are made as plain files where only their number
matters; what is measured goes through the store itself. One line a figure, as a row of a table: aim, figure,
and whether the aim is met. Nothing is asserted: machines differ, and a busy machine is slow. Rounds of the
two stores alternate, so that a slow moment meets both. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from preheat.manifest import Ref, encode, environment_digest, sha256
from preheat.store import DiskStore
from preheat.store.collection import Limits, Rules
from preheat.version import VERSION
from support.collecting import later_store
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECTS = 10
SHARED = 2
OBJECT_BYTES = 2048


def contents(name: str) -> list[bytes]:
    """The objects of one package."""
    shared = [b"shared %d" % number for number in range(SHARED)]
    own = [f"{name} {number} ".encode() for number in range(OBJECTS - SHARED)]
    return [one.ljust(OBJECT_BYTES, b".") for one in (*shared, *own)]


def fill(root: Path, packages: int) -> DiskStore:
    """A store with so many packages, one a target."""
    store = DiskStore(root, create=True)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    for number in range(packages):
        parts = contents(f"package {number}")
        manifest = manifest_of(*parts, target=f"target{number}")
        text = encode(manifest)
        for data in (*parts, text):
            write(store.layout.object(sha256(data)), data)
        ref = Ref(
            target=manifest.target,
            environment=environment_digest(manifest.environment),
            manifest=sha256(text),
            generation=1,
            published_at=at,
        )
        write(store.layout.ref(ref.target, ENVIRONMENT), encode(ref))
    return store


def write(path: Path, data: bytes) -> None:
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)


def put_and_publish(store: DiskStore, name: str) -> None:
    parts = contents(name)
    for part in parts:
        store.put_object(part)
    store.publish(manifest_of(*parts, target=f"new {name}"))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def say(what: str, aim: str, figure: str, met: bool | None) -> None:
    verdict = "" if met is None else "ok" if met else "over"
    print(f"| {what} | {aim} | {figure} | {verdict} |", flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", type=int, default=100)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--directory", type=Path, help="Where the stores are made.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        measure(Path(directory), options.small, options.large, options.rounds)


def measure(directory: Path, small: int, large: int, rounds: int) -> None:
    kernel, python = platform.release(), platform.python_version()
    print(  # noqa: T201
        f"preheat {VERSION}, Python {python}, Linux {kernel}, {os.cpu_count()} cores; "
        f"{OBJECTS} objects a package\n",
        flush=True,
    )
    stores = {count: fill(directory / str(count), count) for count in (small, large)}
    os.sync()
    times: dict[int, list[float]] = {small: [], large: []}
    for number in range(rounds):
        for count, store in stores.items():
            times[count].append(seconds(lambda s=store, n=number: put_and_publish(s, f"{n}")))
    medians = {count: statistics.median(found) for count, found in times.items()}
    for count, median in medians.items():
        say(f"put and publish with {count} packages", "", f"{median * 1e3:.1f} ms", None)
    ratio = medians[large] / medians[small]
    say("the ratio of the two", "1.5", f"{ratio:.2f}", ratio <= 1.5)
    collect(directory, stores)


def collect(directory: Path, stores: dict[int, DiskStore]) -> None:
    each: dict[str, dict[int, float]] = {"plan a collection": {}, "delete half": {}}
    for count in stores:
        later = later_store(directory / str(count), days=2)
        collector = later.collector()
        plan = collector.plan(Rules())
        each["plan a collection"][count] = seconds(lambda c=collector: c.plan(Rules()))
        half = Rules(store=Limits(max_bytes=plan.bytes_before // 2))
        each["delete half"][count] = seconds(lambda c=collector, r=half: c.collect(r))
    for what, found in each.items():
        small, large = found
        for count, took in found.items():
            a_package = took / count * 1e6
            say(f"{what} of {count} packages", "", f"{took:.2f} s ({a_package:.0f} us each)", None)
        growth = (found[large] / large) / (found[small] / small)
        say(
            f"{what}: time for each package, {large} to {small}",
            "1.5",
            f"{growth:.2f}",
            growth <= 1.5,
        )


if __name__ == "__main__":
    main()
