"""What a worker counts of its loads, and the metrics made of it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from test_docs import ROOT, in_a_table, text_of

import preheat
import preheat.metrics
from preheat import MemoryStore, Statistics, Verdict, statistics, worker
from preheat.errors import MissError
from preheat.loaded import LoadReport, Runner
from preheat.policy import PreheatWarning

if TYPE_CHECKING:
    from preheat.policy import OnMiss


def load(on_miss: OnMiss) -> None:
    preheat.load("nothing", lambda x: x, store=MemoryStore(), on_miss=on_miss)


def more(before: Statistics, form: str) -> int:
    key = (form, Verdict.MISSING)
    return statistics().loads[key] - before.loads.get(key, 0)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each warning is given once a process."""
    monkeypatch.setattr("preheat.policy._said", set())


def test_loads_are_counted_by_form_and_verdict() -> None:
    before = statistics()
    with pytest.warns(PreheatWarning):
        load("eager")
    load("eager")
    with pytest.raises(MissError):
        load("error")
    now = statistics()
    assert (more(before, "eager"), more(before, "error")) == (2, 1)
    assert now.load_seconds["eager"] > before.load_seconds.get("eager", 0.0)
    before.loads["eager", Verdict.FRESH] = 3  # a copy
    assert ("eager", Verdict.FRESH) not in statistics().loads


def test_frames_that_are_compiled_after_loading_are_counted() -> None:
    before, report = statistics(), LoadReport("counted", Verdict.FRESH, "lean")
    for policy, answer in (("compile", "compile"), ("eager", "eager")):
        with pytest.warns(PreheatWarning):
            assert worker._decide(report, policy, policy, "no variant") == answer  # type: ignore[arg-type]
    with pytest.raises(MissError):
        worker._decide(report, "error", "f", "no variant")
    now = statistics()
    assert (report.misses, report.frames_compiled) == (3, 1)
    assert now.misses - before.misses == 3
    assert now.frames_compiled - before.frames_compiled == 1


def test_a_package_that_is_taken_away_is_counted() -> None:
    before = statistics()

    def fails() -> None:
        raise ZeroDivisionError

    runner = Runner(LoadReport("t", Verdict.FRESH, "lean"), fails, lambda reason: lambda: 3)
    assert runner.run() == 3
    assert statistics().first_calls_failed - before.first_calls_failed == 1


def test_the_metrics_are_those_numbers_and_documented() -> None:
    with pytest.raises(MissError):
        load("error")
    registry = CollectorRegistry()
    preheat.metrics.register(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        preheat.metrics.register(registry)
    text = generate_latest(registry).decode()
    now, page = statistics(), text_of("docs/metrics.md")
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert len(families) == 5
    for family in families.values():
        counter = family.type == "counter"
        assert in_a_table(page, f"{family.name}_total" if counter else family.name)
        assert re.fullmatch(r"preheat_worker_[a-z_]+", family.name)
    loads = {
        (one.labels["form"], one.labels["verdict"]): one.value
        for one in families["preheat_worker_loads"].samples
    }
    assert loads == now.loads
    compiled = families["preheat_worker_frames_compiled"].samples[0]
    assert (compiled.name, compiled.value) == (
        "preheat_worker_frames_compiled_total",
        now.frames_compiled,
    )
    counts = {
        (one.name.rpartition("_")[2], one.labels["form"]): one.value
        for one in families["preheat_worker_load_seconds"].samples
    }
    assert counts["sum", "error"] == now.load_seconds["error"]
    assert counts["count", "error"] == sum(
        n for (form, _), n in now.loads.items() if form == "error"
    )


def test_every_field_is_documented() -> None:
    page = text_of("docs/metrics.md")
    assert [name for name in Statistics.__dataclass_fields__ if not in_a_table(page, name)] == []


def test_the_example_of_the_page_runs() -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", text_of("docs/metrics.md"), re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "preheat_worker_frames_compiled_total 0.0" in done.stdout


def test_importing_them_imports_neither_torch_nor_prometheus() -> None:
    code = (
        "import sys, preheat, preheat.metrics; preheat.statistics();"
        "sys.exit(bool({'torch', 'prometheus_client'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
