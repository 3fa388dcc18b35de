"""Writes what fault tests did into a page: ``python -m support.fault_table RESULTS.json PAGE.md``.

``RESULTS.json`` is what tests wrote under PREHEAT_FAULT_RESULTS. The table replaces what is between the
page's two marks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
# What must be 0, whatever was done.
BAD = (
    "torn",
    "lost",
    "wrong",
    "missed",
    "orphans",
    "files_left",
    "reader_crashes",
    "poisoned",
    "failed",
)


def table(results: dict[str, dict[str, Any]]) -> str:
    """One row a test: what was done, and what came of it."""
    rows = ["| test | what was done | lost, wrong or left |", "|---|---|---|"]
    for name, figures in sorted(results.items()):
        done = [_words(key, value) for key, value in figures.items() if key not in (*BAD, "full")]
        bad = [_words(key, figures[key]) for key in BAD if key in figures]
        long = "" if figures.get("full") else " (short version)"
        rows.append(f"| {name}{long} | {', '.join(done)} | {', '.join(bad) or '0'} |")
    return "\n".join(rows)


def _words(key: str, value: Any) -> str:
    return (
        f"{key.replace('_', ' ')}: {value:,}"
        if isinstance(value, (int, float))
        else f"{key}: {value}"
    )


def written(page: str, made: str) -> str:
    """The page with this table in the place of the one that it had. Raises ``ValueError`` without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main(results: str, page: str) -> None:
    path = Path(page)
    path.write_text(written(path.read_text(), table(json.loads(Path(results).read_text()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
