"""What ``preheat doctor`` says about keys, and what builds learn of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from preheatd.config import Target
from preheatd.findings import keys
from preheatd.surroundings import target_environment

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


def test_builds_are_not_told_where_the_private_key_is() -> None:
    environ = {
        "PREHEAT_SIGNING_KEY": "/key",
        "CREDENTIALS_DIRECTORY": "/run/credentials/preheatd",
        "PREHEAT_TRUSTED_KEYS": "/keys",
    }
    target = Target(name="t", factory="a:f", python="python", cwd=Path("/"))
    found = target_environment(environ, target, Path("/project"))
    assert set(found) == {"PREHEAT_TRUSTED_KEYS", "PYTHONPATH"}
