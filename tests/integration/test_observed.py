"""A daemon's metrics after real edits and real (doubled) builds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_daemon_double import make_project, write_double
from test_daemon_service import LIMIT_SECONDS, Listener, edit

from preheatd import events
from preheatd.config import load_config
from preheatd.project import open_project
from preheatd.service import Service

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


async def values_of(service: Service) -> dict[str, float]:
    text = await asyncio.to_thread(service.observed.metrics.render)
    return {
        " ".join(
            (sample.name, *(value for _, value in sorted(sample.labels.items()) if value))
        ): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def values_with(service: Service, **wanted: float) -> dict[str, float]:
    """The values once these are among them; two underscores stand for a space. Plans may still be made."""
    names = {f"preheat_{name.replace('__', ' ')}": value for name, value in wanted.items()}
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            values = await values_of(service)
            if names.items() <= values.items():
                return values
            await asyncio.sleep(0.05)


async def test_a_daemon_counts_what_it_does(tmp_path: Path) -> None:
    file = make_project(tmp_path / "project", ("encoder", "decoder"))
    heard = Listener()
    service = Service(open_project(load_config(file), create=True), heard)
    task = asyncio.create_task(service.run())
    for target in ("encoder", "decoder"):
        await heard.next(events.BUILD_PUBLISHED, target)
    values = await values_with(service, targets__FRESH=2)
    assert values["preheat_edit_to_fresh_seconds_count published"] == 0

    # A plan that is made anyhow may see an edit before its hint, and is done with it at once: not counted.
    edits = 0
    while edits < 10 and not values["preheat_edit_to_fresh_seconds_count published"]:
        edits += 1
        edit(file, "encoder", 10 + edits)
        await heard.next(events.BUILD_PUBLISHED)
        values = await values_with(service, targets__FRESH=2, builds_total__published=2 + edits)
    assert values["preheat_edit_to_fresh_seconds_count published"] == 1
    assert values["preheat_edit_to_fresh_seconds_sum published"] > 0.05  # the settle time
    edit(file, "encoder", 1)
    await values_with(service, targets__FRESH=2, builds_total__returned=1)
    write_double(file.parent, build="fail")
    edit(file, "encoder", 3)
    values = await values_with(service, targets__FAILED=1, builds_total__target__failed=1)
    published = 2 + edits
    assert values["preheat_builds_total published"] == published
    assert values["preheat_build_seconds_count"] == published
    assert values["preheat_proof_seconds_count"] == published
    assert values["preheat_invalidations_total module_edited"] >= 1
    assert values["preheat_watch_events_total"] >= 3
    assert values["preheat_rescan_seconds_count"] >= 3
    assert values["preheat_queue_depth"] == values["preheat_builds_running"] == 0
    objects = [path for path in (tmp_path / "store/v1/objects").rglob("*") if path.is_file()]
    assert values["preheat_store_objects"] == len(objects)
    assert values["preheat_store_bytes"] == sum(path.stat().st_size for path in objects)
    service.stop()
    async with asyncio.timeout(LIMIT_SECONDS):
        await task
