"""What ``preheat explain`` shows a person: one target, its differences, and each piece of its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from preheatd.report import print_failure, print_reasons, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from preheat.manifest import Settings
    from preheat.sources.explain import SymbolReport, Touch
    from preheatd.shown import TargetShown

_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def print_explanation(console: Console, target: TargetShown) -> None:
    """Everything about one target but the pieces of its sources."""
    console.print(Text.assemble((f"{target.target}: ", "bold"), verdict_text(target.verdict)))
    console.print(f"  factory      {escape(target.factory)}", highlight=False)
    console.print(f"  environment  {target.environment or 'unknown'}", highlight=False)
    console.print(f"  action       {target.action}", highlight=False)
    print_reasons(console, target.reasons, "because      ")
    if target.settings is not None:
        depends = f"{target.sources} modules, {target.data_files} data files"
        console.print(f"  built        {target.built_at}", highlight=False)
        console.print(f"  settings     {escape(_settings(target.settings))}", highlight=False)
        console.print(f"  depends on   {depends}", highlight=False)
    if target.failure is not None:
        print_failure(console, target.target, target.failure, target.failure.log)


def print_symbols(console: Console, symbols: Iterable[SymbolReport]) -> None:
    """What became of each piece of the files that changed, with a short diff."""
    for one in symbols:
        words = one.kind.replace("_", " ")
        effect = "makes it stale" if one.stale else "changes nothing"
        where = f"{one.file} {one.symbol}".rstrip()
        lines, detail = _moved(one), f"; {one.detail}" if one.detail else ""
        say = f"  {words}: {where}{lines}, {effect}{detail}"
        console.print(Text(_shown(say)), highlight=False)
        for line in one.diff:
            style = _STYLES.get(line[:1], "")
            console.print(Text(f"    {_shown(line)}", style=style), highlight=False)


def _moved(one: SymbolReport) -> str:
    """Its lines before and now, once where they are the same."""
    spans = dict.fromkeys(_lines(span) for span in (one.before, one.now) if span)
    if not spans:
        return ""
    plural = len(spans) > 1 or "-" in next(iter(spans))
    return f" (line{'s' if plural else ''} {' -> '.join(spans)})"


def _shown(text: str) -> str:
    """Source text may hold what a terminal would obey."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(letter: str) -> str:
    return "    " if letter == "\t" else letter.encode("unicode_escape").decode()


def _settings(settings: Settings) -> str:
    changed = [f"{name}={value}" for name, value in sorted(settings.configuration.items())]
    plain = (
        f"threads={settings.threads}",
        f"default_dtype={settings.default_dtype}",
        f"matmul_precision={settings.matmul_precision}",
    )
    return ", ".join((*plain, *changed))


def _lines(span: tuple[int, int]) -> str:
    first, last = span
    return str(first) if first == last else f"{first}-{last}"


def print_touch(console: Console, target: str, touch: Touch) -> None:
    """What an edit of a file could touch."""

    def say(text: str) -> None:
        console.print(text, markup=False)

    if touch.data:
        say(f"{target}: any change of {touch.file} makes it stale: it {touch.detail}.")
    elif touch.whole:
        detail = f" ({touch.detail})" if touch.detail else ""
        say(f"{target}: any edit of {touch.file} but of comments and formatting counts{detail}.")
    elif not touch.module:
        say(f"{target}: {touch.file} does not count.")
    else:
        say(f"{target}: an edit of one of these in {touch.file} makes it stale:")
        for unit in touch.counts:
            say(f"  {unit.symbol} (lines {_lines((unit.first, unit.last))})")
        if touch.free:
            say(f"These may be edited freely: {', '.join(touch.free)}.")
