"""What follows from measured figures: medians, ratios, aims, tables and the page."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from preheatd.bench import command, tables
from preheatd.bench.figures import (
    WAYS,
    CaseResult,
    ImageSize,
    Machine,
    Results,
    Sample,
    by_growth,
    notes,
    problems,
    ratios,
    summarize,
    targets,
)

MACHINE = Machine(torch="2.13.0", python="3.11.7", cpu="A|B", cores=2, threads=1, gpu="")
WANTED = command.Wanted(
    programs=("mlp",),
    device="cpu",
    layers=(),
    ways=tuple(WAYS),
    rounds=3,
    threads=None,
    warm_libraries=False,
    markdown=None,
    as_json=False,
)


def sample(ready: float, steady: float | None = 1e-4, **more: Any) -> Sample:
    figures: dict[str, Any] = {
        "import_torch_seconds": 2.0,
        "import_seconds": 0.0,
        "load_seconds": ready / 2,
        "first_call_seconds": ready / 2,
        "ready_seconds": ready,
        "ready_cpu_seconds": ready,
        "steady_seconds": steady,
        "peak_bytes": 200 * 2**20,
        "modules_load": 10,
        "modules": 11,
        "max_error": 0.0,
        "form": "lean",
        "compiled": 0,
        "misses": 0,
    }
    return Sample(**{**figures, **more})


def case(program: str = "mlp", device: str = "cpu", layers: int = 2, **ways: Sample) -> CaseResult:
    return CaseResult(
        program=program,
        device=device,
        layers=layers,
        build_seconds=1.0,
        ways=tuple(summarize(way, [one]) for way, one in ways.items()),
    )


FULL = case(
    eager=sample(0.001, 1.0e-4, form="eager"),
    cold=sample(20.0, 2.2e-4, form="cold", compiled=1),
    caches=sample(8.0, 2.0e-4, form="caches", compiled=1),
    package=sample(5.0, 1.8e-4, form="package"),
    dynamo=sample(3.0, 1.7e-4, form="dynamo"),
    lean=sample(0.01, 0.5e-4, image=ImageSize(graphs=1, kernels=2, bytes=3072)),
)


def results(*cases: CaseResult, device: str = "cpu") -> Results:
    return Results(
        command="preheat bench load",
        date="2026-11-30",
        device=device,
        rounds=3,
        warm_libraries=False,
        machine=MACHINE,
        cases=cases,
    )


def test_each_figure_is_its_own_median_and_the_worst_answer_counts() -> None:
    found = summarize(
        "lean",
        [
            sample(3.0, 1e-5, modules=10, max_error=0.5),
            sample(1.0, 3e-5, modules=11),
            sample(2.0, None, modules=13, misses=1),
        ],
    )
    assert found.median is not None
    assert found.median.ready_seconds == 2.0
    assert found.median.steady_seconds == 2e-5
    assert found.median.modules == 11
    assert (found.median.max_error, found.median.misses) == (0.5, 1)
    assert (found.rounds, found.fastest, found.slowest) == (3, 1.0, 3.0)


def test_counts_stay_whole_numbers() -> None:
    found = summarize("lean", [sample(1.0, modules=10), sample(1.0, modules=13)])
    assert found.median is not None
    assert isinstance(found.median.modules, int)


def test_a_way_that_failed_once_has_no_figures() -> None:
    found = summarize("package", [sample(1.0)], "ended by SIGSEGV")
    assert found.median is None
    assert notes(found) == "ended by SIGSEGV"


def test_ratios_compare_the_lean_form_with_the_best_of_torch() -> None:
    found = ratios(FULL)
    assert found.package_over_lean == pytest.approx(500)
    assert found.cold_over_lean == pytest.approx(2000)
    assert found.caches_over_lean == pytest.approx(800)
    assert found.steady_over_compile == pytest.approx(0.25)  # the faster of cold and caches
    assert found.steady_over_eager == pytest.approx(0.5)


def test_ratios_of_what_was_not_measured_are_missing() -> None:
    found = ratios(case(lean=sample(0.01, None)))
    assert set(msgspec.to_builtins(found).values()) == {None}


def test_aims_say_whether_they_are_met() -> None:
    assert [(one.limit, one.ok) for one in targets(FULL)] == [(300, True), (0.4, True), (40, True)]
    slow = case(
        cold=sample(20.0, 1e-4), package=sample(2.0), lean=sample(0.01, 1e-4, modules_load=41)
    )
    assert [one.ok for one in targets(slow)] == [False, False, False]


@pytest.mark.parametrize(
    ("program", "device", "layers", "limits"),
    [
        ("mlp", "cuda", 2, [0.6]),
        ("transformer", "cuda", 12, [60, 100, 1.0]),
        ("llama", "cuda", 16, [150]),
        ("transformer", "cuda", 4, []),
        ("transformer", "cpu", 12, []),
        ("llama", "cpu", 16, []),
    ],
)
def test_aims_belong_to_programs_and_devices(
    program: str, device: str, layers: int, limits: list[float]
) -> None:
    made = case(
        program, device, layers, cold=sample(9.0), package=sample(5.0), lean=sample(0.03, 0.5e-4)
    )
    assert [one.limit for one in targets(made)] == limits
    assert all(one.ok for one in targets(made))


def test_a_form_that_fails_compiles_or_misses_is_a_problem() -> None:
    assert problems(FULL) == ()
    assert problems(case(lean=sample(1.0, compiled=1))) == ("lean: a call was not covered",)
    assert problems(case(lean=sample(1.0, form="dynamo"))) == ("lean: a call was not covered",)
    broken = msgspec.structs.replace(FULL, ways=(summarize("dynamo", [], "it raised"),))
    assert problems(broken) == ("dynamo: it raised",)


def test_a_package_of_torch_that_compiles_again_is_named_in_its_row() -> None:
    again = case(package=sample(5.0, compiled=3), lean=sample(0.01))
    assert tables.way_rows(again)[0][-1] == "compiled 3 graphs again"
    assert problems(again) == ()


def test_growth_is_shown_for_several_numbers_of_layers() -> None:
    image = ImageSize(graphs=1, kernels=2, bytes=3072)
    four, one = (case("transformer", layers=n, lean=sample(0.02, image=image)) for n in (4, 1))
    grown = by_growth([four, one, FULL])
    assert {key: [case.layers for case in cases] for key, cases in grown.items()} == {
        ("transformer", "cpu"): [1, 4]
    }
    rows = tables.growth_rows(grown["transformer", "cpu"])
    assert rows[0] == ("1", "1", "2", "3", "10.0", "10.0", "20.0", "100.0")
    assert all(len(row) == len(tables.GROWTH_COLUMNS) for row in rows)


def test_tables_have_a_row_for_each_way() -> None:
    failed = msgspec.structs.replace(
        FULL, ways=(*FULL.ways[:3], summarize("package", [], "TypeError: [no]"), *FULL.ways[4:])
    )
    rows = tables.way_rows(failed)
    assert [row[0] for row in rows] == [WAYS[one.way] for one in failed.ways]
    assert all(len(row) == len(tables.WAY_COLUMNS) for row in rows)
    console = Console(file=io.StringIO(), width=240)
    tables.print_results(console, results(failed))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "TypeError: [no]" in text
    assert "lean is 2000 times faster to the first result than a cold torch.compile" in text
    assert "over" not in text


def test_the_page_keeps_the_parts_of_other_devices() -> None:
    gpu = case("mlp", "cuda", cold=sample(9.0), lean=sample(0.02))
    page = tables.merged("", tables.section(results(FULL)))
    both = tables.merged(page, tables.section(results(gpu, device="cuda")))
    assert both.startswith(page)
    assert both.count("## CUDA: mlp\n") == both.count("# Performance\n") == 1
    assert tables.merged(both, tables.section(results(FULL))) == both
    assert "| preheat, lean form | 2.00 | 0.0 | 5.0 | 5.0 | 10.0 | 50.0 |" in both
    assert "A|B, 2 cores, 1 thread;" in both


def test_every_way_is_measured_at_the_first_number_of_layers_only() -> None:
    wanted = dataclasses.replace(WANTED, programs=("mlp", "transformer"), layers=(4, 1))
    assert [(one.program, one.layers, len(one.ways)) for one in command.cases(wanted)] == [
        ("mlp", 2, len(WAYS)),
        ("transformer", 4, len(WAYS)),
        ("transformer", 1, 1),
    ]


def test_the_command_line_measures_the_same_again() -> None:
    wanted = dataclasses.replace(WANTED, layers=(4, 1), ways=("eager", "lean"), threads=1)
    assert command.command_line(wanted) == (
        "preheat bench load --program mlp --device cpu --layers 4,1 --ways eager,lean --rounds 3 "
        "--threads 1"
    )


def test_lists_of_options_are_read_in_the_order_of_tables() -> None:
    assert command.split_ways("lean, eager") == ("eager", "lean")
    assert command.split_layers("4,1,4") == (4, 1)
    for split, text in [(command.split_ways, "fast"), (command.split_layers, "0")]:
        with pytest.raises(ValueError, match=r"."):
            split(text)


def test_the_answer_holds_what_follows_from_each_case() -> None:
    (answer,) = command.answer(results(FULL))["cases"]
    assert answer["ratios"]["package_over_lean"] == pytest.approx(500)
    assert [one["ok"] for one in answer["targets"]] == [True, True, True]
    assert answer["problems"] == []
