"""The zygote: ``python -m preheat.zygote SETUP``. Imports libraries, then forks children on request.

Two processes: the first has what a worker has; it forks the second, which imports the compiler too. Each
holds libraries only: no user code, no tensor operation, nothing compiled, one thread, no GPU in use.
Before every fork that is checked again, and that no file of a library is another one now. A zygote that is
not fit any more says so and ends; the daemon then uses fresh processes. It ends when the daemon does.

Not promised: that a child is like a fresh process in everything. It has the zygote's hash seed, and
libraries that user code has not imported. That is why a package whose proof was forked is proven once more.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

from preheat import forking, lifeline
from preheat.forking import Ended, Forked, ForkRequest, Ready, Unfit

if TYPE_CHECKING:
    from preheat.forking import Kind

_RECEIVED_BYTES = 64 * 1024
_DESCRIPTORS_A_REQUEST = 2
# numpy's library of linear algebra reads it when it is loaded, and would start threads.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
_WORKER_MODULES = (
    "torch",
    "preheat.recording",
    "preheat.shadowing",
    "preheat.store",
    "preheat.verify",
    "preheat.worker",
)
_COMPILER_MODULES = (
    "preheat.build",
    "preheat.image.load",
    "preheat.live",
    "preheat.recording.texts",
)


class Fitness:
    """Whether children would be like fresh processes: compared with the moment of this object's making."""

    def __init__(self, since: float) -> None:
        self._since_ns = int(since * 1e9)
        self._files = {path: mark for path in loaded_files() if (mark := _mark(path)) is not None}

    def why_not(self) -> str:
        """Empty while it is fit."""
        if (tasks := _count("/proc/self/task")) != 1:
            return f"the zygote has {tasks} threads"
        if _uses_gpu():
            return "the zygote has a GPU in use"
        for path, mark in self._files.items():
            now = _mark(path)
            if now != mark or mark[0] >= self._since_ns:
                return f"{path} changed after the zygote was started"
        return ""


def loaded_files() -> list[str]:
    """The files of all modules that are imported, extension modules among them."""
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [path for path in found if isinstance(path, str)]


def _mark(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them before every fork
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _count(directory: str) -> int:
    return len(os.listdir(directory))  # noqa: PTH208


def _uses_gpu() -> bool:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/nvidia", "/dev/kfd")):  # noqa: PTH115
                return True
    return False


class _Server:
    """Answers requests of one kind until the daemon hangs up."""

    def __init__(self, connection: socket.socket, fitness: Fitness) -> None:
        self._connection = connection
        self._fitness = fitness
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> request's number, pid
        self._text = b""
        self._descriptors: list[int] = []

    def serve(self) -> None:
        """Returns when the daemon has hung up or this zygote is not fit any more."""
        if why := self._fitness.why_not():
            self._answer(Unfit(why=why))
            return
        self._answer(Ready(modules=tuple(sys.modules)))
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor in self._children:
                    poll.unregister(descriptor)
                    self._reap(descriptor)
                    continue
                requests = self._receive()
                if requests is None:
                    return
                for request in requests:
                    if why := self._fitness.why_not():
                        self._answer(Unfit(why=why))
                        return
                    poll.register(self._fork(request), select.POLLIN)

    def end_children(self) -> None:
        """No child outlives its zygote."""
        for _, pid in self._children.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _receive(self) -> list[ForkRequest] | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._connection, _RECEIVED_BYTES, 4 * _DESCRIPTORS_A_REQUEST
            )
        except OSError:
            return None
        if not data:
            return None
        self._descriptors += descriptors
        *lines, self._text = (self._text + data).split(b"\n")
        return [forking.read_request(line) for line in lines]

    def _fork(self, request: ForkRequest) -> int:
        count = _DESCRIPTORS_A_REQUEST
        (out, err), self._descriptors = self._descriptors[:count], self._descriptors[count:]
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._connection.close()
            for descriptor in self._children:
                os.close(descriptor)
            _live(request, out, err)
        for descriptor in (out, err):
            os.close(descriptor)
        child = os.pidfd_open(pid)
        self._children[child] = (request.number, pid)
        self._answer(Forked(number=request.number, pid=pid))
        return child

    def _reap(self, child: int) -> None:
        number, pid = self._children.pop(child)
        os.close(child)
        _, status = os.waitpid(pid, 0)
        self._answer(Ended(number=number, status=os.waitstatus_to_exitcode(status)))

    def _answer(self, message: forking.Answer) -> None:
        with contextlib.suppress(OSError):  # it hung up: the next look at the socket says so
            self._connection.sendall(forking.encode(message))


def _live(request: ForkRequest, out: int, err: int) -> NoReturn:
    """One child's whole life."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for descriptor, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.update(request.variables)
        tempfile.tempdir = None
        if numpy := sys.modules.get("numpy.random"):
            numpy.seed()  # Python's own generator is seeded anew by the fork itself
        from preheat.process import run_forked

        run_forked(importlib.import_module(request.module).main, request.job)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main(setup: forking.Setup) -> None:
    """Import, fork the second process, and serve in both."""
    since = time.time()
    # What hangs up on a zygote that is stopped is not noticed by it; the kernel's signal is.
    lifeline.end_with_parent()
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update({name: one for name, one in _ONE_THREAD.items() if before[name] is None})
    connections = {kind: socket.socket(fileno=getattr(setup, kind)) for kind in forking.KINDS}
    for name in _WORKER_MODULES:
        importlib.import_module(name)
    # The file descriptors of one kind must be closed in the other, or nobody sees the daemon hang up.
    first = os.getpid()
    kind: Kind = "worker" if os.fork() else "compiler"
    if kind == "compiler":
        lifeline.end_with_parent()
        if os.getppid() != first:
            return
    for other, connection in connections.items():
        if other != kind:
            connection.close()
    if kind == "compiler":
        from preheat.torch_internals.compiler import prepare_compiler

        for name in _COMPILER_MODULES:
            importlib.import_module(name)
        prepare_compiler()
    _preload(setup.libraries)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
    fitness = Fitness(since)
    gc.collect()
    gc.freeze()
    server = _Server(connections[kind], fitness)
    try:
        server.serve()
    finally:
        server.end_children()


def _preload(libraries: tuple[str, ...]) -> None:
    """Import what targets will import anyhow. One that fails without user code is left to user code."""
    from preheat.recording.libraries import remember_loaded

    remember_loaded()
    for name in libraries:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if tqdm := sys.modules.get("tqdm"):
        tqdm.tqdm.monitor_interval = 0  # its monitor is a thread


if __name__ == "__main__":
    try:
        main(forking.read_setup(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
    # The interpreter's own tear-down takes seconds with the compiler loaded.
    sys.stderr.flush()
    os._exit(0)
