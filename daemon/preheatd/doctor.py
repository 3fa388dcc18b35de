"""``preheat doctor``: looks at the machine as the daemon would need it, and says what to mend.

Each look is on its own: one that fails is a finding, and the others go on.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from preheat.compiler_variables import cpp_compilers
from preheat.errors import PreheatError
from preheat.store import DiskStore
from preheat.store.keys import read_signer, read_trusted
from preheat.version import VERSION
from preheatd import findings
from preheatd.findings import Finding
from preheatd.mounts import file_system_type, needs_polling
from preheatd.probe import ProbeAnswer, Prober
from preheatd.roots import target_roots, watched_roots
from preheatd.state import State, state_path
from preheatd.surroundings import search_path, target_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from preheatd.config import Config, Target

_INOTIFY = Path("/proc/sys/fs/inotify")


async def examine(config: Config, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Everything, in the order in which to mend it. Starts each target's interpreter once."""
    state = State(state_path(config.store, environ))
    found = await asyncio.to_thread(_examine_place, config, state)
    found += await _interpreters(config, state, environ)
    return tuple(found)


def _examine_place(config: Config, state: State) -> list[Finding]:
    places = dict.fromkeys((_existing(config.store), _existing(state.path)))
    looks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("inotify", lambda: [_watches(config)]),
        *(("file system", _of(_abilities, place)) for place in places),
        ("watch", lambda: _project(config)),
        ("trust", lambda: [_trust(config)]),
        ("keys", lambda: [_keys(config, state)]),
        *(("room", _of(_room, place)) for place in places),
        ("clock", lambda: [_clock(_existing(config.store))]),
        ("sandbox", _sandbox),
    ]
    return [finding for check, look in looks for finding in _guarded(check, look)]


def _of(look: Callable[[Path], Iterable[Finding]], place: Path) -> Callable[[], Iterable[Finding]]:
    return lambda: look(place)


def _guarded(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except (OSError, PreheatError) as error:
        remedy = error.remedy if isinstance(error, PreheatError) else ""
        yield Finding(check=check, level="problem", detail=str(error), fix=remedy)


def _existing(path: Path) -> Path:
    """The nearest directory that is there: what will be made below it is on the same file system."""
    while not path.is_dir():
        path = path.parent
    return path


def _watches(config: Config) -> Finding:
    roots = [
        target_roots(config, target, None, (str(config.project),)) for target in config.targets
    ]
    count = 0
    for root in watched_roots(config, roots):
        count += sum(1 for _ in os.walk(root.path)) if root.recursive else 1
    watches, instances = (
        int((_INOTIFY / name).read_text()) for name in ("max_user_watches", "max_user_instances")
    )
    return findings.watch_limits(watches, instances, count)


def _abilities(place: Path) -> list[Finding]:
    failed = {}
    for name, attempt in (
        ("rename", _can_rename),
        ("fsync", _can_sync),
        ("flock", _can_lock),
        ("mapping of code", _can_map_code),
    ):
        try:
            with tempfile.TemporaryDirectory(dir=place, prefix=".preheat-doctor-") as directory:
                attempt(Path(directory))
        except OSError as error:
            failed[name] = error.strerror or str(error)
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    kind = file_system_type(mountinfo, str(place.resolve()))
    return [findings.file_system(str(place), failed, kind)]


def _can_rename(directory: Path) -> None:
    for name in ("old", "new"):
        (directory / name).write_text(name)
    (directory / "new").replace(directory / "old")
    if (directory / "old").read_text() != "new":
        raise OSError("a rename did not replace the file")


def _can_sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _can_lock(directory: Path) -> None:
    path = directory / "lock"
    with path.open("w") as first, path.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError("a file can be locked twice")


def _can_map_code(directory: Path) -> None:
    """As a kernel is loaded; a mount with ``noexec`` refuses."""
    path = directory / "code"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as file:
        mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC
        ).close()


def _project(config: Config) -> list[Finding]:
    if not needs_polling(str(config.project)):
        return []
    detail = f"{config.project} is on a network file system: edits are seen by looking every second"
    return [Finding(check="watch", level="note", detail=detail)]


def _trust(config: Config) -> Finding:
    if not config.store.exists():
        return Finding(check="trust", level="ok", detail=f"{config.store} is not there yet")
    store = DiskStore(config.store)
    for _ in store.refs():
        break
    return Finding(check="trust", level="ok", detail=f"nobody else can write to {config.store}")


def _keys(config: Config, state: State) -> Finding:
    signing = config.signing
    if not signing.is_on:
        return Finding(
            check="keys", level="note", detail="signatures of packages are not asked for"
        )
    listed = () if signing.trusted is None else read_trusted(signing.trusted)
    own = None if signing.key is None else read_signer(signing.key).public
    return findings.keys(
        signing.level,
        None if signing.trusted is None else str(signing.trusted),
        [key.id for key in listed],
        None if own is None else own.id,
        state_inside=state.path.is_relative_to(config.store),
    )


def _room(place: Path) -> list[Finding]:
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    return [findings.room(str(place), free, status.f_favail, status.f_files)]


def _clock(place: Path) -> Finding:
    with tempfile.NamedTemporaryFile(dir=place, prefix=".preheat-doctor-") as file:
        before = time.time()
        file.write(b"x")
        file.flush()
        dated = os.fstat(file.fileno()).st_mtime
        after = time.time()
    skew = dated - before if dated < before else max(0.0, dated - after)
    # A kernel dates files by its last tick.
    return findings.clock(str(place), 0.0 if abs(skew) < 0.05 else skew)


def _sandbox() -> list[Finding]:
    try:
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
        writable_code = "allowed"
    except OSError:
        writable_code = "forbidden, which CUDA may need"
    unit = "a systemd unit" if os.environ.get("INVOCATION_ID") else "no systemd unit"
    detail = f"in {unit}; memory that is writable and executable is {writable_code}"
    return [Finding(check="sandbox", level="note", detail=detail)]


async def _interpreters(config: Config, state: State, environ: Mapping[str, str]) -> list[Finding]:
    config = config.here()
    answers = await Prober(state).environments(config.targets, config.project, environ)
    found: dict[str, Finding] = {}
    for target in config.targets:
        for finding in _of_target(config, target, answers[target.name], environ):
            # Targets that share an interpreter say it once.
            found.setdefault(finding.detail.partition(": ")[2] + finding.check, finding)
    return list(found.values())


def _of_target(
    config: Config, target: Target, answer: ProbeAnswer | PreheatError, environ: Mapping[str, str]
) -> Iterator[Finding]:
    variables = target_environment(environ, target, config.project)
    wanted = cpp_compilers(variables)
    path = next(
        filter(None, (shutil.which(one, path=variables.get("PATH")) for one in wanted)), None
    )
    yield findings.compiler(target.name, path, wanted)
    missing = [
        one for one in search_path(variables, config.project, target.cwd) if not Path(one).exists()
    ]
    if missing:
        detail = f"{target.name}: PYTHONPATH names what is not there: {', '.join(missing)}"
        yield Finding(check="import path", level="note", detail=detail)
    if isinstance(answer, PreheatError):
        yield Finding(
            check="interpreter",
            level="problem",
            detail=f"{target.name}: {answer.message}",
            fix=answer.remedy,
        )
        return
    here = answer.cpu
    detail = f"{target.name}: {target.python}, {here.python}, torch {here.torch}, preheat {VERSION}"
    yield Finding(check="interpreter", level="ok", detail=detail)
    yield _gpu(target, answer)


def _gpu(target: Target, answer: ProbeAnswer) -> Finding:
    cuda = answer.cuda
    if cuda is None:
        level: findings.Level = "problem" if target.device == "cuda" else "note"
        fix = "Install a build of torch with CUDA, and the driver." if level == "problem" else ""
        detail = f"{target.name}: no GPU that torch can use"
        return Finding(check="GPU", level=level, detail=detail, fix=fix)
    kinds = ", ".join(dict.fromkeys(gpu.name for gpu in cuda.gpus))
    detail = f"{target.name}: {kinds}, driver {cuda.driver}, CUDA {cuda.cuda}, Triton {cuda.triton}"
    return Finding(check="GPU", level="ok", detail=detail)
