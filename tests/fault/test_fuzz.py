"""Any bytes at all, and good ones with a few changed: only documented errors come out of reading them.

A short run here; ``make fuzz`` takes PREHEAT_FUZZ_EXAMPLES for each.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fault.fuzz import TARGETS

EXAMPLES = int(os.environ.get("PREHEAT_FUZZ_EXAMPLES", "60"))
# Pieces that parsers trip over.
TOKENS = [
    b"[" * 3000,
    b'{"a":' * 3000,
    b"{a=" * 3000,
    b"a." * 3000,
    b"9" * 5000,
    b"-0",
    b"1e999",
    b"nan",
    b"inf",
    b"null",
    b"\x00",
    b"\xff",
    b"\\u0000",
    b"\\ud800",
    b"../" * 100,
    b"~nobody/",
    b'"""',
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 3000,
    b"x" * 5000,
]


def changed(good: bytes) -> st.SearchStrategy[bytes]:
    """``good`` with stretches of it replaced."""
    places = st.integers(0, len(good))
    pieces = st.sampled_from(TOKENS) | st.binary(max_size=8) | places.map(lambda n: good[n:])
    change = st.tuples(places, st.integers(0, 12), pieces)

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = good
        for place, length, piece in changes:
            data = data[:place] + piece + data[place + length :]
        return data

    return st.lists(change, min_size=1, max_size=3).map(apply)


@pytest.mark.parametrize("name", TARGETS)
def test_only_documented_errors_come_out(name: str) -> None:
    look, good = TARGETS[name]
    look(good)

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(changed(good) | st.binary(max_size=200))
    def every(data: bytes) -> None:
        look(data)

    every()
