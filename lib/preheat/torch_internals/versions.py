"""The torch releases whose private API this package knows."""

from __future__ import annotations

import functools
import re

from preheat.errors import UnsupportedVersionError

FIRST = (2, 11)
LAST = (2, 14)


def parse(version: str) -> tuple[int, int]:
    """Major and minor number of a torch version such as ``2.13.0+cpu``.

    Raises ``UnsupportedVersionError`` for text that is no version.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise UnsupportedVersionError(f"torch reports the version {version!r}.")
    return int(match[1]), int(match[2])


@functools.cache
def torch_version() -> tuple[int, int]:
    """The imported torch's version, checked.

    Raises ``UnsupportedVersionError`` outside of 2.11 to 2.14.
    """
    import torch

    version = parse(torch.__version__)
    if not FIRST <= version <= LAST:
        raise UnsupportedVersionError(f"torch {torch.__version__} is not supported.")
    return version
