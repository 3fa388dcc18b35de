"""What becomes of every probing edit: the decision from its text, and what a worker really did.

``python -m conformance.freshness_table ../docs/freshness_table.md``, run in ``tests``, writes the
table. It builds every base and loads its package once an edit; takes two to three minutes.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.loaded_edits import Based, load_all
from conformance.more_edits import more
from conformance.source_edits import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.edited_worker import Loaded
    from preheat.verdict import Reason

CONTROL = "noop"
UNEDITED = "(unedited)"
# The same file, asked to be compiled in another way: another package is wanted, whatever the output.
OTHER_OPTIONS = "torch.compile "
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one edit. ``loaded`` is None where the base was not built: ``not_built`` says why.

    ``changes``: whether eager's output differs from the unedited program's, as the data say; measured
    where they do not.
    """

    base: str
    name: str
    changes: bool | None
    decided: tuple[Reason, ...]
    loaded: Loaded | None
    not_built: str = ""
    prelude: bool = False
    extra: bool = False

    @property
    def control(self) -> bool:
        """Whether nothing was edited at all."""
        return self.name in (CONTROL, UNEDITED)

    @property
    def word(self) -> str:
        """What it comes to."""
        if self.loaded is None:
            return "not built"
        if self.loaded.crash:
            return "CRASH"
        if self.loaded.hit and self.loaded.wrong:
            return "WRONG HIT"
        if self.loaded.hit:
            # The daemon knows less of where a worker's imports lead, and builds once more.
            return "right hit, rebuilt" if self.decided else "right hit"
        return "REFUSED CONTROL" if self.control else self._refusal(self.loaded)

    def _refusal(self, loaded: Loaded) -> str:
        if loaded.wrong:
            return "WRONG FALLBACK"
        if self.changes:
            return "right refusal"
        if loaded.eager_fails:
            return "refusal, the program fails"
        if self.prelude:
            return "refusal, other settings"
        return "refusal, other options" if self.name.startswith(OTHER_OPTIONS) else "over-eager"

    @property
    def did(self) -> str:
        """What the worker did, in words."""
        loaded = self.loaded
        if loaded is None:
            return ""
        if loaded.crash or loaded.eager_fails:
            return loaded.crash or f"the edited program fails: {loaded.eager_fails}"
        if loaded.hit:
            return f"loaded, WRONG: {loaded.wrong}" if loaded.wrong else "loaded, as eager"
        kinds = dict.fromkeys(reason.kind for reason in loaded.reasons)
        return f"refused: {', '.join(kinds) or 'a guard of the call'}"


def outcomes(directory: Path, caches: Path | None = None) -> list[Outcome]:
    """Every edit of every base. ``caches``: the compiler's, to be shared."""
    bases = load()
    further = more()
    found = []
    answers = load_all([*bases, *further], directory, caches)
    for base, answer in zip([*bases, *further], answers, strict=True):
        for outcome in _of_base(base, answer):
            found.append(dataclasses.replace(outcome, extra=base in further))
    return found


def _of_base(base: dict[str, Any], answer: Based) -> list[Outcome]:
    name = base["base"]
    if answer.unedited is None:
        return [
            Outcome(name, edit["name"], edit["output_changes"], (), None, answer.refused)
            for edit in base["edits"]
        ]
    unedited = answer.unedited
    found = [Outcome(name, UNEDITED, False, unedited.decided, unedited.loaded)]
    for edit, edited in zip(base["edits"], answer.edits, strict=True):
        known = edit["output_changes"]
        changes = edited.loaded.changed if known is None else known
        found.append(
            Outcome(
                name,
                edit["name"],
                changes,
                edited.decided,
                edited.loaded,
                prelude=bool(edit.get("prelude")),
            )
        )
    return found


def summary(found: Iterable[Outcome]) -> dict[str, int]:
    """How many of each."""
    counts = collections.Counter(
        f"control, {one.word}" if one.control else one.word for one in found
    )
    return dict(sorted(counts.items()))


def table(found: list[Outcome]) -> str:
    """The outcomes as a page of documentation."""
    asked = [one for one in found if one.name != UNEDITED]
    given = [one for one in asked if not one.extra]
    words, more_words = summary(given), summary(one for one in asked if one.extra)
    lines = [
        "# Which edits make a package stale",
        "",
        f"{len(given)} probing edits of {len({one.base for one in given})} programs, and "
        f"{len(asked) - len(given)} further ones. Each program was built and",
        "proved once as the daemon does it. Each edit was decided from the text of the files alone, then",
        "made, and the package was loaded by a worker that sees the edited files: there the loaded program",
        "was called and compared with eager in the same process. The rule: see [freshness](freshness.md).",
        "Written by `python -m conformance.freshness_table ../docs/freshness_table.md`, run in `tests` "
        f"(Python {sys.version_info[0]}.{sys.version_info[1]}).",
        "",
        "| outcome | edits | further edits |",
        "|---|---|---|",
        *(
            f"| {word} | {words.get(word, 0)} | {more_words.get(word, 0)} |"
            for word in sorted({*words, *more_words})
        ),
        "",
        *_LEGEND,
        "",
        _strictly(given),
        *_unbuilt(asked),
        "",
        "| base | edit | output changes | outcome | what the worker did | decided from the text |",
        "|---|---|---|---|---|---|",
        *(_row_of(one) for one in asked),
    ]
    return "\n".join(lines) + "\n"


def refused_by_text(found: Iterable[Outcome]) -> list[Outcome]:
    """Edits that change no output and make the package stale all the same, whatever the reason."""
    return [one for one in found if one.changes is False and not one.control and one.decided]


def _strictly(given: list[Outcome]) -> str:
    unchanged = [one for one in given if one.changes is False and not one.control]
    return (
        f"Counted strictly, whatever the reason: of the {len(unchanged)} edits that change no output and "
        f"are no controls, {len(refused_by_text(given))} make the package stale."
    )


def _unbuilt(asked: list[Outcome]) -> tuple[str, ...]:
    rows = dict.fromkeys(_row(one.base, one.not_built) for one in asked if one.loaded is None)
    return ("", "| program | why it has no package |", "|---|---|", *rows) if rows else ()


_LEGEND = (
    "*Over-eager* is a needless refusal. *Other options*: the edit asks for another mode or option of",
    "`torch.compile`, so another package is wanted although the output is the same. *Other settings*: the",
    "files are the same, and the worker's process is set up otherwise than the build's; the package was",
    "built for those. *The program fails*: the edited program does not run at all. *Right hit, rebuilt*:",
    "the package is right and is used, and the daemon, which sees the text alone, builds another one. *Not",
    "built*: preheat refuses the program, so nothing of it is ever loaded.",
)


def _row_of(one: Outcome) -> str:
    changes = {True: "yes", False: "no", None: ""}[one.changes]
    why = "; ".join(
        f"{reason.kind} {reason.symbol or reason.file or ''}".strip() for reason in one.decided
    )
    return _row(one.base, one.name, changes, one.word, one.did, why or "fresh")


def _row(*cells: str) -> str:
    # Messages of torch's may name an object by its address.
    plain = (_ADDRESS.sub("", " ".join(cell.split())) for cell in cells)
    lines = (cell.replace("|", "\\|") for cell in plain)
    return f"| {' | '.join(lines)} |"


def main() -> None:
    """Write the table to the file that is named, or to standard output."""
    with tempfile.TemporaryDirectory() as directory:
        text = table(outcomes(Path(directory)))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
