"""Build, prove, load and call every case of ``capture``, and write what became of each.

``python tests/conformance/capture_table.py docs/lean.md [--only NAME ...] [--jobs 2] [--caches DIR]
[--keep DIR]`` runs each case as the daemon and a worker would: build, proof, publication, and a load in
a process that has not imported the compiler. Without a file the table goes to standard output. With
``--only`` a name may be a prefix. Needs ``transformers`` and ``timm`` for the cases m* and t*; takes
minutes. Exits with 1 when a package that was used answered differently from eager.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.capture import Result, all_cases, run_cases, totals

if TYPE_CHECKING:
    from collections.abc import Sequence

INTRODUCTION = """\
# Which programs can be kept warm

{count} programs, each built, proven, published, and loaded and called in a fresh process.
{where}
Written by `make table-lean` (`python tests/conformance/capture_table.py docs/lean.md`); the programs
are in `tests/conformance/capture`.

`form` is what the worker loaded, with what stood in the way of the lean form, or why there is no
package. `compiled` counts frames that the worker had to compile. `compiler modules` counts modules of
`torch._dynamo`, `torch._inductor`, sympy and triton that loading and calling added to those that the
program itself had imported.
"""

MOST_CHARACTERS = 300
HEADER = ("case", "built (s)", "form", "compiled", "compiler modules", "result")


def table(results: Sequence[Result]) -> str:
    """The page of documentation."""
    lines = [
        INTRODUCTION.format(count=len(results), where=where()),
        "| result | programs |",
        "|---|---|",
        *(f"| {word} | {count} |" for word, count in totals(results).items()),
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'---|' * len(HEADER)}",
        *(f"| {' | '.join(cells(result))} |" for result in results),
    ]
    return "\n".join(lines) + "\n"


def where() -> str:
    """On what all this was found, as a sentence."""
    from importlib.metadata import version

    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"torch {version('torch')}, Python {platform.python_version()}, {platform.machine()} with "
        f"{os.cpu_count()} processors, {today}."
    )


def cells(result: Result) -> tuple[str, ...]:
    """One row."""
    reason = cell(result.reason)
    loaded = bool(result.form) and result.word != "refused"
    without = f": {cell('; '.join(result.without))}" if result.without else ""
    return (
        result.case.name,
        f"{result.build_seconds:.1f}",
        f"{result.form}{without}" if loaded else f"refused: {reason}",
        str(result.frames_compiled) if loaded else "",
        str(len(result.added)) if loaded else "",
        f"{result.word}: {reason}" if loaded and reason else result.word,
    )


def cell(text: str) -> str:
    """A reason as one line that fits into a table."""
    without_places = re.sub(r"\S*/site-packages/", "", text)
    return " ".join(without_places.replace("|", "\\|").split())[:MOST_CHARACTERS]


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--caches", type=Path)
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    cases = [
        case for case in all_cases() if not chosen.only or case.name.startswith(tuple(chosen.only))
    ]
    began = time.monotonic()

    def heard(result: Result) -> None:
        seconds = time.monotonic() - began
        sys.stderr.write(f"{seconds:6.1f} s  {' | '.join(cells(result))}\n")

    results = run_cases(
        cases, jobs=chosen.jobs, caches=chosen.caches, heard=heard, keep=chosen.keep
    )
    text = table(results)
    if chosen.file is None:
        sys.stdout.write(text)
    else:
        chosen.file.write_text(text)
    sys.stderr.write(f"{totals(results)}\n")
    sys.exit(any(result.word == "WRONG" for result in results))


if __name__ == "__main__":
    main()
