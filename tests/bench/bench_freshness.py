"""How long a check of freshness takes. Run by hand: ``python tests/bench/bench_freshness.py``.

Prints every number that the freshness of packages promises, one a line: the target, the best and the
median of some runs, and whether the best is within the target. Nothing is asserted: machines differ, and
a busy machine is slow. ``--load`` builds a small package (a minute, needs torch and a C++ compiler) and
measures what the check adds to a worker's load; without it that is measured for the snapshot alone.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.manifest import ModuleSource, Sources
from preheat.sources.check import check
from preheat.sources.closure import find_closure
from preheat.sources.digest import module_digest
from preheat.sources.files import SETTLE_NS, FileDigests
from preheat.sources.locate import project_locator

if TYPE_CHECKING:
    from collections.abc import Callable

FUNCTIONS = (
    '''
def function_{index}(x, scale={index}.5):
    """Number {index}."""
    if scale > 100:
        x = helper(x, {index})
    for step in range(3):
        x = x * scale + CONSTANT_{index} - step
    try:
        y = x.sum() + {following}
    except ValueError as error:
        raise TypeError(f"{{error}}") from error
    return [y * factor for factor in (1.0, 2.0, scale)]
''',
    """
def function_{index}(x, weight=None):
    y = helper(x, {index}) * CONSTANT_{index}
    if weight is not None:
        y = y * weight
    return y + {following}
""",
    """
def function_{index}(x):
    return x.clamp(min={index}) + CONSTANT_{index} + {following}
""",
)
CONSTANT = """

CONSTANT_{index} = {index}.25
"""


def module_text(functions: range, following: str) -> str:
    """A module with some functions, each of which calls the next; the last one calls ``following``."""
    parts = ["import math\n\n\ndef helper(x, n):\n    return math.sqrt(n) * x\n"]
    for index in functions:
        called = f"function_{index + 1}(x)" if index + 1 in functions else following
        text = FUNCTIONS[index % len(FUNCTIONS)] + CONSTANT
        parts.append(text.format(index=index, following=called))
    return "\n".join(parts)


def write_project(project: Path, files: int, functions: int) -> dict[str, Path]:
    """A chain of modules: module -> file. ``files`` count an ``__init__.py``."""
    package = project / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    modules = {"package": package / "__init__.py"}
    per_file = functions // (files - 1)
    for number in range(files - 1):
        start = number * per_file
        last = number == files - 2
        following = "0" if last else f"module_{number + 1}.function_{start + per_file}(x)"
        text = "" if last else f"from package import module_{number + 1}\n"
        text += module_text(range(start, start + per_file), following)
        path = package / f"module_{number}.py"
        path.write_text(text)
        modules[f"package.module_{number}"] = path
    return modules


def snapshot(project: Path, modules: dict[str, Path], roots: list[tuple[str, str]]) -> Sources:
    """What a build would record."""
    texts = {name: path.read_bytes() for name, path in modules.items()}
    closure = find_closure(
        {name: (modules[name].name == "__init__.py", text) for name, text in texts.items()},
        roots,
        inherited=(),
    )
    recorded = tuple(
        ModuleSource(
            module=name,
            root=0,
            path=str(modules[name].relative_to(project)),
            file_sha256=hashlib.sha256(text).hexdigest(),
            digest=module_digest(text),
        )
        for name, text in texts.items()
    )
    return msgspec.structs.replace(Sources(modules=recorded), closure=closure)


def clock_ns() -> int:
    """A clock that runs ahead: change times of files cannot be set."""
    return time.time_ns() + 10 * SETTLE_NS


def measure(
    what: str, target: float, unit: str, run: Callable[[], object], repeats: int = 7
) -> float:
    """Time ``run`` some times, print a line, and give the median; ``unit``: ``ms`` or ``s``."""
    factor = 1e3 if unit == "ms" else 1.0
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - began) * factor)
    return say(what, target, unit, seconds)


def say(what: str, target: float, unit: str, values: list[float]) -> float:
    """Print a line; the median."""
    best, median = min(values), statistics.median(values)
    verdict = "ok" if best <= target else "over"
    print(  # noqa: T201
        f"{what:58} {target:7g} {best:8.2f} {median:8.2f}  {unit:3} {len(values):3}  {verdict}",
        flush=True,
    )
    return median


def one_package(directory: Path) -> None:
    """500 functions in 51 files."""
    project = directory / "one"
    modules = write_project(project, 51, 500)
    sources = snapshot(project, modules, [("package.module_0", "function_0")])
    digests = FileDigests(clock_ns=clock_ns)

    def run(digests: FileDigests, reasons: int) -> None:
        found = check(sources, project_locator(project), project=project, digests=digests)
        assert len(found) == reasons, found

    run(digests, 0)
    measure("unchanged, after the first check", 5, "ms", lambda: run(digests, 0), 25)
    one = modules["package.module_7"]
    values = iter(range(1000))

    def edit_one(comment: bool) -> None:
        number = next(values)
        text = one.read_text()
        line = next(line for line in text.splitlines() if line.startswith("CONSTANT_71"))
        edited = f"CONSTANT_71 = 71.25  # {number}" if comment else f"CONSTANT_71 = {number}.5"
        one.write_text(text.replace(line, edited))

    for what, comment in (("one file changed", False), ("one file changed, in a comment", True)):
        seconds = []
        for _ in range(7):
            edit_one(comment)
            began = time.perf_counter()
            run(digests, 0 if comment else 1)
            seconds.append((time.perf_counter() - began) * 1e3)
        say(what, 30, "ms", seconds)
    for path in modules.values():
        path.write_text("# a new first line\n" + path.read_text())
    cold = "cold, every file changed"
    measure(f"{cold} in comments", 0.4, "s", lambda: run(FileDigests(), 0))
    for path in modules.values():
        path.write_text(path.read_text().replace("step", "pace").replace("0.25", "0.75"))
    measure(cold, 0.4, "s", lambda: run(FileDigests(), 50))


def many_packages(directory: Path, packages: int = 1000, files: int = 200) -> None:
    """Packages that share their files, each with roots of its own."""
    project = directory / "many"
    modules = write_project(project, files, (files - 1) * 10)
    texts = [snapshot(project, modules, [("package.module_0", "function_0")])]
    for number in range(1, 8):  # a closure takes its time to find; eight different ones will do
        first = number * (files // 8)
        texts.append(
            snapshot(project, modules, [(f"package.module_{first}", f"function_{first}0")])
        )
    encoded = [msgspec.json.encode(one) for one in texts]
    every = [
        msgspec.json.decode(encoded[number % len(encoded)], type=Sources)
        for number in range(packages)
    ]
    what = f"{packages} packages, {files} shared files, all changed"
    for path in modules.values():
        path.write_text("# a new first line\n" + path.read_text())
    measure(f"{what} in comments", 2, "s", lambda: plan(every, project, 0), 3)
    for path in modules.values():
        path.write_text(path.read_text().replace("0.25", "0.75"))
    measure(what, 2, "s", lambda: plan(every, project, packages), 3)


def plan(every: list[Sources], project: Path, expected: int) -> None:
    """Check all packages at one moment."""
    digests = FileDigests(clock_ns=clock_ns)
    stale = 0
    with digests.one_moment():
        for sources in every:
            locate = project_locator(project)
            stale += bool(check(sources, locate, project=project, digests=digests, environ={}))
    assert stale == expected


# In a process of its own, as a worker is: everything that load() compares with the sources.
WORKER_CHECK = """
import json, sys, time
import msgspec
from pathlib import Path
from preheat.manifest import Sources
from preheat.sources.check import check
from preheat.sources.files import FileDigests
from preheat.sources.locate import import_locator
from preheat.sources.running import edited_since_start
sources = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Sources)
import package.module_0
began = time.perf_counter()
digests = FileDigests()
assert not check(sources, import_locator(), digests=digests)
assert not edited_since_start(sources, digests)
print(time.perf_counter() - began)
"""


def worker_check(directory: Path) -> None:
    """What a worker's first load compares, unchanged, with 51 files that it has imported."""
    project = directory / "worker"
    modules = write_project(project, 51, 500)
    sources = snapshot(project, modules, [("package.module_0", "function_0")])
    record = directory / "sources.json"
    record.write_bytes(msgspec.json.encode(sources))
    time.sleep(2.1)  # younger files than that are read twice
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(project), *sys.path))}
    command = [sys.executable, "-c", WORKER_CHECK, str(record)]
    seconds = [
        float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        for _ in range(7)
    ]
    say("the check of a worker's load, unchanged", 10, "ms", [one * 1e3 for one in seconds])


LOAD = """
import functools, json, sys, time, torch, preheat
from preheat import worker
from app.model import program
spent = 0.0

def timed(plain):
    @functools.wraps(plain)
    def run(*args, **more):
        global spent
        began = time.perf_counter()
        try:
            return plain(*args, **more)
        finally:
            spent += time.perf_counter() - began
    return run

for name in ("check", "edited_since_start"):
    with_check = sys.argv[1] == "with"
    setattr(worker, name, timed(getattr(worker, name) if with_check else lambda *_, **__: ()))
loaded = preheat.load("program", program, on_miss="error")
print(json.dumps([loaded.preheat.load_seconds, spent]))
"""


def whole_load(directory: Path, repeats: int = 7) -> None:
    """A real worker's load with and without the check of the sources, side by side.

    The difference of two loads of seconds is lost in their noise, so what counts is the time that the
    load spends in the check.
    """
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.project import Project
    from support.small import FILES

    project = Project(directory / "load", FILES)
    done = project.preheat("warm")
    assert done.code == 0, done.out + done.err
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    spent = []
    for _ in range(repeats):
        for how, values in seconds.items():
            done = project.run(sys.executable, "-c", LOAD, how)
            assert done.code == 0, done.err
            load, check_alone = done.json()
            values.append(load)
            if how == "with":
                spent.append(check_alone * 1e3)
    for how, values in seconds.items():
        best, median = min(values), statistics.median(values)
        print(f"  load {how:8} the check: best {best:.3f} s, median {median:.3f} s")  # noqa: T201
    say("the check inside of a whole load", 10, "ms", spent)


def main() -> None:
    """Print all numbers."""
    print(f"Python {sys.version.split()[0]}, torch imported: {'torch' in sys.modules}")  # noqa: T201
    print(f"{'':58} {'target':>7} {'best':>8} {'median':>8}  {'':3} {'n':>3}")  # noqa: T201
    with tempfile.TemporaryDirectory() as directory:
        one_package(Path(directory))
        many_packages(Path(directory))
        worker_check(Path(directory))
        if "--load" in sys.argv:
            whole_load(Path(directory))


if __name__ == "__main__":
    main()
