"""What ``preheat doctor`` says about keys."""

from __future__ import annotations

import pytest

from preheatd.findings import keys

OWN, OTHER = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("trusted", "own", "inside", "level", "words"),
    [
        ([OWN], OWN, False, "ok", f"signs with {OWN}"),
        ([OTHER], None, True, "ok", "signs nothing"),
        ([], None, False, "problem", "0 trusted keys"),
        ([OTHER], OWN, False, "problem", "do not trust"),
        ([OWN], OWN, True, "problem", "state"),
    ],
)
def test_keys(trusted: list[str], own: str | None, inside: bool, level: str, words: str) -> None:
    found = keys("require", "/etc/preheat/trusted_keys", trusted, own, state_inside=inside)
    assert found.level == level
    assert words in found.detail
    assert bool(found.fix) == (level == "problem")
