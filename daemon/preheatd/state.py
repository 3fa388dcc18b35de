"""The state directory: failures, logs, cached answers of interpreters, compiler caches, work in progress.

Everything here can be deleted while nothing runs: it costs time, never a package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from preheat.errors import StoreError, UntrustedStoreError
from preheat.limits import MAX_RECORD_BYTES, decode_json, read_regular
from preheat.store.files import Files
from preheat.store.trust import Trust
from preheat.verdict import Reason
from preheatd import owned
from preheatd.caches import CompilerCaches
from preheatd.leftovers import (
    sweep_caches,
    sweep_compilers,
    sweep_records,
    temporary_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_Record = TypeVar("_Record", bound=msgspec.Struct)

LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 16 * 1024
FILES = Files()
NO_ENVIRONMENT = "none"


_DIRECTORIES = (
    "failures",
    "logs",
    "probes",
    "caches",
    "work",
    "daemons",
    "published",
    "proofs",
    "damages",
)

_RECORDS = ("failures", "probes", "published", "proofs")

# How far back an edit may be undone without a build.
_PUBLISHED_KEPT = 8
# A package that stays whole for so long was not damaged "again".
_DAMAGE_FORGOTTEN_SECONDS = 6 * 60 * 60.0


class Published(msgspec.Struct, frozen=True):
    """Manifests of a target in an environment, by digest, the last published one first."""

    manifests: tuple[str, ...] = ()


class FreshProof(msgspec.Struct, frozen=True, kw_only=True):
    """What the last really fresh proof of a target imported, and how long build and proof took.

    ``modules`` by form, see ``preheat.job.ProvenEvent``; a forked proof is compared with it.
    """

    modules: dict[str, tuple[str, ...]]
    libraries: tuple[str, ...]
    seconds: float


class Damages(msgspec.Struct, frozen=True, kw_only=True):
    """How often in a row a package had to be built again because it was damaged; ``at``: the last time.

    In seconds since the epoch, because it has to outlive the process and the boot.
    """

    times: int
    at: float


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The last build of a target that failed, until one succeeds.

    ``tried`` holds the sources states (see ``fingerprint.py``) that it stands for: under another
    state the target is tried again at once. ``attempts`` counts failures in a row. ``at`` is in
    seconds since the epoch, because it has to outlive the process and the boot.
    """

    target: str
    environment: str
    kind: str
    message: str
    remedy: str = ""
    phase: str = ""
    exit_code: int = 3
    refused: bool = False
    reasons: tuple[Reason, ...] = ()
    tried: tuple[str, ...] = ()
    attempts: int = 1
    moving: int = 0
    at: float = 0.0


@dataclasses.dataclass(frozen=True)
class State:
    """The state directory of one project or service.

    A failure that cannot be written, on a full disk, is known to this object for as long as it lives.
    """

    path: Path
    files: Files = FILES
    _unwritten: dict[tuple[str, str], Failure] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def prepare(self) -> None:
        """Make the directory, private to its owner.

        Raises ``StoreError``; ``UntrustedStoreError`` for one that somebody else has made: what is in it
        goes into builds.
        """
        try:
            if self.path.exists():
                self._judge(self.path.stat())
            for name in _DIRECTORIES:
                (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise StoreError(
                f"The state directory {self.path} cannot be used: {error.strerror}.",
                remedy="Set PREHEAT_STATE to a directory that you own.",
            ) from error

    def _judge(self, status: os.stat_result) -> None:
        owners = Trust.of("require", frozenset()).owners
        if status.st_uid not in owners:
            raise UntrustedStoreError(
                f"The state directory {self.path} belongs to uid {status.st_uid}.",
                remedy="Set PREHEAT_STATE to a directory that you own.",
            )

    def sweep(self) -> None:
        """Remove what killed daemons, commands and builds left, and end what they had started."""
        owned.sweep(self.work)
        owned.sweep(self.daemons)
        sweep_records(self.path / name for name in _RECORDS)
        sweep_caches(self.path / "caches", self._is_in_use)

    def sweep_compilers(self) -> None:
        """Remove what the compilers of a build that was ended left, unless another one runs."""
        sweep_compilers(self.path / "caches", lambda: any(self._owners(self.work)))

    def _is_in_use(self) -> bool:
        return any(any(self._owners(parent)) for parent in (self.work, self.daemons))

    @property
    def work(self) -> Path:
        """Where builds in progress have their directories."""
        return self.path / "work"

    @property
    def daemons(self) -> Path:
        """Where running daemons register."""
        return self.path / "daemons"

    def log(self, target: str, environment: str) -> Path:
        """The log of the last build of a target."""
        return self.path / "logs" / f"{target}@{environment or NO_ENVIRONMENT}.log"

    def log_tail(self, target: str, environment: str, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of that log; empty when there is none."""
        try:
            with self.log(target, environment).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def failure(self, target: str, environment: str) -> Failure | None:
        """The remembered failure, or None; a damaged record counts as none."""
        unwritten = self._unwritten.get((target, environment))
        return unwritten or read_record(self._failure(target, environment), Failure, self.files)

    def remember(self, failure: Failure) -> None:
        """Keep a failure, in the place of the one before. Raises ``OSError``; then it is kept here alone."""
        key = failure.target, failure.environment
        self._unwritten[key] = failure
        write_record(self._failure(*key), failure, self.files)
        del self._unwritten[key]

    def forget(self, target: str, environment: str) -> None:
        """Drop what is remembered about a target, because it was built. Raises ``OSError``."""
        self._unwritten.pop((target, environment), None)
        self._unlink(self._failure(target, environment))

    def published(self, target: str, environment: str) -> tuple[str, ...]:
        """The manifests that were published from here, by digest, the last one first."""
        found = read_record(self._published(target, environment), Published, self.files)
        return found.manifests if found else ()

    def note_published(self, target: str, environment: str, manifest: str) -> None:
        """Remember a manifest that was published, again or for the first time.

        Where that cannot be written, undoing an edit costs a build, and nothing else.
        """
        before = (one for one in self.published(target, environment) if one != manifest)
        kept = (manifest, *before)[:_PUBLISHED_KEPT]
        with contextlib.suppress(OSError):
            write_record(self._published(target, environment), Published(kept), self.files)

    def note_withdrawn(self, target: str, environment: str, manifest: str) -> None:
        """Forget a manifest: its package turned out to be wrong."""
        kept = tuple(one for one in self.published(target, environment) if one != manifest)
        write_record(self._published(target, environment), Published(kept), self.files)

    def fresh_proof(self, target: str, environment: str) -> FreshProof | None:
        """What is known of the last really fresh proof."""
        return read_record(self._proof(target, environment), FreshProof, self.files)

    def note_fresh_proof(self, target: str, environment: str, proof: FreshProof) -> None:
        """A really fresh proof succeeded."""
        write_record(self._proof(target, environment), proof, self.files)

    def forget_fresh_proof(self, target: str, environment: str) -> None:
        """From now on nothing is forked for this target, until a fresh proof succeeds again."""
        self._unlink(self._proof(target, environment))

    def damages(self, target: str, environment: str) -> Damages | None:
        """How often the package was damaged lately."""
        return read_record(self._damages(target, environment), Damages, self.files)

    def note_damage(self, target: str, environment: str, at: float) -> None:
        """A damaged package was built again, or that was tried. Raises ``OSError``."""
        before = self.damages(target, environment)
        again = before is not None and 0 <= at - before.at < _DAMAGE_FORGOTTEN_SECONDS
        times = before.times + 1 if before is not None and again else 1
        write_record(self._damages(target, environment), Damages(times=times, at=at), self.files)

    def _damages(self, target: str, environment: str) -> Path:
        return self.path / "damages" / f"{target}@{environment or NO_ENVIRONMENT}.json"

    def _proof(self, target: str, environment: str) -> Path:
        return self.path / "proofs" / f"{target}@{environment or NO_ENVIRONMENT}.json"

    def _published(self, target: str, environment: str) -> Path:
        return self.path / "published" / f"{target}@{environment or NO_ENVIRONMENT}.json"

    def probe(self, key: str) -> Path:
        """Where an interpreter's answer is kept."""
        return self.path / "probes" / f"{key}.json"

    def caches(self, environment: str) -> CompilerCaches:
        """The compiler caches of an environment; the directories exist on return."""
        return CompilerCaches(self.path / "caches" / environment).prepare()

    def building(self) -> frozenset[tuple[str, str]]:
        """(target, environment) of every build that a live process has in progress."""
        owners = self._owners(self.work)
        return frozenset((owner.target, owner.environment) for owner in owners)

    def running_daemons(self, configuration: Path | None = None) -> tuple[owned.Owner, ...]:
        """The daemons that use this state directory and are alive; or those of one configuration."""
        return tuple(
            owner
            for owner in self._owners(self.daemons)
            if configuration is None or owner.configuration == str(configuration)
        )

    def _unlink(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.unlink(path)

    def _failure(self, target: str, environment: str) -> Path:
        return self.path / "failures" / f"{target}@{environment or NO_ENVIRONMENT}.json"

    @staticmethod
    def _owners(parent: Path) -> Iterator[owned.Owner]:
        return owned.live_owners(parent)


def state_path(store: Path, environ: Mapping[str, str]) -> Path:
    """PREHEAT_STATE, the service manager's STATE_DIRECTORY, else a directory inside the store."""
    if environ.get("PREHEAT_STATE"):
        return Path(environ["PREHEAT_STATE"]).expanduser().absolute()
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    return store / "state"


def read_record(path: Path, kind: type[_Record], files: Files = FILES) -> _Record | None:
    """Read a JSON record; None when it is missing or damaged."""
    try:
        descriptor = files.open_for_reading(path, follow=True)
        try:
            return decode_json(read_regular(descriptor, MAX_RECORD_BYTES, path, files.read), kind)
        finally:
            files.close(descriptor)
    except (OSError, msgspec.MsgspecError):
        return None


def write_record(path: Path, record: msgspec.Struct, files: Files = FILES) -> None:
    """Write a JSON record: a reader sees the old one or the new one, whole, also after a loss of power."""
    unfinished = temporary_beside(path)
    descriptor = files.create(unfinished)
    try:
        try:
            rest = memoryview(msgspec.json.encode(record))
            while rest:
                rest = rest[files.write(descriptor, rest) :]
            files.fsync(descriptor)
        finally:
            files.close(descriptor)
        files.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(unfinished)
        raise
