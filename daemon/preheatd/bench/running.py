"""Measures a case: a temporary project, a build, and one fresh process for each way in each round.

The ways take turns, so that whatever else the machine does hits all of them alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preheat.errors import BuildError
from preheatd.bench.figures import PACKAGED, CaseResult, Machine, Sample, summarize
from preheatd.bench.processes import FailedError, call, environment_in, last_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PACKAGE = "bench_program"


@dataclasses.dataclass(frozen=True)
class Case:
    """What to measure: a built-in program, and which ways."""

    program: str
    device: str
    layers: int
    ways: tuple[str, ...]
    rounds: int
    steady_seconds: float = 1.0
    warm_libraries: bool = False


def measure(case: Case, environment: Mapping[str, str], say: Callable[[str], None]) -> CaseResult:
    """Build, prepare and measure one case in a temporary directory that is removed afterwards.

    A way that fails is a row with the reason. Raises ``BuildError`` when preheat's package cannot be
    built.
    """
    with tempfile.TemporaryDirectory(prefix="preheat-bench-") as name:
        return _Bench(case, Path(name), environment, say).run()


def look_at_machine(environment: Mapping[str, str]) -> Machine:
    """Where this is measured, as a fresh process with torch sees it."""
    with tempfile.TemporaryDirectory(prefix="preheat-bench-") as name:
        case = Case("mlp", "cpu", 1, (), 0)
        _write_project(case, Path(name))
        bench = _Bench(case, Path(name), environment, lambda text: None)
        try:
            output = bench.call([sys.executable, "-m", f"{_PACKAGE}.machine"], {})
        except FailedError as error:
            raise BuildError(f"torch cannot be imported: {error}") from error
    return msgspec.json.decode(output.splitlines()[-1], type=Machine)


class _Bench:
    def __init__(
        self,
        case: Case,
        directory: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._case = case
        self._directory = directory
        self._say = say
        self._failures: dict[str, str] = {}
        self._environment = environment_in(directory, environment)

    def run(self) -> CaseResult:
        case = self._case
        _write_project(case, self._directory)
        build_seconds = self._build()
        for way in case.ways:
            self._attempt(way, self._prepare)
        samples: dict[str, list[Sample]] = {way: [] for way in case.ways}
        for number in range(case.rounds):
            first = number % len(case.ways)  # nobody always comes after the same neighbour
            for way in (*case.ways[first:], *case.ways[:first]):
                if sample := self._attempt(way, self._measure):
                    samples[way].append(sample)
                    self._say(
                        f"  round {number + 1} of {case.rounds}: {way} ready after "
                        f"{sample.ready_seconds * 1e3:.1f} ms"
                    )
        ways = tuple(summarize(way, samples[way], self._failures.get(way, "")) for way in case.ways)
        return CaseResult(
            program=case.program,
            device=case.device,
            layers=case.layers,
            build_seconds=build_seconds,
            ways=ways,
        )

    def _build(self) -> float:
        if not PACKAGED.keys() & {*self._case.ways}:
            return 0.0
        self._say("  preheat warm ...")
        began = time.monotonic()
        try:
            self.call([sys.executable, "-m", "preheatd", "warm"], {})
        except FailedError as error:
            raise BuildError(f"`preheat warm` failed: {error}") from error
        return time.monotonic() - began

    def _attempt(self, way: str, step: Callable[[str], Sample | None]) -> Sample | None:
        """A step of a way that has not failed so far."""
        if way in self._failures:
            return None
        try:
            return step(way)
        except FailedError as error:
            self._failures[way] = str(error)
            self._say(f"  {way} failed: {error}")
            return None

    def _prepare(self, way: str) -> None:
        """Leave behind what an earlier process of this way would have left behind."""
        self._say(f"  preparing {way} ...")
        if way == "mega":  # its process leaves warm caches as well
            artifacts = str(self._directory / "artifacts")
            self._process(way, self._directory / "caches", artifacts=artifacts, save=True)
        elif way == "caches" and "mega" not in self._case.ways:
            self._process("cold", self._directory / way)
        elif way == "package":
            self._process(way, self._directory / way, save=True)
        elif way == "eager" or way in PACKAGED:
            self._measure(way, steady_seconds=0.0)  # a throw-away process writes the bytecode files

    def _measure(self, way: str, steady_seconds: float | None = None) -> Sample:
        steady = self._case.steady_seconds if steady_seconds is None else steady_seconds
        if way in ("caches", "package"):
            return self._process(way, self._directory / way, steady)
        artifacts = str(self._directory / "artifacts") if way == "mega" else None
        with self._empty_caches() as caches:
            return self._process(way, caches, steady, artifacts)

    @contextlib.contextmanager
    def _empty_caches(self) -> Iterator[Path]:
        caches = self._directory / "empty"
        try:
            yield caches
        finally:
            shutil.rmtree(caches, ignore_errors=True)

    def _process(
        self,
        way: str,
        caches: Path,
        steady_seconds: float = 0.0,
        artifacts: str | None = None,
        save: bool = False,
    ) -> Sample:
        caches.mkdir(exist_ok=True)
        names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
        more = dict.fromkeys(names, str(caches))
        if way == "package":
            more["TORCH_CACHING_PRECOMPILE"] = "1"
        target, form = PACKAGED.get(way, ("", ""))
        job = {
            "way": way,
            "target": target,
            "form": form,
            "steady_seconds": steady_seconds,
            "artifacts": artifacts,
            "save": save,
        }
        command = [sys.executable, "-m", f"{_PACKAGE}.measure", json.dumps(job)]
        output = self.call(command, more)
        try:
            return msgspec.json.decode(output.splitlines()[-1], type=Sample)
        except (IndexError, msgspec.DecodeError) as error:
            raise FailedError(f"no figures: {last_line(output)}") from error

    def call(self, command: Sequence[str], more: dict[str, str]) -> bytes:
        """Standard output of a process in the project. Raises ``FailedError``."""
        return call(command, self._directory, {**self._environment, **more})


def _write_project(case: Case, directory: Path) -> None:
    package = directory / _PACKAGE
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent / "measured", package, ignore=ignore)
    values: dict[str, Any] = {
        "PROGRAM": case.program,
        "DEVICE": case.device,
        "LAYERS": case.layers,
        "WARM_LIBRARIES": case.warm_libraries,
    }
    text = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    (package / "case.py").write_text(text)
    wanted = dict.fromkeys(PACKAGED[way][0] for way in case.ways if way in PACKAGED)
    targets = [f"{_PACKAGE}.warm:{target}" for target in wanted or ("program",)]
    (directory / "preheat.toml").write_text(
        f'targets = {json.dumps(targets)}\nwatch = ["{_PACKAGE}"]\ndevice = "{case.device}"\n'
        # What rounding to bfloat16 in another order comes to over many layers.
        "tolerance = { bfloat16 = [0.1, 0.3] }\n"
    )
