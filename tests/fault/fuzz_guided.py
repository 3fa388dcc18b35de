"""Fuzzing that is guided by coverage, with atheris (not among the test requirements; by hand)::

    pip install atheris
    cd tests && python -m fault.fuzz_guided NAME [-max_total_time=600] [CORPUS ...]

The parser of JSON is C code, so this pays for ``configuration``, ``keys``, ``control`` and ``image`` most.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tomllib", "preheat", "preheatd"]):
    from fault.fuzz import TARGETS


def main() -> None:
    """Hand one target to atheris, which does not return."""
    look, good = TARGETS[sys.argv.pop(1)]
    look(good)
    with tempfile.TemporaryDirectory() as corpus:
        Path(corpus, "good").write_bytes(good)
        atheris.Setup([*sys.argv, corpus], look)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
