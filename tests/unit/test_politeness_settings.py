"""[politeness]: what is read, how bad input is explained, amounts of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.errors import ConfigurationError
from preheatd.config import Config, load_config
from preheatd.fingerprint import Fingerprint, sources_state
from preheatd.politeness.settings import Politeness, bytes_text, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3


def load(path: Path, text: str) -> Config:
    file = path / "preheat.toml"
    file.write_text(f'targets = ["a:b"]\n{text}')
    return load_config(file, environ={})


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config.politeness == Politeness()
    assert config.targets[0].memory_limit is None
    assert config.politeness.minds_gpus
    assert not config.politeness.minds_machine


def test_every_key(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [politeness]
        nice = 19
        idle_io = false
        compile_threads = 3
        memory_limit = "8GiB"
        gpu_memory_below = 0.25
        gpu_utilisation_below = 1
        pause_on_battery = true
        pause_above_load = 2
        """,
    )
    assert config.politeness == Politeness(
        nice=19,
        idle_io=False,
        compile_threads=3,
        memory_limit=8 * GIB,
        gpu_memory_below=0.25,
        gpu_utilisation_below=1,
        pause_on_battery=True,
        pause_above_load=2,
    )
    assert config.targets[0].memory_limit == 8 * GIB


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nice = 20", ["`politeness.nice`", "0 to 19", "not 20"]),
        ("nice = -1", ["`politeness.nice`", "not -1"]),
        ("nice = 1.5", ["`politeness.nice`", "expected `int`"]),
        ("nicce = 1", ["unknown key `nicce`", "in politeness", "`nice`"]),
        ('idle_io = "yes"', ["`politeness.idle_io`", "expected `bool`"]),
        ("compile_threads = 0", ["`politeness.compile_threads`", "1 or more"]),
        ("memory_limit = 8", ["`politeness.memory_limit`", "expected `str | null`"]),
        ('memory_limit = "8"', ["`politeness.memory_limit`", '"8GiB"', "'8'"]),
        ('memory_limit = "0MiB"', ["`politeness.memory_limit`", "above 0"]),
        ('memory_limit = "-1GiB"', ["`politeness.memory_limit`"]),
        ("gpu_memory_below = 0", ["`politeness.gpu_memory_below`", "above 0, at most 1"]),
        ("gpu_memory_below = nan", ["`politeness.gpu_memory_below`"]),
        ("gpu_utilisation_below = 40", ["`politeness.gpu_utilisation_below`", "not 40"]),
        ("pause_above_load = 0", ["`politeness.pause_above_load`", "above 0"]),
        ("pause_above_load = inf", ["`politeness.pause_above_load`", "not inf"]),
        ("pause_on_battery = 1", ["`politeness.pause_on_battery`"]),
    ],
)
def test_bad_input_names_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, f"[politeness]\n{text}")
    message = str(caught.value)
    assert all(word in message for word in [str(tmp_path / "preheat.toml"), *words]), message


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("8GiB", 8 * GIB),
        (" 1.5 GiB ", 3 * GIB // 2),
        ("200 MB", 200_000_000),
        ("1KB", 1000),
        ("12B", 12),
        ("2TiB", 2048 * GIB),
        ("8", None),
        ("8 gib", None),
        ("GiB", None),
        ("1e3KB", None),
        ("8GiB8", None),
        ("", None),
    ],
)
def test_amounts(written: str, amount: int | None) -> None:
    assert parse_bytes(written) == amount


@given(st.integers(1, 2**50))
def test_an_amount_for_a_person_is_the_amount_to_three_digits(amount: int) -> None:
    read = parse_bytes(bytes_text(amount))
    assert read is not None
    assert abs(read - amount) <= amount / 20


def test_a_build_that_is_asked_for_does_not_pause() -> None:
    asked = Politeness(pause_on_battery=True, pause_above_load=1.0, nice=5).when_asked()
    assert not asked.minds_machine
    assert asked == Politeness(nice=5)


def test_another_limit_is_another_chance(tmp_path: Path) -> None:
    """A target that failed is tried at once when its limit of memory was changed, and only then."""
    states = [
        sources_state(
            load(tmp_path, f"[politeness]\n{text}").targets[0], Fingerprint({"a.py": "1"}, "1")
        )
        for text in ('memory_limit = "1GiB"', 'memory_limit = "2GiB"', 'memory_limit = "1024MiB"')
    ]
    assert states[0] == states[2] != states[1]
