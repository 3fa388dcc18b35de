"""The daemon's metrics in Prometheus' text format: names, units and labels of what ``tallies`` counts.

``docs/metrics.md`` describes each. Labels have values of closed sets: no name of a target, no path and
no message is one.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from preheat.version import VERSION
from preheatd import troubles
from preheatd.collection.periodic import Tallies as CollectionTallies
from preheatd.tallies import Tallies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from preheatd import events
    from preheatd.plan import Plan
    from preheatd.store_figures import StoreFigures
    from preheatd.tallies import Histogram


class Metrics:
    """The metrics of one daemon, fed by its events and plans.

    ``watch_events`` says how many events the watch has heard; ``troubles`` is what goes on now. The
    library prometheus-client is imported by the first ``render``: most daemons are never asked.
    """

    def __init__(self, store: StoreFigures, clock: Callable[[], float] = time.monotonic) -> None:
        self.tallies = Tallies(clock)
        self.troubles: tuple[troubles.Trouble, ...] = ()
        self.watch_events: Callable[[], int] = lambda: 0
        self.collection = CollectionTallies()
        self.paused: Callable[[], bool] = lambda: False
        self._store = store
        self._last_plan = 0.0

    def heard(self, event: events.Event) -> None:
        """Take an event into account."""
        self.tallies.heard(event)

    def planned(self, plan: Plan, queue_depth: int) -> None:
        """A plan was made, and its event heard; so many builds wait now."""
        self.tallies.planned(plan, queue_depth)
        self._last_plan = time.time()

    def render(self) -> bytes:
        """Everything as text (version 0.0.4 of the format). Looks at the store: call it in a thread."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    @functools.cached_property
    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        # Never the library's own registry, which belongs to whoever embeds us.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client asks a collector for."""
        yield from self._of_now()
        yield from self._of_builds()
        yield from self._of_the_watch()
        yield from self._of_collections()

    def _of_now(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        info = Gauge("preheat_info", "Always 1; the version is a label.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        targets = Gauge("preheat_targets", "Targets by verdict.", labels=["verdict"])
        for verdict, count in self.tallies.targets.items():
            targets.add_metric([verdict], count)
        yield targets
        trouble = Gauge(
            "preheat_trouble", "1 while a trouble of this kind goes on.", labels=["kind"]
        )
        now = {one.kind for one in self.troubles}
        for kind in troubles.KINDS:
            trouble.add_metric([kind], kind in now)
        yield trouble
        yield Gauge("preheat_queue_depth", "Builds that wait.", self.tallies.queue_depth)
        yield Gauge("preheat_paused", "1 while no builds are begun.", self.paused())
        yield Gauge("preheat_builds_running", "Builds that run.", self.tallies.running)
        yield Gauge(
            "preheat_last_plan_timestamp_seconds", "When the last plan was made.", self._last_plan
        )
        size = self._store.look()
        yield Gauge("preheat_store_objects", "Objects in the store.", size.objects)
        yield Gauge("preheat_store_bytes", "Bytes of the objects in the store.", size.bytes)

    def _of_builds(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import HistogramMetricFamily

        builds = Counter("preheat_builds", "Builds by how they ended.", labels=["result", "reason"])
        for labels, count in dict(self.tallies.builds).items():
            builds.add_metric(labels, count)
        yield builds
        yield _histogram("preheat_build_seconds", "Build processes.", self.tallies.build_seconds)
        yield _histogram("preheat_proof_seconds", "Proof processes.", self.tallies.proof_seconds)
        fresh = HistogramMetricFamily(
            "preheat_edit_to_fresh_seconds",
            "From the first hint of an edit until the package is published.",
            labels=["result"],
        )
        for result, histogram in self.tallies.edit_to_fresh.items():
            fresh.add_metric([result], histogram.cumulative(), histogram.sum)
        yield fresh
        lost = Counter("preheat_invalidations", "Targets that lost FRESH.", labels=["reason"])
        for reason, count in dict(self.tallies.invalidations).items():
            lost.add_metric([reason], count)
        yield lost
        yield Counter(
            "preheat_hook_failures",
            "Commands after a build that failed.",
            self.tallies.hook_failures,
        )

    def _of_the_watch(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter

        yield Counter("preheat_watch_events", "Touched paths heard of.", self.watch_events())
        yield Counter(
            "preheat_watch_overflows", "Times the kernel dropped events.", self.tallies.overflows
        )
        yield _histogram(
            "preheat_rescan_seconds",
            "Looking at everything and making a plan.",
            self.tallies.rescan_seconds,
        )

    def _of_collections(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        done = self.collection
        deleted = Counter(
            "preheat_store_evictions",
            "Packages, and objects that none names, that were collected.",
            labels=["reason"],
        )
        for reason, count in dict(done.deletions).items():
            deleted.add_metric([reason], count)
        yield deleted
        yield Counter("preheat_store_freed_bytes", "Bytes that collections freed.", done.bytes)
        yield Gauge(
            "preheat_store_leases", "Packages that processes had loaded, last time.", done.leases
        )
        yield Gauge(
            "preheat_last_collection_seconds", "How long the last collection took.", done.seconds
        )
        yield Gauge(
            "preheat_last_collection_timestamp_seconds", "When the last collection ended.", done.at
        )


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(
        name, text, buckets=histogram.cumulative(), sum_value=histogram.sum
    )
