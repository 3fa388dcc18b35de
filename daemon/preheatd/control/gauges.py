"""The least that ``/metrics`` says: targets by verdict, builds, and why no builds are begun."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from preheat.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from preheatd.operations import Operations


def render_gauges(operations: Operations) -> Callable[[], bytes]:
    """A function that writes the gauges of this moment in Prometheus' text format."""
    registry = CollectorRegistry()
    targets = Gauge("preheat_targets", "Targets by verdict.", ["verdict"], registry=registry)
    queue = Gauge("preheat_queue", "Builds that wait for their turn.", registry=registry)
    paused = Gauge("preheat_paused", "1 while no builds are begun.", registry=registry)

    def render() -> bytes:
        view = operations.view
        counts = collections.Counter(one.verdict for one in view.plan.decisions)
        for verdict in Verdict:
            targets.labels(str(verdict)).set(counts[verdict])
        queue.set(len(view.queue.waiting) if view.queue else 0)
        paused.set(bool(operations.pauses))
        return generate_latest(registry)

    return render
