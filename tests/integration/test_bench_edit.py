"""``preheat bench edit``: real daemons, real builds. Nothing about time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_SECONDS = 1700


def test_edits_are_measured_with_a_zygote_and_without(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    words = ("--program", "mlp", "--rounds", "1", "--threads", "1", "--markdown", str(page))
    done = subprocess.run(
        [sys.executable, "-m", "preheatd", "bench", "edit", *words, "--json"],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["problems"] == []
    (program,) = answer["programs"]
    rows = {(row["edit"], row["way"]): row for row in program["edits"]}
    assert len(rows) == 4
    for (_, way), row in rows.items():
        median = row["median"]
        assert median["forked"] == (way == "forked")
        # The daemon's own part is what is left; its processes are inside of the time that was measured.
        assert 0 < row["own_seconds"] < median["seconds"]
        assert median["build_seconds"] > 0
        assert median["proof_seconds"] > 0
        assert {"start", "trace", "package"} <= median["phases"].keys()
        assert row["of_fresh"] > 0
    assert program["lean_proof_seconds"] > 0
    assert program["dynamo_proof_seconds"] > 0
    # A zygote holds torch, and no test machine has a terabyte.
    assert 50e6 < program["zygote_bytes"] < 1e12
    assert {aim["name"].partition(":")[0] for aim in answer["aims"]} == {
        "mlp, constant",
        "mlp, code",
        "mlp",
        "zygote",
    }
    assert "## Edit to fresh: mlp" in page.read_text()
