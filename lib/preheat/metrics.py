"""This process's loads as metrics of Prometheus; needs the library prometheus-client, when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.loaded import statistics

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Loads:
    def describe(self) -> Iterator[Any]:
        return self.collect()  # lets the registry see that it has them already

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

        now = statistics()
        loads = CounterMetricFamily(
            "preheat_worker_loads", "Loads of packages.", labels=["form", "verdict"]
        )
        counts: dict[str, int] = {}
        for (form, verdict), count in now.loads.items():
            loads.add_metric([form, verdict], count)
            counts[form] = counts.get(form, 0) + count
        yield loads
        seconds = SummaryMetricFamily(
            "preheat_worker_load_seconds", "Seconds inside of preheat.load.", labels=["form"]
        )
        for form, total in now.load_seconds.items():
            seconds.add_metric([form], count_value=counts[form], sum_value=total)
        yield seconds
        for name, text, value in (
            ("frames_compiled", "Frames compiled after loading.", now.frames_compiled),
            ("misses", "Frames that no package covered.", now.misses),
            ("first_call_failures", "Packages taken away at first call.", now.first_calls_failed),
        ):
            yield CounterMetricFamily(f"preheat_worker_{name}", text, value)


def register(registry: Any = None) -> None:
    """Add this process's metrics to a ``CollectorRegistry``; without one, to the library's own.

    They are read when the registry is. Raises ``ImportError`` without prometheus-client, and
    ``ValueError`` from it when they are registered there already. Not promised: anything about its
    multiprocess mode, which asks no collectors.
    """
    from prometheus_client import REGISTRY

    (REGISTRY if registry is None else registry).register(_Loads())
