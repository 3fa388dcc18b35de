"""What fault tests did, as figures: printed at the end of a run, and kept for docs/reliability.md.

``PREHEAT_FAULT=full`` asks for the long versions. ``PREHEAT_FAULT_RESULTS`` names a JSON file that gets
the figures of a run beside those of other tests in it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FULL = os.environ.get("PREHEAT_FAULT", "") == "full"
_RESULTS = "PREHEAT_FAULT_RESULTS"

_of_this_run: dict[str, dict[str, Any]] = {}


def note(name: str, **figures: Any) -> None:
    """Figures of one test; the same name again adds to numbers and replaces everything else."""
    known = _of_this_run.setdefault(name, {})
    for key, value in figures.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        known[key] = known.get(key, 0) + value if is_number else value
    if path := os.environ.get(_RESULTS):
        _keep(Path(path), name, known)


def _keep(path: Path, name: str, figures: dict[str, Any]) -> None:
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = {**figures, "full": FULL}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")  # whoever looks meanwhile sees all of it
    temporary.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    temporary.replace(path)


def of_this_run() -> dict[str, dict[str, Any]]:
    """What this process has noted, by test."""
    return _of_this_run


def lines() -> list[str]:
    """One line for each name."""
    return [
        f"fault figures: {name}: " + ", ".join(f"{key} {value}" for key, value in figures.items())
        for name, figures in sorted(_of_this_run.items())
    ]
