"""The table of docs/reliability.md is what a results file says, and says which figures must be 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fault_table import BAD, BEGIN, END, table, written

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_a_row_tells_what_was_done_from_what_must_not_happen() -> None:
    made = table({"load": {"kills": 1200, "lost": 0, "torn": 2, "full": True}, "b": {"files": 6}})
    assert made.splitlines()[2:] == [
        "| b (short version) | files: 6 | 0 |",
        "| load | kills: 1,200 | torn: 2, lost: 0 |",
    ]


def test_the_table_replaces_the_one_before_it() -> None:
    page = f"# Title\n{BEGIN}\nold\n{END}\nrest\n"
    assert written(written(page, "new"), "newer") == f"# Title\n{BEGIN}\nnewer\n{END}\nrest\n"
    with pytest.raises(ValueError, match="the page has no"):
        written("# Title\n", "new")


def test_what_the_page_shows_is_nothing_lost_or_wrong() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    rows = [line.split("|") for line in rest.partition(END)[0].splitlines() if "|" in line][2:]
    assert rows
    for row in rows:
        found = [word.partition(":") for word in row[3].split(",")]
        for name, colon, number in found:
            assert number.strip() == "0" if colon else name.strip() == "0", row
            assert not colon or name.strip().replace(" ", "_") in BAD
