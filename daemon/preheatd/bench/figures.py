"""What was measured, as frozen data, and what follows from it: medians, ratios, targets, growth."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# In the order of tables. Each is a way to get from `import torch` to a result.
WAYS = {
    "eager": "no compilation",
    "cold": "torch.compile, empty caches",
    "caches": "torch.compile, warm inductor caches",
    "mega": "torch.compile, mega-cache artifacts",
    "package": "torch's own package (caching_precompile)",
    "dynamo": "preheat, dynamo form",
    "dynamo-regional": "preheat, dynamo form, one region compiled",
    "lean": "preheat, lean form",
    "lean-eager": "preheat, lean form, backend eager",
    "lean-aot-eager": "preheat, lean form, backend aot_eager",
    "lean-library": "preheat, lean form, AOTInductor's library",
}
# Preheat's own, each with its target in the measured project and the form that is loaded.
PACKAGED = {
    "dynamo": ("program", "dynamo"),
    "dynamo-regional": ("regional", "dynamo"),
    "lean": ("program", "lean"),
    "lean-eager": ("eager", "lean"),
    "lean-aot-eager": ("aot_eager", "lean"),
    "lean-library": ("library", "lean"),
}
COMPILED_WAYS = ("cold", "caches", "mega")


class ImageSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large a lean image is."""

    graphs: int
    kernels: int
    bytes: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one fresh process measured.

    ``import_seconds``: importing preheat, 0 for other ways. ``load_seconds``: ``preheat.load``, or
    ``torch.compile`` with whatever is read before it. ``ready_seconds``: import, load and first call
    together; ``ready_cpu_seconds`` the same in processor time of all threads. ``steady_seconds``: median
    of one call later on. ``modules_load`` and ``modules``: modules added until after the load, and until
    after the first call. ``compiled``: graphs that this process compiled.
    """

    import_torch_seconds: float
    import_seconds: float
    load_seconds: float
    first_call_seconds: float
    ready_seconds: float
    ready_cpu_seconds: float
    steady_seconds: float | None
    peak_bytes: int
    modules_load: int
    modules: int
    max_error: float
    form: str
    compiled: int
    misses: int
    image: ImageSize | None = None

    @property
    def load_and_call_seconds(self) -> float:
        """Load and first call, without the import of preheat."""
        return self.load_seconds + self.first_call_seconds


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One way over all rounds: ``median`` of each figure, or ``failure`` says why there is none.

    ``fastest`` and ``slowest`` are of ``ready_seconds``.
    """

    way: str
    rounds: int
    median: Sample | None
    fastest: float = 0.0
    slowest: float = 0.0
    failure: str = ""


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """How the lean form compares; null where one side was not measured.

    The first three say how many times faster lean's import, load and first call are,
    ``package_over_lean_imported`` the same of load and first call alone. The others are lean's steady
    time divided by the other's; ``torch.compile`` counts with its fastest.
    """

    package_over_lean: float | None
    cold_over_lean: float | None
    caches_over_lean: float | None
    package_over_lean_imported: float | None
    steady_over_compile: float | None
    steady_over_eager: float | None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One aim of the project: ``value`` must be at least, or at most, ``limit``."""

    name: str
    value: float
    limit: float
    at_least: bool

    @property
    def ok(self) -> bool:
        """Whether it is met."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One program with one number of layers on one device."""

    program: str
    device: str
    layers: int
    build_seconds: float
    ways: tuple[Figures, ...]

    def median(self, way: str) -> Sample | None:
        """The medians of a way; None when it was not measured or failed."""
        return next((one.median for one in self.ways if one.way == way), None)


def summarize(way: str, samples: Iterable[Sample], failure: str = "") -> Figures:
    """The median of each number over the rounds. A way that failed in any round has no figures."""
    samples = tuple(samples)
    if failure or not samples:
        return Figures(way=way, rounds=len(samples), median=None, failure=failure)
    numbers = {
        name: _median([getattr(one, name) for one in samples])
        for name in Sample.__struct_fields__
        if name not in ("form", "image", "max_error", "compiled", "misses")
    }
    worst = {
        name: max(getattr(one, name) for one in samples)
        for name in ("max_error", "compiled", "misses")
    }
    # Counts stay whole numbers: half a module means nothing.
    counts = {name: round(numbers[name] or 0) for name in ("peak_bytes", "modules_load", "modules")}
    median = msgspec.structs.replace(samples[-1], **{**numbers, **worst, **counts})
    ready = [one.ready_seconds for one in samples]
    return Figures(
        way=way, rounds=len(samples), median=median, fastest=min(ready), slowest=max(ready)
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratios(case: CaseResult) -> Ratios:
    """How lean compares with the other ways of this case."""
    ready = {way: one.ready_seconds for way in WAYS if (one := case.median(way))}
    imported = {
        way: one.load_and_call_seconds for way in ("package", "lean") if (one := case.median(way))
    }
    steady = {
        way: one.steady_seconds
        for way in WAYS
        if (one := case.median(way)) and one.steady_seconds is not None
    }
    compiled = min((steady[way] for way in COMPILED_WAYS if way in steady), default=None)
    return Ratios(
        package_over_lean=_ratio(ready.get("package"), ready.get("lean")),
        cold_over_lean=_ratio(ready.get("cold"), ready.get("lean")),
        caches_over_lean=_ratio(ready.get("caches"), ready.get("lean")),
        package_over_lean_imported=_ratio(imported.get("package"), imported.get("lean")),
        steady_over_compile=_ratio(steady.get("lean"), compiled),
        steady_over_eager=_ratio(steady.get("lean"), steady.get("eager")),
    )


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def targets(case: CaseResult) -> tuple[Target, ...]:
    """The aims that apply to this case and that were measured."""
    lean = case.median("lean")
    if lean is None:
        return ()
    by_ratio = ratios(case)
    package, steady = by_ratio.package_over_lean_imported, by_ratio.steady_over_compile
    faster = "times faster to load and call than torch's own package"
    taken = ("milliseconds to load and call", lean.load_and_call_seconds * 1e3)
    relative = "steady state relative to torch.compile's"
    match case.program, case.device:
        case "mlp", "cpu":
            added = "modules that importing preheat and loading add"
            wanted = [
                (faster, package, 300, True),
                (relative, steady, 0.4, False),
                (added, lean.modules_load, 40, False),
            ]
        case "mlp", "cuda":
            wanted = [(relative, steady, 0.6, False)]
        case "transformer", "cuda" if case.layers == 12:
            wanted = [
                (*taken, 60, False),
                (faster, package, 100, True),
                (relative, steady, 1.0, False),
            ]
        case "llama", "cuda" if case.layers == 16:
            wanted = [(*taken, 150, False)]
        case _:
            wanted = []
    return tuple(
        Target(name=name, value=value, limit=limit, at_least=at_least)
        for name, value, limit, at_least in wanted
        if value is not None
    )


def problems(case: CaseResult) -> tuple[str, ...]:
    """What is wrong with the forms of preheat: they must load, compile nothing and miss nothing."""
    found = []
    for one in case.ways:
        if one.way not in PACKAGED:
            continue
        if one.median is None:
            found.append(f"{one.way}: {one.failure}")
        elif one.median.compiled or one.median.misses or one.median.form != PACKAGED[one.way][1]:
            found.append(f"{one.way}: a call was not covered")
    return tuple(found)


def notes(figures: Figures) -> str:
    """What somebody who reads the row must know: why there are no figures, or that it compiled again."""
    if figures.median is None:
        return figures.failure
    if figures.way in ("package", *PACKAGED) and figures.median.compiled:
        return f"compiled {figures.median.compiled} graphs again"
    return ""


def by_growth(cases: Iterable[CaseResult]) -> Mapping[tuple[str, str], tuple[CaseResult, ...]]:
    """The programs that were measured with several numbers of layers, smallest first."""
    found: dict[tuple[str, str], list[CaseResult]] = {}
    for case in sorted(cases, key=lambda one: one.layers):
        if case.median("lean") is not None:
            found.setdefault((case.program, case.device), []).append(case)
    return {key: tuple(found[key]) for key in found if len(found[key]) > 1}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured; ``gpu`` is empty where there is none."""

    torch: str
    python: str
    cpu: str
    cores: int
    threads: int
    gpu: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one command measured."""

    command: str
    date: str
    device: str
    rounds: int
    warm_libraries: bool
    machine: Machine
    cases: tuple[CaseResult, ...]
