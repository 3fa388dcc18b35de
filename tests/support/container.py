"""A root of its own for commands, as a container has: own files and accounts, this machine's programs.

So recipes are tried as they are shipped, with the absolute paths that they name. It takes a mount namespace
(``unshare``), as root or with user namespaces; ``REASON`` says why there is none. What a command starts ends
with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHECKOUT = Path(__file__).parents[2]
LIMIT_SECONDS = 400
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ACCOUNTS = {"root": 0, "preheat": 990, "alice": 1000}
IS_ROOT = os.geteuid() == 0
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
UNSHARE = _UNSHARE if IS_ROOT else (*_UNSHARE, "--user", "--map-root-user")


# For what is much alike: CI tries one of each, `make test-recipes` all of them.
IN_FULL = pytest.mark.skipif(
    os.environ.get("PREHEAT_RECIPES") != "full", reason="`make test-recipes` runs it"
)


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that are not reaped yet."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _reason() -> str:
    """Why there can be no container; empty where there can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


REASON = _reason()


@dataclasses.dataclass(frozen=True)
class Bind:
    """A directory or file of this machine, at a path in the container."""

    source: Path
    at: str
    read_only: bool = True


class Container:
    """Commands run in ``root``; what they write stays there until the test ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        root.chmod(0o755)
        self.binds: list[Bind] = []
        for name in ("etc", "srv", "var", "run", "opt", "mnt", "home/alice", "proc", "dev"):
            (root / name).mkdir(parents=True)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        self._system()
        self._accounts()

    def _system(self) -> None:
        """This machine's programs and this checkout with its interpreter, all of them read-only."""
        for name in ("usr", "bin", "sbin", "lib", "lib64"):
            path = Path("/", name)
            if path.is_symlink():
                (self.root / name).symlink_to(path.readlink())
            elif path.is_dir():
                self.bind(path, str(path))
        for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
            if Path(name).exists():
                self.bind(Path(name), name)
        self.bind(Path("/dev"), "/dev", read_only=False)
        for place in dict.fromkeys((CHECKOUT, Path(sys.prefix), Path(sys.base_prefix))):
            if not place.is_relative_to("/usr"):
                self.bind(place, str(place))

    def _accounts(self) -> None:
        users = [f"{name}:x:{uid}:{uid}::/:/bin/sh" for name, uid in ACCOUNTS.items()]
        groups = [f"{name}:x:{uid}:" for name, uid in ACCOUNTS.items()]
        (self.root / "etc/passwd").write_text("\n".join(users) + "\n")
        (self.root / "etc/group").write_text("\n".join(groups) + "\n")
        self.own("/home/alice", "alice")

    def at(self, path: str) -> Path:
        """Where a path of the container is outside of it."""
        return self.root / path.lstrip("/")

    def bind(self, source: Path, at: str, *, read_only: bool = True) -> None:
        place = self.at(at)
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        self.binds = [one for one in self.binds if one.at != at]
        self.binds.append(Bind(source, at, read_only))

    def install_preheat(self, *places: str) -> None:
        """This checkout's interpreter and ``preheat`` at other places, as if installed there."""
        for place in places:
            self.bind(Path(sys.prefix), place)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)
        return place

    def own(self, path: str, account: str) -> None:
        """Give a path to an account, where this process can."""
        if IS_ROOT:
            os.chown(self.at(path), ACCOUNTS[account], ACCOUNTS[account])

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        uid: int = 0,
        cwd: str = "/",
        read_only: bool = False,
        binds: tuple[Bind, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run it as it would be run there: no terminal, nothing to read, only these variables."""
        with self.started(
            *command, env=env, uid=uid, cwd=cwd, read_only=read_only, binds=binds
        ) as process:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    @contextlib.contextmanager
    def started(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        uid: int = 0,
        cwd: str = "/",
        read_only: bool = False,
        binds: tuple[Bind, ...] = (),
    ) -> Iterator[subprocess.Popen[str]]:
        """The same while it runs; ended with everything that it started when the block is left."""
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        inside = ["env", "-i", "-C", cwd, *variables, *command]
        script = "\n".join((*self._mounts(read_only, binds), self._enter(uid, inside)))
        process = subprocess.Popen(
            [*UNSHARE, "sh", "-euc", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                # The first process of the namespace; all others end with it. It does not end with its
                # parent once it has changed its account.
                for pid in children(process.pid):
                    os.kill(pid, signal.SIGKILL)
                process.kill()
            process.communicate()

    def _mounts(self, read_only: bool, more: tuple[Bind, ...]) -> Iterator[str]:
        root = shlex.quote(str(self.root))
        yield "mount --make-rprivate /"
        yield f"mount --bind {root} {root}"
        for one in (*self.binds, *more):
            place = shlex.quote(str(self.at(one.at)))
            yield f"mount --rbind {shlex.quote(str(one.source))} {place}"
            if one.read_only and one.source != Path("/dev"):
                yield f"mount -o remount,bind,ro {place}"
        yield f"mount -t proc proc {root}/proc"
        if read_only:
            yield f"mount -o remount,bind,ro {root}"

    def _enter(self, uid: int, inside: list[str]) -> str:
        user = ()
        if uid and IS_ROOT:
            user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
        return f"exec {shlex.join(['chroot', str(self.root), *user, *inside])}"
