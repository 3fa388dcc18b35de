"""``preheat warm --seed``: compiler caches begin with what torch itself has compiled before.

A directory is copied, with the rules of a store: it holds pickles and machine code, so whoever can write it
runs code in builds. A file is handed to torch, in a process of the target's interpreter. Whatever is wrong
with a seed, the builds go on without it; and what they make of it passes the same proof as ever, with empty
caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.errors import PreheatError
from preheat.limits import MAX_RECORD_BYTES, decode_json
from preheat.store.files import Files
from preheat.store.temporary import temporary_name
from preheat.store.trust import Trust
from preheatd import events
from preheatd.probe import ProbeError, Question, run_question
from preheatd.surroundings import target_environment, with_caches
from preheatd.uncancelled import uncancelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preheatd.caches import CompilerCaches
    from preheatd.config import Target
    from preheatd.project import Project

MAX_SEED_BYTES = 16 * 1024**3
MAX_SEED_FILES = 500_000
SEED_ARGUMENTS = ("-m", "preheat.seed")
SEED_LIMIT_SECONDS = 600.0
_TRITON = "triton"
_GROUP = "__grp__"
_LEFT_OUT = frozenset({"locks", "lock", "__pycache__"})
_KNOWN = frozenset({"fxgraph", "aotautograd", _TRITON})


class SeedError(PreheatError):
    """The seed is not used.

    Raised for a directory that is no cache of Inductor's, that others could have changed or that is too
    large, and for a file in which torch finds no artifacts.
    """

    default_remedy = "The builds go on without it."


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    artifacts: dict[str, int] = {}
    error: str = ""


async def seed(
    project: Project, path: Path, environments: dict[str, Target], emit: events.Emit
) -> None:
    """Fill the caches of these environments, each with a target of it; says what came of it as events."""
    for environment, target in environments.items():
        caches = project.state.caches(environment)
        try:
            taken = await _taken(project, path, target, caches)
        except (PreheatError, OSError) as error:
            detail = str(error) if isinstance(error, PreheatError) else f"{path}: {error.strerror}."
            emit(events.Event(action=events.SEED_REFUSED, environment=environment, detail=detail))
        else:
            emit(events.Event(action=events.SEED_TAKEN, environment=environment, detail=taken))


async def _taken(project: Project, path: Path, target: Target, caches: CompilerCaches) -> str:
    path = await asyncio.to_thread(path.absolute)
    if await asyncio.to_thread(path.is_dir):
        return await uncancelled(asyncio.to_thread(copy_seed, path, caches))
    await asyncio.to_thread(_judge_file, path)
    variables = target_environment(dict(os.environ), target, project.config.project)
    question = Question(
        target.python, target.cwd, tuple(sorted(with_caches(variables, caches).items()))
    )
    arguments = (*SEED_ARGUMENTS, str(path))
    try:
        output = await run_question(question, arguments, limit=SEED_LIMIT_SECONDS)
    except ProbeError as error:
        raise SeedError(f"{path} cannot be used: {error.message}") from error
    return _words(path, output)


def _words(path: Path, output: bytes) -> str:
    try:
        said = decode_json(output.strip().rpartition(b"\n")[2], _Answer)
    except msgspec.MsgspecError as error:
        raise SeedError(f"{path}: the process that reads it did not answer ({error}).") from error
    if said.error or not said.artifacts:
        raise SeedError(f"{path} cannot be used: {said.error or 'it is empty'}.")
    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(said.artifacts.items()))
    return f"{path}: artifacts: {kinds}"


def _judge_file(path: Path) -> None:
    trust, files = Trust.of("require", frozenset()), Files()
    with trust.directory(files, path.parent) as parent:
        descriptor = _opened(path.name, parent)
        try:
            status = os.fstat(descriptor)
            trust.judge_file(path, status)
            if status.st_size > MAX_SEED_BYTES:
                raise SeedError(f"{path} has {status.st_size} bytes; {MAX_SEED_BYTES} are allowed.")
        finally:
            os.close(descriptor)


def _opened(name: str, parent: int) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    return os.open(name, flags, dir_fd=parent)


def copy_seed(path: Path, caches: CompilerCaches) -> str:
    """Copy a directory of Inductor's into caches: all that is not there yet, or nothing. Says what was
    copied.

    Regular files alone, reached without following links, each of an owner that is trusted and that nobody
    else can write. Raises ``SeedError``, ``UntrustedStoreError``, ``OSError``.
    """
    work = caches.temporary / f"tmp{temporary_name()}"  # a name that is swept
    trust = Trust.of("require", frozenset())
    try:
        copied = _Copying(path, work, trust)
        with trust.directory(Files(), path) as descriptor:
            copied.all_of(descriptor)
        fresh = _link_all(work, caches)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    left = f", {copied.left_out} left out that are no regular files" if copied.left_out else ""
    return f"{path}: {fresh} files of {copied.files} ({copied.bytes} bytes){left}"


def _check_layout(path: Path, names: list[str]) -> None:
    if not _KNOWN & set(names):
        raise SeedError(
            f"{path} is no cache directory of Inductor's: it has none of {', '.join(sorted(_KNOWN))}.",
            remedy="Name the directory that TORCHINDUCTOR_CACHE_DIR named, or a file of "
            "torch.compiler.save_cache_artifacts.",
        )


@dataclasses.dataclass
class _Copying:
    """Copies below ``work``, and counts."""

    path: Path
    work: Path
    trust: Trust
    files: int = 0
    bytes: int = 0
    left_out: int = 0

    def all_of(self, descriptor: int) -> None:
        for folder, names, files, inside in os.fwalk(".", dir_fd=descriptor, onerror=_raise):
            where = self.path / folder
            self.trust.judge(where, os.fstat(inside))
            if folder == ".":
                _check_layout(self.path, names)
            names[:] = [name for name in names if name not in _LEFT_OUT]
            for name in files:
                self._one(Path(folder) / name, inside)

    def _one(self, name: Path, inside: int) -> None:
        try:
            source = _opened(name.name, inside)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            self.left_out += 1
            return
        try:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                self.left_out += 1
                return
            self.trust.judge(self.path / name, status)
            self._count(status.st_size)
            self._copy(source, self.work / name, status.st_size)
        finally:
            os.close(source)

    def _count(self, size: int) -> None:
        self.files += 1
        self.bytes += size
        if self.bytes > MAX_SEED_BYTES or self.files > MAX_SEED_FILES:
            raise SeedError(
                f"{self.path} has more than {MAX_SEED_BYTES} bytes or {MAX_SEED_FILES} files."
            )

    def _copy(self, source: int, to: Path, size: int) -> None:
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.dup(source), "rb") as reader, to.open("xb") as writer:
            while size > 0 and (piece := reader.read(min(size, 1 << 20))):
                writer.write(piece)
                size -= len(piece)


def _raise(error: OSError) -> None:
    raise error


def _link_all(work: Path, caches: CompilerCaches) -> int:
    """Give the copies their places, where there is nothing yet; each appears whole. How many did."""
    fresh = 0
    for source, place in _places(work, caches):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.name.startswith(_GROUP):
            _rewrite_group(source, place.parent)
        with contextlib.suppress(FileExistsError):
            os.link(source, place)
            fresh += 1
    return fresh


def _places(work: Path, caches: CompilerCaches) -> Iterator[tuple[Path, Path]]:
    """Every copy and its place. Triton keeps its cache below Inductor's, in a directory for each device."""
    for source in sorted(path for path in work.rglob("*") if path.is_file()):
        parts = source.relative_to(work).parts
        if parts[0] == _TRITON:
            if len(parts) > 2:
                yield source, caches.triton.joinpath(*parts[2:])
        else:
            yield source, caches.inductor.joinpath(*parts)


def _rewrite_group(path: Path, directory: Path) -> None:
    """Triton lists the files of a kernel by their absolute paths: those of the copies."""
    try:
        group = json.loads(path.read_bytes()[:MAX_RECORD_BYTES])
        children = {str(name): str(directory / Path(name).name) for name in group["child_paths"]}
    except (ValueError, KeyError, TypeError):
        path.write_bytes(b"{}")
        return
    path.write_text(json.dumps({**group, "child_paths": children}))
