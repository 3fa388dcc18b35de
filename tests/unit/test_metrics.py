"""The daemon's metrics: real events and plans in, Prometheus' text out, and the rules of its names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_docs import error_classes, in_a_table, reason_and_failure_kinds, text_of

from preheat.store import DiskStore
from preheat.store.collection import REASONS
from preheat.store.layout import Layout
from preheat.verdict import Reason, Verdict
from preheatd import events, tallies, troubles
from preheatd.builds import kind_of
from preheatd.kinds import KINDS, OTHER
from preheatd.metrics import Metrics
from preheatd.plan import Action, Decision, Plan
from preheatd.store_figures import Size, StoreFigures

if TYPE_CHECKING:
    from collections.abc import Mapping

NOWHERE = Layout(Path("/nonexistent"))
EDITED = (Reason(kind="module_edited", file="a.py"), Reason(kind="data_changed"))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Daemon:
    """What a daemon tells its metrics, step by step."""

    def __init__(self, layout: Layout = NOWHERE) -> None:
        self.clock = Clock()
        self.metrics = Metrics(StoreFigures(layout), self.clock)

    def tell(self, action: str, target: str | None = None, **fields: Any) -> None:
        self.metrics.heard(events.Event(action=action, target=target, **fields))

    def plan(self, waiting: int = 0, seconds: float = 0.0, **verdicts: str) -> None:
        decisions = tuple(
            Decision(
                target=name,
                environment="e",
                verdict=Verdict(verdict),
                action=Action.NONE if verdict == "FRESH" else Action.BUILD,
                reasons=EDITED if verdict == "STALE" else (),
            )
            for name, verdict in verdicts.items()
        )
        self.tell(events.PLANNED, seconds=seconds)
        self.metrics.planned(Plan(decisions=decisions), waiting)

    def after(self, seconds: float) -> None:
        self.clock.now += seconds

    def build(self, target: str, build: float, proof: float) -> None:
        self.tell(events.BUILD_STARTED, target)
        self.tell(events.BUILD_PHASE, target, phase="trace")
        self.after(build)
        self.tell(events.BUILD_PHASE, target, phase="proof")
        self.after(proof / 2)
        self.tell(events.BUILD_PHASE, target, phase="proof", detail="example 1 of 1")
        self.after(proof / 2)
        self.tell(events.BUILD_PUBLISHED, target, seconds=build + proof)

    def values(self) -> dict[str, float]:
        """Every sample: ``name{label=value}`` to value."""
        found = {}
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found


def test_targets_by_state_and_the_queue() -> None:
    daemon = Daemon()
    daemon.plan(waiting=1, a="FRESH", b="STALE", c="STALE", d="FAILED")
    values = daemon.values()
    assert values["preheat_targets{verdict=STALE}"] == 2
    assert values["preheat_targets{verdict=FRESH}"] == 1
    assert values["preheat_targets{verdict=MISSING}"] == 0
    assert values["preheat_queue_depth"] == 1
    daemon.plan(a="FRESH")
    assert daemon.values()["preheat_targets{verdict=STALE}"] == 0


def test_builds_by_result_and_reason() -> None:
    daemon = Daemon()
    daemon.tell(events.BUILD_STARTED, "a")
    assert daemon.values()["preheat_builds_running"] == 1
    daemon.tell(events.BUILD_FAILED, "a", kind="timed_out", detail="It took longer.")
    daemon.tell(events.BUILD_FAILED, "a", kind="made up by a build process", detail="x")
    daemon.tell(events.BUILD_SUPERSEDED, "a", reasons=EDITED)
    daemon.tell(events.BUILD_SUPERSEDED, "a")
    daemon.tell(events.BUILD_HELD, "a", detail="process 3")
    daemon.tell(events.BUILD_PUBLISHED, "a", detail="the package from before the edit")
    daemon.tell(events.BUILD_PUBLISHED, "a", seconds=3.0)
    values = daemon.values()
    builds = {name: value for name, value in values.items() if "builds_total" in name}
    assert builds == {
        "preheat_builds_total{reason=timed_out,result=failed}": 1,
        f"preheat_builds_total{{reason={OTHER},result=failed}}": 1,
        "preheat_builds_total{reason=module_edited,result=superseded}": 1,
        "preheat_builds_total{reason=,result=superseded}": 1,
        "preheat_builds_total{reason=,result=held}": 1,
        "preheat_builds_total{reason=,result=returned}": 1,
        "preheat_builds_total{reason=,result=published}": 1,
    }
    assert values["preheat_builds_running"] == 0


def test_build_and_proof_seconds() -> None:
    daemon = Daemon()
    daemon.build("a", build=12.0, proof=4.0)
    values = daemon.values()
    assert values["preheat_build_seconds_sum"] == 12.0
    assert values["preheat_proof_seconds_sum"] == 4.0
    assert values["preheat_build_seconds_count"] == values["preheat_proof_seconds_count"] == 1
    assert values["preheat_build_seconds_bucket{le=10.0}"] == 0
    assert values["preheat_build_seconds_bucket{le=20.0}"] == 1


def test_a_second_attempt_counts_as_part_of_the_build() -> None:
    daemon = Daemon()
    daemon.tell(events.BUILD_STARTED, "a")
    for _ in range(2):
        daemon.tell(events.BUILD_PHASE, "a", phase="trace")
        daemon.after(10.0)
        daemon.tell(events.BUILD_PHASE, "a", phase="proof")
        daemon.after(1.0)
    daemon.tell(events.BUILD_PUBLISHED, "a")
    values = daemon.values()
    assert values["preheat_build_seconds_sum"] == 21.0
    assert values["preheat_proof_seconds_sum"] == 1.0


def fresh_again(values: Mapping[str, float], result: str = "published") -> tuple[float, float]:
    name = "preheat_edit_to_fresh_seconds"
    return values[f"{name}_count{{result={result}}}"], values[f"{name}_sum{{result={result}}}"]


def test_two_targets_that_an_edit_makes_stale_have_a_time_each() -> None:
    daemon = Daemon()
    daemon.plan(a="FRESH", b="FRESH", c="FRESH")
    daemon.tell(events.CHANGED, seconds=0.05)  # the first hint came so long ago
    daemon.plan(a="STALE", b="STALE", c="FRESH")
    daemon.build("a", build=10.0, proof=2.0)
    daemon.plan(a="FRESH", b="STALE", c="FRESH")
    daemon.build("b", build=5.0, proof=1.0)
    assert fresh_again(daemon.values()) == (2, pytest.approx(12.05 + 18.05))
    assert daemon.values()["preheat_invalidations_total{reason=module_edited}"] == 2
    assert daemon.values()["preheat_invalidations_total{reason=data_changed}"] == 2


def test_an_edit_during_the_build_does_not_start_the_time_anew() -> None:
    daemon = Daemon()
    daemon.plan(a="FRESH")
    daemon.tell(events.CHANGED, seconds=1.0)
    daemon.plan(a="STALE")
    daemon.tell(events.BUILD_STARTED, "a")
    daemon.after(4.0)
    daemon.tell(events.CHANGED, seconds=0.1)
    daemon.plan(a="STALE")
    daemon.tell(events.BUILD_SUPERSEDED, "a")
    daemon.build("a", build=5.0, proof=1.0)
    assert fresh_again(daemon.values()) == (1, pytest.approx(11.0))


def test_what_is_no_edit_has_no_time_from_one() -> None:
    daemon = Daemon()
    daemon.plan(a="MISSING", b="FRESH")
    daemon.tell(events.CHANGED, seconds=0.1)  # of something else
    daemon.plan(a="MISSING", b="FRESH")
    daemon.build("a", build=1.0, proof=1.0)
    daemon.plan(a="FRESH", b="STALE")  # found by the rescan: nobody knows since when
    daemon.build("b", build=1.0, proof=1.0)
    assert fresh_again(daemon.values()) == (0, 0.0)


def test_an_edit_that_is_undone_is_fresh_without_a_build() -> None:
    daemon = Daemon()
    daemon.plan(a="FRESH")
    daemon.tell(events.CHANGED, seconds=0.1)
    daemon.plan(a="STALE")
    daemon.plan(a="FRESH")  # undone before it was built: nothing became fresh
    assert fresh_again(daemon.values()) == (0, 0.0)
    daemon.tell(events.CHANGED, seconds=0.5)
    daemon.plan(a="STALE")
    daemon.tell(events.BUILD_STARTED, "a")
    daemon.tell(events.BUILD_PUBLISHED, "a", detail="the package from before the edit")
    assert fresh_again(daemon.values(), "returned") == (1, pytest.approx(0.5))


def test_a_failure_ends_the_time_and_the_next_edit_begins_another() -> None:
    daemon = Daemon()
    daemon.plan(a="FRESH")
    daemon.tell(events.CHANGED, seconds=0.1)
    daemon.plan(a="STALE")
    daemon.tell(events.BUILD_STARTED, "a")
    daemon.tell(events.BUILD_FAILED, "a", kind="target")
    daemon.plan(a="FAILED")
    daemon.after(600.0)
    daemon.tell(events.CHANGED, seconds=0.1)
    daemon.plan(a="STALE")
    daemon.build("a", build=1.0, proof=1.0)
    assert fresh_again(daemon.values()) == (1, pytest.approx(2.1))


def test_a_plan_that_began_before_the_hint_does_not_use_it_up() -> None:
    daemon = Daemon()
    daemon.plan(a="FRESH")
    daemon.after(10.0)
    daemon.tell(events.CHANGED, seconds=0.1)
    daemon.after(0.5)
    daemon.plan(seconds=2.0, a="FRESH")
    daemon.plan(seconds=0.1, a="STALE")
    daemon.build("a", build=1.0, proof=1.0)
    assert fresh_again(daemon.values()) == (1, pytest.approx(2.6))


def test_a_plan_that_sees_the_edit_before_the_burst_has_settled() -> None:
    """As when another build ends at that moment: the hint comes after what it explains."""
    daemon = Daemon()
    daemon.plan(a="FRESH", b="FRESH")
    daemon.after(10.0)
    daemon.plan(a="STALE", b="FRESH")
    daemon.after(0.2)
    daemon.tell(events.CHANGED, seconds=0.3)
    daemon.plan(a="BUILDING", b="FRESH")
    daemon.build("a", build=1.0, proof=1.0)
    assert fresh_again(daemon.values()) == (1, pytest.approx(2.3))


def test_what_was_published_while_a_plan_was_made_stays_fresh() -> None:
    daemon = Daemon()
    daemon.plan(a="STALE")
    daemon.build("a", build=1.0, proof=1.0)
    daemon.plan(seconds=2.5, a="STALE")
    daemon.after(1.0)
    daemon.tell(events.CHANGED, seconds=0.1)
    daemon.plan(seconds=0.01, a="STALE")
    daemon.build("a", build=1.0, proof=1.0)
    assert fresh_again(daemon.values()) == (1, pytest.approx(2.1))


def test_the_watch_and_the_rescans() -> None:
    daemon = Daemon()
    daemon.metrics.watch_events = lambda: 12
    daemon.tell(events.WATCH_OVERFLOW)
    daemon.plan(seconds=0.3, a="FRESH")
    values = daemon.values()
    assert values["preheat_watch_events_total"] == 12
    assert values["preheat_watch_overflows_total"] == 1
    assert values["preheat_rescan_seconds_count"] == 1
    assert values["preheat_rescan_seconds_sum"] == 0.3


def test_troubles_and_hooks() -> None:
    daemon = Daemon()
    event = events.Event(action=events.WATCH_POLLING, detail="why")
    daemon.metrics.troubles = troubles.after((), event, "noon")
    daemon.tell(events.HOOK_FAILED, "a", detail="why")
    values = daemon.values()
    assert values["preheat_trouble{kind=watch_polling}"] == 1
    assert sum(value for name, value in values.items() if "preheat_trouble" in name) == 1
    assert values["preheat_hook_failures_total"] == 1


def test_the_store(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, create=True)
    daemon = Daemon(store.layout)
    store.put_object(b"x" * 100)
    assert daemon.values()["preheat_store_bytes"] == 100
    store.put_object(b"y" * 23)
    values = daemon.values()
    assert (values["preheat_store_objects"], values["preheat_store_bytes"]) == (2, 123)
    assert Daemon().values()["preheat_store_objects"] == 0


def test_only_what_changed_in_a_store_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, create=True)
    digests = [store.put_object(f"{number}".encode())[0] for number in range(20)]
    read: list[str] = []
    size = "preheatd.store_figures._size"
    from preheatd import store_figures

    plain = store_figures._size
    monkeypatch.setattr(size, lambda path: read.append(path) or plain(path))
    later = max(path.stat().st_mtime_ns for path in store.layout.objects.iterdir()) + 10**10
    figures = StoreFigures(store.layout, lambda: later)
    assert figures.look().objects == 20
    read.clear()
    assert figures.look().objects == 20
    assert read == []
    store.layout.object(digests[0]).unlink()
    assert figures.look().objects == 19
    assert read == [str(store.layout.object(digests[0]).parent)]
    # Just changed: the directory's time may stay the same when the next object comes.
    young = StoreFigures(store.layout, lambda: later - 10**10)
    assert young.look() == young.look() != Size()


def test_a_daemon_that_nobody_asks_imports_no_prometheus() -> None:
    import subprocess
    import sys

    code = "import sys, preheatd.service; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the rules of the names ---------------------------------------------------------------------


def families() -> list[Any]:
    daemon = Daemon()
    daemon.plan(a="FRESH")
    daemon.build("a", 1.0, 1.0)
    daemon.plan(a="STALE")
    text = daemon.metrics.render().decode()
    return list(text_string_to_metric_families(text))


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_names_say_what_and_in_which_unit(family: Any) -> None:
    assert re.fullmatch(r"preheat_[a-z]+(_[a-z]+)*", family.name)
    assert family.documentation.endswith(".")
    names = {sample.name for sample in family.samples}
    if family.type == "counter":
        assert names == {f"{family.name}_total"}
    else:
        assert not any(name.endswith("_total") for name in names)
    if family.type == "histogram":
        assert family.name.endswith("_seconds")
    assert not re.search(r"milli|micro|minutes|hours|kilo|mega|_ms$|_mb$", family.name)


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_every_metric_is_documented_with_its_labels(family: Any) -> None:
    page = text_of("docs/metrics.md")
    name = f"{family.name}_total" if family.type == "counter" else family.name
    assert in_a_table(page, name)
    (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
    assert [label for label in labels if f"`{label}`" not in row] == []


def test_labels_have_values_of_closed_sets() -> None:
    closed = {
        "verdict": set(Verdict),
        "result": set(tallies.RESULTS),
        "reason": {*KINDS, OTHER, "", *REASONS},
        "kind": set(troubles.KINDS),
    }
    for family in families():
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert label in ("le", "version") or value in closed[label]


def test_the_set_of_kinds_is_that_of_the_code() -> None:
    found = {*reason_and_failure_kinds(), *(kind_of(error("")) for error in error_classes())}
    assert found == KINDS
