"""``preheat bench load``: what was measured is what was asked for. Nothing about time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_SECONDS = 1500


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preheatd", "bench", "load", *words],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PREHEAT_ON_MISS": "compile"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_the_lean_form_is_measured_beside_eager(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    done = bench(
        *("--program", "mlp", "--rounds", "1", "--ways", "lean,eager", "--threads", "1"),
        *("--markdown", str(page), "--json"),
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["machine"]["threads"] == 1
    (case,) = answer["cases"]
    assert (case["program"], case["device"], case["problems"]) == ("mlp", "cpu", [])
    ways = {one["way"]: one for one in case["ways"]}
    assert list(ways) == ["eager", "lean"]
    eager, lean = ways["eager"]["median"], ways["lean"]["median"]
    assert (eager["form"], eager["modules"], eager["max_error"]) == ("eager", 0, 0.0)
    assert (lean["form"], lean["compiled"], lean["misses"]) == ("lean", 0, 0)
    assert (
        0 < lean["modules_load"] <= lean["modules"] < 200
    )  # the compiler has more than a thousand
    assert lean["max_error"] < 1e-5
    assert lean["image"]["graphs"] == 1
    assert lean["image"]["kernels"] > 0
    assert case["ratios"]["steady_over_eager"] > 0
    assert case["ratios"]["package_over_lean"] is None
    text = page.read_text()
    assert "--ways eager,lean" in text
    assert "### mlp, cpu" in text


def test_an_unknown_way_is_an_error_of_usage() -> None:
    done = bench("--ways", "fast", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "usage"
