"""How a run is spread over processes (``pytest -n 2``): whole files, the long ones first.

Tests of a file stay together, in order, because they share what the file has made. So do the files that
share what costs a minute to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest
    from xdist.scheduler import LoadFileScheduling

# These load from the projects `zoo` and `lean_project`, and some count what others are loading.
TOGETHER = frozenset(
    f"tests/integration/test_{name}.py"
    for name in ("collection", "layers", "lean", "lean_damage", "lean_misses", "zoo")
)
_THEIR_UNIT = "tests/integration/test_zoo.py"
# Begun in this order, so that no long one is left to one process in the end while the others idle. A file
# that is not here comes after them; nothing depends on it but the duration.
LONG: Mapping[str, int] = {name: number for number, name in enumerate((_THEIR_UNIT,))}


def unit_of(nodeid: str) -> str:
    """The piece of a run that this test belongs to; one process takes all of it. Pure."""
    file = nodeid.split("::", 1)[0]
    return _THEIR_UNIT if file in TOGETHER else file


def turn_of(nodeid: str) -> tuple[int, bool]:
    """What to sort tests by. Unit tests, many short files, come last and even out the end. Pure."""
    unit = unit_of(nodeid)
    return LONG.get(unit, len(LONG)), "/unit/" in unit


def make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """A scheduler of pytest-xdist."""
    from xdist.scheduler import LoadFileScheduling  # here: a machine with a GPU may have no xdist

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)  # type: ignore[arg-type]
