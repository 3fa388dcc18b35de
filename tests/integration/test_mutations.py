"""Programs changed at random: what the rule takes for unchanged computes the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# All mutants of all programs take minutes: those are run by hand.
PROGRAMS = ("star", "registry", "setattr", "lazy", "classes", "order", "exec", "closures")
MUTANTS_PER_FILE = 6


def test_no_mutant_is_a_wrong_hit() -> None:
    # In a process of its own: it forks, which a process that has computed something must not.
    done = subprocess.run(
        [sys.executable, "-m", "conformance.mutations", str(MUTANTS_PER_FILE), *PROGRAMS],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"0 wrong hits in {len(PROGRAMS)} programs\n")
