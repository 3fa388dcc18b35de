"""What follows from measured edits: parts, medians, ratios, aims, tables; and which texts are edited."""

from __future__ import annotations

import ast
import io
from typing import Any

import pytest
from rich.console import Console

from preheatd import events
from preheatd.bench import edit_command, edit_tables
from preheatd.bench.edit_daemon import Arrived, pss_bytes, read_event, sample_of
from preheatd.bench.edit_figures import (
    EDITS,
    PROGRAMS,
    WAYS,
    EditResults,
    EditSample,
    ProgramResult,
    aims,
    by_daemon,
    of_fresh,
    problems,
    summarize,
)
from preheatd.bench.edit_project import helper_text
from preheatd.bench.figures import Machine
from preheatd.bench.processes import FailedError
from preheatd.events import Event
from preheatd.stages import Ran, seconds_by_stage
from support.manifests import manifest_of

MACHINE = Machine(torch="2.13.0", python="3.11.7", cpu="A|B", cores=2, threads=1, gpu="")


def sample(seconds: float, build: float, proof: float, *, forked: bool = False) -> EditSample:
    return EditSample(
        seconds=seconds,
        build_seconds=build,
        proof_seconds=proof,
        phases={"start": 0.5, "trace": build - 0.5},
        forked=forked,
    )


def program(name: str = "mlp", **more: Any) -> ProgramResult:
    """F is 20 s for a constant and 10 s for code; forked 5.1 s and 1.1 s, of which 0.1 s the daemon's."""
    return ProgramResult(
        program=name,
        edits=(
            summarize("constant", "fresh", [sample(20.2, 12, 8)]),
            summarize("constant", "forked", [sample(5.1, 4, 1, forked=True)]),
            summarize("code", "fresh", [sample(10.2, 6, 4)]),
            summarize("code", "forked", [sample(1.1, 0.5, 0.5, forked=True)]),
        ),
        lean_proof_seconds=3.0,
        dynamo_proof_seconds=5.0,
        **more,
    )


def results(*programs: ProgramResult) -> EditResults:
    return EditResults(
        command="preheat bench edit --rounds 3",
        date="2026-12-01",
        rounds=3,
        machine=MACHINE,
        programs=programs,
    )


# --- processes of a build ------------------------------------------------------------------------


def test_processes_of_one_stage_that_run_at_the_same_time_count_once() -> None:
    ran = [
        Ran("proof", 10.0, 12.0),
        Ran("build", 0.0, 9.0),
        Ran("proof", 10.5, 13.0),
        Ran("proof", 10.6, 11.0),
        Ran("proof", 20.0, 21.0),
    ]
    assert seconds_by_stage(ran) == {"build": 9.0, "proof": 4.0}


def test_no_processes_take_no_time() -> None:
    assert seconds_by_stage([]) == {}


# --- what a daemon says --------------------------------------------------------------------------


def test_a_line_that_is_no_event_is_skipped() -> None:
    assert read_event(b'{"action":"ready","detail":"x"}\n') == Event(action="ready", detail="x")
    assert read_event(b"something printed\n") is None
    assert read_event(b"\xff\n") is None
    assert read_event(b'{"detail": "no action"}\n') is None


def test_an_edit_is_measured_from_the_writing_to_the_event() -> None:
    event = Event(action=events.BUILD_PUBLISHED, processes={"build": 4.0, "proof": 1.0})
    found = sample_of(100.0, Arrived(event, 105.25), manifest_of())
    assert (found.seconds, found.process_seconds, found.own_seconds) == (5.25, 5.0, 0.25)
    assert not found.forked


def test_a_package_that_was_not_built_is_no_measurement() -> None:
    event = Event(action=events.BUILD_PUBLISHED, detail="the package from before the edit")
    with pytest.raises(FailedError, match="the package from before"):
        sample_of(100.0, Arrived(event, 101.0), manifest_of())


def test_the_share_of_memory_is_read_from_its_line() -> None:
    text = "55d0-7ffc ---p 0 00:00 0 [rollup]\nRss:  9000 kB\nPss:    1234 kB\nPss_Dirty: 7 kB\n"
    assert pss_bytes(text) == 1234 * 1024
    assert pss_bytes("") == 0


# --- edits ---------------------------------------------------------------------------------------


def test_every_edit_is_of_its_kind_and_no_text_comes_twice() -> None:
    texts = [helper_text(number) for number in range(40)]
    assert len(set(texts)) == len(texts)
    for number in range(1, len(texts)):
        same_constant = constant(texts[number]) == constant(texts[number - 1])
        same_shape = shape(texts[number]) == shape(texts[number - 1])
        assert (same_constant, same_shape) == ((False, True) if number % 2 else (True, False))


def constant(text: str) -> float:
    (found,) = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    ]
    return found


def shape(text: str) -> list[str]:
    return [type(node).__name__ for node in ast.walk(ast.parse(text))]


# --- figures -------------------------------------------------------------------------------------


def test_the_median_of_each_number_over_the_rounds() -> None:
    found = summarize(
        "code",
        "forked",
        [
            sample(3.0, 1.0, 1.5, forked=True),
            sample(9.0, 7.0, 1.0, forked=True),
            sample(4.0, 2.0, 1.9, forked=False),
        ],
    )
    assert (found.rounds, found.fastest, found.slowest) == (3, 3.0, 9.0)
    assert (found.median.seconds, found.median.build_seconds) == (4.0, 2.0)
    assert found.median.proof_seconds == 1.5
    assert found.own_seconds == pytest.approx(0.5)
    assert found.median.phases == {"start": 0.5, "trace": 1.5}
    assert not found.median.forked


def test_parts_are_those_of_build_and_proof_in_fresh_processes() -> None:
    one = program()
    forked = one.of("constant", "forked")
    assert forked is not None
    assert one.fresh_seconds("constant") == 20.0
    assert of_fresh(one, forked) == pytest.approx(5.1 / 20)
    assert by_daemon(one, forked) == pytest.approx(0.1 / 20)


def test_without_fresh_processes_there_is_nothing_to_compare_with() -> None:
    forked = summarize("code", "forked", [sample(1.1, 0.5, 0.5, forked=True)])
    one = ProgramResult(program="mlp", edits=(forked,))
    assert of_fresh(one, forked) is None
    assert by_daemon(one, forked) is None
    assert aims(results(one)) == ()


def test_the_aims_of_a_program() -> None:
    found = {one.name: one for one in aims(results(program(zygote_bytes=460_000_000)))}
    assert {name: (round(one.value, 3), one.ok) for name, one in found.items()} == {
        "mlp, constant: of F": (0.255, False),
        "mlp, constant: the daemon's own part of F": (0.005, True),
        "mlp, constant: forked proof of a fresh one": (0.125, True),
        "mlp, code: of F": (0.11, True),
        "mlp, code: the daemon's own part of F": (0.01, True),
        "mlp, code: forked proof of a fresh one": (0.125, True),
        "mlp: proof of the lean form of that of the dynamo form": (0.6, False),
        "zygote: MB of both processes": (460.0, False),
    }


def test_blocks_compiled_one_by_one_are_compared_with_the_whole_as_well() -> None:
    both = results(program("blocks"), program("per-block"))
    found = {one.name: one for one in aims(both)}
    assert found["per-block, constant: of the F of `blocks`"].limit == pytest.approx(1 / 3)
    assert "per-block, constant: of F" in found
    assert "per-block, code: of F" not in found


def test_a_package_without_a_form_has_no_aim_for_its_proof() -> None:
    one = ProgramResult(program="mlp", dynamo_proof_seconds=5.0)
    assert aims(results(one)) == ()


@pytest.mark.parametrize("way", WAYS)
def test_processes_that_were_not_what_they_should_be_are_a_problem(way: str) -> None:
    wrong = summarize("code", way, [sample(2.0, 1.0, 0.9, forked=way != "forked")])
    assert problems(results(program())) == ()
    (found,) = problems(results(ProgramResult(program="mlp", edits=(wrong,))))
    assert f"mlp, code, {way}" in found


def test_a_program_that_failed_is_a_problem_and_a_row_less() -> None:
    both = results(ProgramResult(program="bert", failure="no compiler"), program())
    assert problems(both) == ("bert: no compiler",)
    assert [row[0] for row in edit_tables.other_rows(both)] == ["mlp"]
    assert "bert: no compiler" in edit_tables.section(both)


# --- tables --------------------------------------------------------------------------------------


def test_tables_have_a_cell_for_each_column() -> None:
    one = results(program(zygote_bytes=400_000_000))
    for columns, rows in (
        (edit_tables.EDIT_COLUMNS, edit_tables.edit_rows(one)),
        (edit_tables.PHASE_COLUMNS, edit_tables.phase_rows(one)),
        (edit_tables.OTHER_COLUMNS, edit_tables.other_rows(one)),
    ):
        assert rows
        assert {len(row) for row in rows} == {len(columns)}
    first, second, *_ = edit_tables.edit_rows(one)
    assert first[:3] == ("mlp, constant", "fresh", "20.2")
    assert second[-4:] == ("0.10", "0.5%", "0.26", "3.9")


def test_the_terminal_and_the_page_say_the_same_aims() -> None:
    one = results(program(zygote_bytes=400_000_000))
    out = io.StringIO()
    edit_tables.print_results(Console(file=out, width=240), one)
    page = edit_tables.section(one)
    for line in edit_tables.aim_lines(one):
        assert line in out.getvalue()
        assert line in page
    assert any(line.startswith("not met") for line in edit_tables.aim_lines(one))
    assert "## Edit to fresh: mlp\n" in page
    assert "medians of 3 edits each" in page


def test_json_has_what_follows_from_each_figure() -> None:
    answer = edit_command.answer(results(program()))
    (one,) = answer["programs"]
    assert [row["of_fresh"] for row in one["edits"]] == pytest.approx([1.01, 0.255, 1.02, 0.11])
    assert {aim["met"] for aim in answer["aims"]} == {True, False}
    assert answer["problems"] == []


def test_the_command_line_measures_the_same_again() -> None:
    wanted = edit_command.Wanted(
        programs=tuple(PROGRAMS), rounds=2, threads=1, markdown=None, as_json=True
    )
    assert edit_command.command_line(wanted) == "preheat bench edit --rounds 2 --threads 1"
    assert set(EDITS) == {"constant", "code"}
