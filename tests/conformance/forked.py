"""Processes forked from one that imported torch, each made to look as if it had just been started."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TESTS = Path(__file__).parent.parent
OWN_PACKAGE = "conformance"
_COMPILER = ("torch.", "sympy.", "setuptools.")


def fork(body: Callable[[], object]) -> int:
    """Run ``body`` in a child and say its process id. Its status is 0 when ``body`` returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        body()
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ended(body: Callable[[], object]) -> int:
    """Run ``body`` in a child and wait: 0, its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(body), 0)[1])


def start_anew(out: Path, log: Path, variables: Mapping[str, str], limit_seconds: int) -> None:
    """Call it first in a child: output goes to files, a time limit ends it, tests are not imported.

    What the program imports alone may be found by its imports and be taken for user code.
    """
    signal.alarm(limit_seconds)
    os.environ.update(variables)
    for descriptor, path in ((1, out), (2, log)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(TESTS))]
    for name in [*sys.modules]:
        if name.partition(".")[0] == OWN_PACKAGE:
            del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")


def import_what_compiling_imports(names: Path) -> None:
    """Import what the compiler imports when it is first used, so that no child needs to.

    A child uses it and leaves the names in a file. Which instructions the processor has is found out
    here as well: torch starts an interpreter for that question.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    pick_vec_isa()
    before = frozenset(sys.modules)

    def use() -> None:
        import torch

        def f(x: torch.Tensor) -> torch.Tensor:
            return x.sin() * 2

        torch.compile(f)(torch.randn(8, requires_grad=True)).sum().backward()
        new = (name for name in sys.modules if name not in before)
        names.write_text("\n".join(name for name in new if name.startswith(_COMPILER)))

    if ended(use) == 0:
        for name in names.read_text().splitlines():
            with contextlib.suppress(Exception):  # made by hand, or generated for that one function
                importlib.import_module(name)


def cache_variables(caches: Path) -> dict[str, str]:
    """Variables that lead the compiler's caches to a directory."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TMPDIR": str(caches),
    }


def forget_caches(empty: Path) -> None:
    """A worker on another machine finds nothing of the build in its compiler caches."""
    empty.mkdir(exist_ok=True)
    os.environ.update(cache_variables(empty))
    tempfile.tempdir = None
