"""Fresh processes without the wait: forked from one that has imported what all of them need.

``python -m support.zygote SOCKET MODULE ...`` imports the modules, listens, and forks a child for each
request. The child calls one function with one JSON value and answers with what it returns. It has the
modules, and nothing that another child did. Import only what starts no threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_SECONDS = 600


class ChildFailed(Exception):
    """A child gave no answer: it raised, was ended by a signal, or took too long."""


@dataclasses.dataclass(frozen=True)
class _Request:
    function: str
    argument: Any
    log: str
    environment: dict[str, str]


class Zygote:
    """A process that forks; enter it to start it, and leave it to end it.

    ``call`` may be used from several threads.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._modules = modules
        self._environment = {**os.environ, **environment}
        # Of its own: a socket's path must be short, and those of tests are not.
        self._directory = tempfile.TemporaryDirectory(prefix="zygote")
        self._socket = Path(self._directory.name) / "socket"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.zygote", str(self._socket), *self._modules],
            cwd=Path(__file__).parents[1],
            env=self._environment,
            stdin=subprocess.PIPE,
        )
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
        self._directory.cleanup()

    def call(
        self,
        function: str,
        argument: Any,
        *,
        log: Path,
        seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> Any:
        """What ``module:function`` returns for ``argument`` in a child. Raises ``ChildFailed``.

        Whatever the child prints goes to the end of ``log``.
        """
        request = _Request(function, argument, str(log), dict(environment or {}))
        with self._connected() as connection:
            connection.settimeout(seconds)
            stream = connection.makefile("rwb")
            stream.write(json.dumps(dataclasses.asdict(request)).encode() + b"\n")
            stream.flush()
            child = 0
            try:
                child = int(stream.readline() or 0)
                answer = stream.readline()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                raise ChildFailed(f"no answer after {seconds:g} s") from None
        if not answer:
            raise ChildFailed(f"ended without an answer; see {log}")
        return json.loads(answer)

    def _connected(self) -> socket.socket:
        until = time.monotonic() + START_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._socket))
            except OSError:
                connection.close()
                if self._process is None or self._process.poll() is not None:
                    raise ChildFailed("the forking process does not run") from None
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return connection


def serve(path: str, modules: Sequence[str]) -> None:
    """Import, then fork a child for each connection, for as long as the parent lives."""
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need not be waited for
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> None:
    """One child's whole life."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        stream = connection.makefile("rwb")
        request = _Request(**json.loads(stream.readline()))
        stream.write(f"{os.getpid()}\n".encode())
        stream.flush()
        os.environ.update(request.environment)
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        module, _, name = request.function.partition(":")
        answer = getattr(importlib.import_module(module), name)(request.argument)
        stream.write(json.dumps(answer).encode() + b"\n")
        stream.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
