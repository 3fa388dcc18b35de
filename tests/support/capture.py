"""Cases of ``conformance/capture``, each from build to worker, in forked processes."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from preheat.job import Job
from support.proving import STAGE_SECONDS, Provers
from support.zygote import ChildFailed, Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PROJECT = Path(__file__).parents[1] / "conformance" / "capture"
FORMS = ("lean", "dynamo")

COMPILER_MODULES = ("support.compiler_libraries",)
WORKER_MODULES = ("torch", "preheat.worker", "preheat.exercise", "preheat.verify")
_MODELS = "support.model_libraries"


@dataclasses.dataclass(frozen=True)
class Case:
    """Targets that belong together, and the module of their factories."""

    name: str
    module: str
    targets: tuple[str, ...]

    @property
    def of_models(self) -> bool:
        """Whether it needs the libraries of models."""
        return self.module in ("cases.timm_models", "cases.transformers_models")


def all_cases(project: Path = PROJECT) -> list[Case]:
    """Every case of a project, by name; told from the text of its modules."""
    found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for path in sorted((project / "cases").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and _is_target(node):
                found[node.name.partition("__")[0], f"cases.{path.stem}"].append(node.name)
    return [Case(name, module, tuple(targets)) for (name, module), targets in sorted(found.items())]


def _is_target(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(one) == "preheat.target" for one in node.decorator_list)


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one case.

    ``word``: ``right``; ``WRONG``, a package that was used answers differently; ``compiled``, calls
    were not covered; ``refused``, there is no package, or none that the worker takes. ``reason``
    says why it is not right, ``without`` why it did not load the lean form, ``added`` which modules of
    the compiler loading and calling imported.
    """

    case: Case
    word: str
    reason: str = ""
    form: str = ""
    build_seconds: float = 0.0
    load_seconds: float = 0.0
    frames_compiled: int = 0
    added: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Runner:
    """Runs cases; enter it first.

    ``models``: whether there are cases that need those libraries.
    """

    def __init__(
        self,
        directory: Path,
        caches: Path,
        *,
        project: Path = PROJECT,
        models: bool = False,
    ) -> None:
        self._directory = directory
        self._project = project
        self._store = directory / "store"
        environment = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(caches),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        libraries = (_MODELS,) if models else ()
        self._compiler = Zygote((*libraries, *COMPILER_MODULES), environment)
        self._worker = Zygote(WORKER_MODULES, environment)
        self._models = Zygote((*libraries, *WORKER_MODULES), environment) if models else None
        self._stack = contextlib.ExitStack()
        self._environment = ""

    def __enter__(self) -> Self:
        for zygote in (self._compiler, self._worker, self._models):
            if zygote is not None:
                self._stack.enter_context(zygote)
        log = self._directory / "environment.log"
        stage = "support.capture_stages:environment"
        self._environment = self._worker.call(stage, None, log=log, seconds=STAGE_SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, case: Case) -> Result:
        """Build, prove, publish, load, call, compare. Raises nothing that is the case's own fault."""
        try:
            return self._run(case)
        except ChildFailed as error:
            return Result(case, "refused", f"process: {error}")

    def _run(self, case: Case) -> Result:
        work = {target: self._directory / case.name / target for target in case.targets}
        seconds = 0.0
        for target, directory in work.items():
            directory.mkdir(parents=True)
            job = self._job(case, target, directory)
            built = self._built(job, directory)
            seconds += built.get("seconds", 0.0)
            failed = built["failed"] or self._proof(case, job, directory)
            if failed:
                return Result(case, "refused", failed, build_seconds=seconds)
        answer = self._work(case, work)
        return _judged(case, answer, seconds)

    def _job(self, case: Case, target: str, directory: Path) -> dict[str, Any]:
        job = Job(
            target=target,
            factory=f"{case.module}:{target}",
            project=str(self._project),
            staging=str(directory / "staging"),
            environment=self._environment,
            device="cpu",
        )
        return msgspec.to_builtins(job)

    def _built(self, job: dict[str, Any], directory: Path) -> Any:
        return self._compiler.call(
            "support.capture_stages:build",
            job,
            log=directory / "build.log",
            seconds=STAGE_SECONDS,
        )

    def _proof(self, case: Case, job: dict[str, Any], directory: Path) -> str:
        provers = Provers(self._bare(case), self._compiler)
        return provers.publish(msgspec.convert(job, Job), self._store, directory)

    def _bare(self, case: Case) -> Zygote:
        zygote = self._models if case.of_models else self._worker
        assert zygote is not None
        return zygote

    def _work(self, case: Case, work: dict[str, Path]) -> Any:
        directory = self._directory / case.name
        return self._bare(case).call(
            "support.capture_stages:work",
            {
                "case": case.name,
                "project": str(self._project),
                "store": str(self._store),
                "module": case.module,
                "targets": case.targets,
                "staging": {target: str(path / "staging") for target, path in work.items()},
            },
            log=directory / "work.log",
            seconds=STAGE_SECONDS,
            environment=_no_cache(directory),
        )


def _no_cache(directory: Path) -> dict[str, str]:
    """Proofs and workers find nothing in the compiler's cache, as on another machine."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(directory / "no-cache")}


def _judged(case: Case, answer: dict[str, Any], seconds: float) -> Result:
    """The word for what a worker saw."""
    compiled = max(answer["frames_compiled"], answer["graphs"])
    result = Result(
        case,
        "right",
        form=" ".join(answer["forms"]),
        build_seconds=seconds,
        load_seconds=answer["load_seconds"],
        frames_compiled=compiled,
        added=tuple(answer["added"]),
        without=tuple(answer["without"]),
    )
    if not set(answer["forms"]) <= set(FORMS):
        reason = "; ".join(dict.fromkeys(answer["reasons"])) or "no reason is given"
        return dataclasses.replace(result, word="refused", reason=f"load: {reason}")
    if answer["different"]:
        return dataclasses.replace(result, word="WRONG", reason=answer["different"])
    if compiled or answer["misses"]:
        reason = "; ".join(answer["said"]) or f"{answer['misses']} calls not covered"
        return dataclasses.replace(result, word="compiled", reason=reason)
    return result


def run_cases(
    cases: Sequence[Case],
    *,
    jobs: int = 2,
    caches: Path | None = None,
    heard: Callable[[Result], None] = lambda _: None,
    keep: Path | None = None,
    project: Path = PROJECT,
) -> list[Result]:
    """Run cases, ``jobs`` at a time, and say each result to ``heard`` when it is there.

    ``caches``: the compiler's; by default empty ones. ``keep``: a directory for logs and packages,
    which is otherwise a temporary one. ``project``: where the package ``cases`` is.
    """

    def run(runner: Runner, case: Case) -> Result:
        result = runner.run(case)
        heard(result)
        return result

    with contextlib.ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capture")))
        directory.mkdir(parents=True, exist_ok=True)
        models = any(case.of_models for case in cases)
        runner = Runner(
            directory,
            caches or directory / "caches",
            project=project,
            models=models,
        )
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.enter_context(runner)
        # Those that take long begin first.
        ordered = sorted(cases, key=lambda case: not case.of_models)
        results = pool.map(lambda case: run(runner, case), ordered)
        return sorted(results, key=lambda result: cases.index(result.case))


def totals(results: Iterable[Result]) -> dict[str, int]:
    """How many of each: right ones by form."""
    counts = collections.Counter(
        f"right, {one.form}" if one.word == "right" else one.word for one in results
    )
    return dict(sorted(counts.items()))
