"""Short differences between the old and the new text of one piece, for people."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Span = tuple[int, int]
LINES = 40
LETTERS = 200
# The comparison takes time that grows with the square of the lines; a piece that long is data.
_MOST_LINES = 4000


@dataclass(frozen=True, slots=True)
class TwoTexts:
    """The lines of a file as it was built and as it is now; ``old`` None: the text was not kept."""

    old: Sequence[str] | None
    new: Sequence[str]

    @classmethod
    def of(cls, old: bytes | None, new: bytes | None) -> TwoTexts:
        """Of bytes; a file that cannot be read has no lines."""
        return cls(None if old is None else _lines(old), _lines(new or b""))

    def differ(self, before: Span | None, now: Span | None) -> tuple[str, ...]:
        """A unified diff of two pieces by their first and last lines, without file names.

        Both are moved to the left margin first, so that a method that moved into another block shows
        no difference. At most ``LINES`` lines of ``LETTERS`` letters. Empty: equal, or nothing known.
        """
        if self.old is None:
            return ()
        old, new = _cut(self.old, before), _cut(self.new, now)
        if max(len(old), len(new)) > _MOST_LINES:
            return () if old == new else (f"... {len(old)} lines before, {len(new)} now",)
        lines = list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
        if len(lines) > LINES:
            lines = [*lines[: LINES - 1], f"... {len(lines) - LINES + 1} lines more"]
        return tuple(line if len(line) <= LETTERS else f"{line[:LETTERS]}..." for line in lines)

    def differ_whole(self) -> tuple[str, ...]:
        """The same for the whole files."""
        return self.differ((1, len(self.old or ())), (1, len(self.new)))


def _cut(lines: Sequence[str], span: Span | None) -> list[str]:
    if span is None:
        return []
    return textwrap.dedent("\n".join(lines[span[0] - 1 : span[1]])).splitlines()


def _lines(text: bytes) -> list[str]:
    # As the parser counts them: other separators that splitlines() knows may stand in strings.
    plain = text.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return plain.removesuffix("\n").split("\n") if plain else []
