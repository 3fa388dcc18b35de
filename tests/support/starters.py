"""Nodes that start at once and want the same packages: what they ask of the store they share, counted.

Everything that decides is preheat's own: flights, leases, and how they are read and written. Doubles are the
store's bytes (``Network``, which shows late and fails on purpose, or a real directory), a node's clock, and
its build, which is a pause and then one small object.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import errno
import multiprocessing
import os
import random
import signal
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from preheat.errors import RemoteError
from preheat.manifest import Ref, encode, sha256
from preheat.store.locks import Holder
from preheatd.flight.decision import Policy
from preheatd.flight.flying import Flight, Landed
from preheatd.flight.lease import BuildLease
from preheatd.flight.shared import SharedStore
from preheatd.remotes.remote import Remote, object_path, ref_path
from support import fake_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from preheatd.flight.settings import WhenBusy
    from preheatd.flight.shared import Place

_T = TypeVar("_T")
ENVIRONMENT = "e" * 32
_LARGE = 1 << 20
_BEGUN = "builds"


@dataclasses.dataclass
class Counts:
    """What happened. Reads are by node; of objects, those that were answered.

    ``times``: when the shared store was asked something.
    """

    builds: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter
    )
    small_reads: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    object_reads: collections.Counter[tuple[int, str]] = dataclasses.field(
        default_factory=collections.Counter
    )
    writes: int = 0
    times: list[float] = dataclasses.field(default_factory=list)
    landed: dict[tuple[int, str], str] = dataclasses.field(default_factory=dict)
    finished_at: float = 0.0

    def add(self, other: Counts) -> None:
        self.builds += other.builds
        self.small_reads += other.small_reads
        self.object_reads += other.object_reads
        self.writes += other.writes
        self.times += other.times
        self.landed |= other.landed
        self.finished_at = max(self.finished_at, other.finished_at)

    @property
    def most_object_reads(self) -> int:
        """Of one object by one node."""
        return max(self.object_reads.values(), default=0)

    @property
    def most_objects(self) -> int:
        """Of the objects of one node and target: every node has one environment."""
        by_node = collections.Counter(node for node, _ in self.object_reads.elements())
        return max(by_node.values(), default=0)

    @property
    def most_small_reads(self) -> int:
        return max(self.small_reads.values(), default=0)

    @property
    def busiest_second(self) -> int:
        """How often the shared store was asked something in its busiest second after the first one."""
        seconds = collections.Counter(int(when) for when in self.times if when >= 1)
        return max(seconds.values(), default=0)

    def how(self) -> dict[str, int]:
        """How many landed how."""
        return dict(collections.Counter(self.landed.values()))


@dataclasses.dataclass
class Network:
    """A store in memory that several nodes reach, each through a view of its own.

    ``exclusive``: whether a file can be made that only one makes. ``late_seconds``: for up to so long a node
    goes on seeing what it has seen of a name, its absence included, as network file systems do. ``failing``:
    how likely a read ends with ESTALE.
    """

    chance: random.Random
    exclusive: bool = True
    late_seconds: float = 0.0
    failing: float = 0.0
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def view(self, now: Callable[[], float]) -> View:
        return View(self, now)


@dataclasses.dataclass
class View:
    """What one node sees of a ``Network``."""

    network: Network
    now: Callable[[], float]
    _seen: dict[str, tuple[float, bytes | None]] = dataclasses.field(default_factory=dict)

    @property
    def creates_exclusively(self) -> bool:
        return self.network.exclusive

    def read(self, path: str, limit: int) -> bytes | None:
        network = self.network
        if network.chance.random() < network.failing:
            raise RemoteError(f"{path}: {os.strerror(errno.ESTALE)}.")
        until, data = self._seen.get(path, (-1.0, None))
        if self.now() >= until:
            data = network.files.get(path)
            self._seen[path] = (self.now() + network.chance.random() * network.late_seconds, data)
        return data

    def create(self, path: str, data: bytes) -> bool:
        known = self.network.files if self.network.exclusive else self._visible(path)
        if path in known:
            return False
        self.put_bytes(path, data)
        return True

    def put_bytes(self, path: str, data: bytes) -> None:
        self.network.files[path] = data
        self._seen.pop(path, None)

    def _visible(self, path: str) -> set[str]:
        return set() if self.read(path, _LARGE) is None else {path}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """A node's own: ``ahead`` seconds from the loop's, and ``rate`` times as fast."""

    ahead: float = 0.0
    rate: float = 1.0

    def now(self) -> float:
        return self.ahead + self.rate * asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What the nodes of a simulation want and how they are. Times in seconds."""

    targets: tuple[str, ...] = ("encoder",)
    environments: tuple[str, ...] = (ENVIRONMENT,)
    sources: tuple[str, ...] = ("v1",)
    build_seconds: float = 60.0
    answer_seconds: float = 0.02
    length: float = 120.0
    when_busy: WhenBusy = "wait"
    once: bool = True
    spread_seconds: float = 0.0
    clocks: Literal["right", "wrong"] = "right"
    fails: Literal["", "once", "always", "refused"] = ""


@dataclasses.dataclass
class Starter:
    """One node: of ``preheatd.flight.flying.Node`` for each of its targets, one build at a time."""

    number: int
    scene: Scene
    place: Place
    counts: Counts
    seed: int = 0
    died: bool = False
    stopped_until: float = 0.0
    builds_begun: Callable[[Starter, str], None] = lambda starter, target: None
    _free: int = 1

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} {self.number}")  # noqa: S311 - repeatable
        wrong = self.scene.clocks == "wrong"
        self.clock = Clock(
            ahead=self._chance.uniform(-1e6, 1e6) if wrong else 0.0,
            rate=self._chance.uniform(0.8, 1.25) if wrong else 1.0,
        )
        self.environment = self.scene.environments[self.number % len(self.scene.environments)]
        self.sources = self.scene.sources[self.number % len(self.scene.sources)]

    async def run(self) -> None:
        await asyncio.sleep(self._chance.random() * self.scene.spread_seconds)
        targets = list(self.scene.targets)
        self._chance.shuffle(targets)
        await asyncio.gather(*(self._fly(target) for target in targets))
        self.counts.finished_at = max(self.counts.finished_at, asyncio.get_running_loop().time())

    async def _fly(self, target: str) -> None:
        token = f"node {self.number}"
        flight = Flight(
            own=BuildLease(
                target=target,
                environment=self.environment,
                holder=Holder(host=f"node{self.number}", pid=1),
                token=token,
                length=self.scene.length,
                sources=self.sources,
            ),
            shared=SharedStore(
                remote=self.place,
                target=target,
                environment=self.environment,
                ask=self.ask,
                sleep=self.sleep,
                chance=self._chance.random,
            ),
            node=_Wanting(self, target),
            policy=Policy(
                token=token,
                when_busy=self.scene.when_busy,
                length=self.scene.length,
                once=self.scene.once,
                sources=self.sources,
            ),
            clock=self.clock.now,
            sleep=self.sleep,
            chance=self._chance.random,
        )
        landed: Landed[bool] = await flight.run()
        self.counts.landed[self.number, target] = landed.how

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        await self.lives()

    async def lives(self) -> None:
        """Nothing of a dead node runs any more, and nothing of one that is stopped before it goes on."""
        if self.died:
            await asyncio.Event().wait()  # for ever
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self.stopped_until - now))

    async def ask(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """One call of the shared store, counted."""
        await asyncio.sleep(self.scene.answer_seconds * self._chance.random())
        await self.lives()
        self.counts.times.append(asyncio.get_running_loop().time())
        is_object = "/objects/" in arguments[0]
        if call.__name__ != "read":
            self.counts.writes += 1
        elif not is_object:
            self.counts.small_reads[self.number] += 1
        answer = call(*arguments)
        if is_object and call.__name__ == "read" and answer is not None:
            self.counts.object_reads[self.number, arguments[0]] += 1
        return answer


@dataclasses.dataclass
class _Wanting:
    """A starter that wants one target."""

    starter: Starter
    target: str

    def may_build(self) -> bool:
        return self.starter._free > 0

    @contextlib.contextmanager
    def booked(self) -> Iterator[None]:
        self.starter._free -= 1
        try:
            yield
        finally:
            self.starter._free += 1

    async def take(self, manifest: str) -> bool:
        starter = self.starter
        data = await starter.ask(starter.place.read, object_path(manifest), _LARGE)
        if data is None:
            raise RemoteError(f"{manifest} is not there.")
        return bool(msgspec.json.decode(data)["sources"] == starter.sources)

    async def build(self) -> bool:
        starter, scene = self.starter, self.starter.scene
        starter.counts.builds[self.target, starter.environment] += 1
        starter.builds_begun(starter, self.target)
        await starter.lives()
        await starter.sleep(scene.build_seconds)
        first = sum(starter.counts.builds.values()) == 1
        return not (scene.fails in ("always", "refused") or (scene.fails == "once" and first))

    def said(self, done: bool) -> _Said:
        return _Said(done, None if done else ("no room", self.starter.scene.fails == "refused"))

    async def give(self) -> str:
        starter, place = self.starter, self.starter.place
        content = {"sources": starter.sources, "target": self.target, "of": starter.number}
        data = msgspec.json.encode(content)
        digest = sha256(data)
        await starter.ask(place.put_bytes, object_path(digest), data)
        ref = Ref(
            target=self.target,
            environment=starter.environment,
            manifest=digest,
            generation=1,
            published_at="2026-12-01T12:00:00.000+00:00",
        )
        path = ref_path(self.target, starter.environment)
        await starter.ask(place.put_bytes, path, encode(ref))
        return digest

    def tell(self, what: str, why: str) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class _Said:
    is_published: bool
    failure: tuple[str, bool] | None


def simulate(
    nodes: int,
    scene: Scene,
    network: Network | None = None,
    *,
    seed: int = 0,
    builds_begun: Callable[[Starter, str], None] = lambda starter, target: None,
) -> Counts:
    """Let so many nodes start at once, in one process and in no time. Dead ones are left behind."""
    counts = Counts()
    shared = network or Network(random.Random(seed))  # noqa: S311 - repeatable

    async def everything() -> None:
        loop = asyncio.get_running_loop()
        starters = [
            Starter(number, scene, shared.view(loop.time), counts, seed, builds_begun=builds_begun)
            for number in range(nodes)
        ]
        tasks = {asyncio.ensure_future(one.run()): one for one in starters}
        await _all_living(tasks)

    fake_time.run(everything())
    return counts


async def _all_living(tasks: dict[asyncio.Task[None], Starter]) -> None:
    """Until all have landed that have not died; the dead ones are no more than tasks to be thrown away."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=60)
        for one in done:
            one.result()
        if all(tasks[one].died for one in waiting):
            break
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def in_processes(
    nodes: int, processes: int, scene: Scene, directory: Path, *, first_dies: bool = False
) -> tuple[Counts, int]:
    """The same over real processes that share a directory and a clock; and how many builds were begun.

    ``first_dies``: the process of the first node that begins to build is killed then, with all its nodes.
    """
    context = multiprocessing.get_context("spawn")
    clocks, results, started = [], [], []
    for number in range(processes):
        clock, its_clock = context.Pipe()
        result, its_result = context.Pipe()
        numbers = range(number, nodes, processes)
        process = context.Process(
            target=_process,
            args=(its_clock, its_result, numbers, scene, directory, first_dies),
            daemon=True,
        )
        process.start()
        its_clock.close()
        its_result.close()
        clocks.append(clock)
        results.append(result)
        started.append(process)
    fake_time.conduct(clocks)
    counts = Counts()
    for result in results:
        with contextlib.suppress(EOFError, ConnectionResetError):  # it was killed
            counts.add(result.recv())
    for process in started:
        process.join()
    begun = (directory / _BEGUN).read_text().splitlines()
    return counts, len(begun)


def _process(
    clock: Connection,
    result: Connection,
    numbers: Sequence[int],
    scene: Scene,
    directory: Path,
    first_dies: bool,
) -> None:
    """Some of the nodes of ``in_processes``."""
    counts, place = Counts(), Remote(f"file://{directory}/remote")

    def builds_begun(starter: Starter, target: str) -> None:
        with (directory / _BEGUN).open("a") as file:
            file.write(f"{starter.number} {target}\n")
        if first_dies:
            with contextlib.suppress(FileExistsError):
                (directory / "died").mkdir()
                os.kill(os.getpid(), signal.SIGKILL)

    async def everything() -> None:
        starters = [
            Starter(number, scene, place, counts, builds_begun=builds_begun) for number in numbers
        ]
        await asyncio.gather(*(one.run() for one in starters))

    fake_time.run(everything(), fake_time.conducted(clock))
    clock.close()
    result.send(counts)
