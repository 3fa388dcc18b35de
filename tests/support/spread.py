"""How a run is spread over processes (``pytest -n 2``): whole files, the long ones first.

Tests of a file stay together, in order, because they share what the file has made. So do the files that
share what costs a minute to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xdist.scheduler import LoadFileScheduling

# These load from the projects `zoo` and `lean_project`, and some count what others are loading.
TOGETHER = frozenset(
    f"tests/integration/test_{name}.py"
    for name in ("collection", "layers", "lean", "lean_damage", "lean_misses", "zoo")
)
_THEIR_UNIT = "tests/integration/test_zoo.py"
# These take a minute or several, and are begun first, so that none is left to one process in the end while
# the others have nothing to do. Nothing depends on this but the duration.
_LONG_FILES = (
    "tests/integration/test_source_edits.py",
    "tests/integration/test_bench_edit.py",
    _THEIR_UNIT,
    "tests/integration/test_kinds.py",
    "tests/integration/test_capture_cases.py",
    "tests/integration/test_zygote.py",
    "tests/fault/test_kill.py",
    "tests/fault/test_damage_in_use.py",
    "tests/fault/test_daemon_chaos.py",
    "tests/integration/test_edits.py",
    "tests/integration/test_bad_input.py",
    "tests/acceptance/test_real_models.py",
    "tests/integration/test_trained.py",
    "tests/integration/test_bench.py",
)
LONG: Mapping[str, int] = {name: number for number, name in enumerate(_LONG_FILES)}


def unit_of(nodeid: str) -> str:
    """The piece of a run that this test belongs to; one process takes all of it. Pure."""
    file = nodeid.split("::", 1)[0]
    return _THEIR_UNIT if file in TOGETHER else file


def turn_of(nodeid: str) -> tuple[int, bool]:
    """What to sort tests by. Unit tests, many short files, come last and even out the end. Pure."""
    unit = unit_of(nodeid)
    return LONG.get(unit, len(LONG)), "/unit/" in unit


def check_names(nodeids: Iterable[str]) -> None:
    """Raises ``pytest.UsageError`` for a name that is another one in each process."""
    for nodeid in nodeids:
        if " at 0x" in nodeid:
            raise pytest.UsageError(f"{nodeid}: an address has no place in the name of a test.")


def make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """A scheduler of pytest-xdist."""
    from xdist.scheduler import LoadFileScheduling  # here: a machine with a GPU may have no xdist

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)  # type: ignore[arg-type]
