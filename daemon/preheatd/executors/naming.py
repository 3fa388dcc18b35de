"""How a target is called that is built for another environment: ``ranker@h200``. Pure.

In the store there is one target, ``ranker``, with a package for each environment. What is planned, built and
shown for the environment of an executor is a line of its own, under a name that no target of a file can have.
"""

from __future__ import annotations

SEPARATOR = "@"


def line_name(target: str, executor: str) -> str:
    """The name of a target's line for the environment of an executor."""
    return f"{target}{SEPARATOR}{executor}"


def stored_name(line: str) -> str:
    """What the store calls the target of a line; of a target that is built here, its own name."""
    return line.partition(SEPARATOR)[0]


def is_elsewhere(line: str) -> bool:
    """Whether a line's packages are built by an executor."""
    return SEPARATOR in line
