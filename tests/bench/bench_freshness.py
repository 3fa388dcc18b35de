"""How long a check of freshness takes. Run by hand: ``python tests/bench/bench_freshness.py``.

Prints milliseconds for one package of 500 functions in 51 files, and seconds for a plan over 1,000
packages that share 200 files after an edit of every file. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from preheat.manifest import ModuleSource, Sources
from preheat.sources.check import check
from preheat.sources.closure import find_closure
from preheat.sources.digest import module_digest
from preheat.sources.files import SETTLE_NS, FileDigests
from preheat.sources.locate import project_locator

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


def age(modules: dict[str, Path]) -> None:
    """Make the files old enough for their digests to be remembered."""
    old = time.time_ns() - 10 * SETTLE_NS
    for path in modules.values():
        os.utime(path, ns=(old, old))


def clock_ns() -> int:
    """A clock that runs ahead: change times of files cannot be set."""
    return time.time_ns() + 10 * SETTLE_NS


def edit(path: Path, old: str, new: str) -> None:
    """Change a file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def timed(what: str, sources: Sources, project: Path, digests: FileDigests) -> None:
    """Check once and print how long it took."""
    began = time.perf_counter()
    reasons = check(sources, project_locator(project), project=project, digests=digests)
    seconds = time.perf_counter() - began
    print(f"{what:55} {seconds * 1e3:8.1f} ms  {len(reasons)} reasons")  # noqa: T201


def one_package(directory: Path) -> None:
    """500 functions in 51 files."""
    project = directory / "one"
    modules = write_project(project, 51, 500)
    began = time.perf_counter()
    sources = snapshot(project, modules, [("package.module_0", "function_0")])
    print(f"{'find the closure':55} {(time.perf_counter() - began) * 1e3:8.1f} ms")  # noqa: T201
    assert sources.closure is not None
    units = sum(len(one.units) for one in sources.closure.modules)
    size = len(msgspec.json.encode(sources))
    print(f"{'':55} {units:8} units, {size // 1024} KiB")  # noqa: T201
    digests = FileDigests(clock_ns=clock_ns)
    timed("first check, nothing changed", sources, project, digests)
    timed("nothing changed", sources, project, digests)
    one = modules["package.module_7"]
    edit(one, "CONSTANT_71 = 71.25", "CONSTANT_71 = 71.5  # why")
    timed("one file changed", sources, project, digests)
    edit(one, "CONSTANT_71 = 71.5  # why", "CONSTANT_71 = 71.25  # moved\n# down")
    timed("one file changed, in comments only", sources, project, digests)
    for path in modules.values():
        path.write_text("# a new first line\n" + path.read_text())
    timed("cold, every file changed (comments)", sources, project, FileDigests())
    for path in modules.values():
        path.write_text(path.read_text().replace("step", "pace").replace("0.25", "0.75"))
    timed("cold, every file changed", sources, project, FileDigests())


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
    for path in modules.values():
        path.write_text("# a new first line\n" + path.read_text())
    plan("every file changed in comments", every, project)
    for path in modules.values():
        path.write_text(path.read_text().replace("0.25", "0.75"))
    plan("every file changed", every, project)


def plan(what: str, every: list[Sources], project: Path) -> None:
    """Check all packages at one moment and print how long it took."""
    digests = FileDigests(clock_ns=clock_ns)
    began = time.perf_counter()
    stale = 0
    with digests.one_moment():
        for sources in every:
            locate = project_locator(project)
            stale += bool(check(sources, locate, project=project, digests=digests, environ={}))
    seconds = time.perf_counter() - began
    print(f"{len(every)} packages: {what:39} {seconds:8.2f} s  {stale} stale")  # noqa: T201


def main() -> None:
    """Print all numbers."""
    print(f"Python {sys.version.split()[0]}, torch imported: {'torch' in sys.modules}")  # noqa: T201
    with tempfile.TemporaryDirectory() as directory:
        one_package(Path(directory))
        many_packages(Path(directory))


if __name__ == "__main__":
    main()
