"""The commands ``preheat export`` and ``preheat import``."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from preheatd.options import Options, common_options

if TYPE_CHECKING:
    from preheat.manifest import Environment
    from preheat.verdict import Reason
    from preheatd.answers import Json
    from preheatd.arriving import Arrived
    from preheatd.bundles.importing import Imported
    from preheatd.probe import ProbeAnswer

_STANDARD = "-"
_WORDS = {
    "new": "imported",
    "replaced": "imported; it took the place of another one",
    "same": "was here already",
    "kept": "not imported: another one is current here (--replace takes this one)",
    "left_out": "left out",
}


@click.command("export")
@click.argument("targets", nargs=-1)
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    metavar="FILE",
    help="Where the bundle goes; - is standard output.",
)
@click.option(
    "--only-this-environment",
    is_flag=True,
    help="Only packages that fit this machine's environment.",
)
@common_options
def export(
    options: Options, targets: tuple[str, ...], file: str, only_this_environment: bool
) -> int:
    """Write the packages of TARGETS, or all, into one file."""
    return asyncio.run(_export(options, targets, file, only_here=only_this_environment))


async def _export(options: Options, targets: tuple[str, ...], file: str, *, only_here: bool) -> int:
    from preheat.store import DiskStore
    from preheatd.bundles.exporting import Exporter
    from preheatd.selection import digests_of, environments_here, place_of, selected

    place, config = place_of(options.config_path)
    only = digests_of(await environments_here(config)) if only_here else None
    store = DiskStore(place)
    refs = selected(store, targets, only)
    exporter = Exporter(store)
    if file == _STANDARD:
        _refuse_terminal()
        await exporter.to_descriptor(refs, sys.stdout.fileno())
        return 0
    exported = await exporter.to_file(refs, Path(file))
    if options.as_json:
        _print(
            {
                "file": file,
                "bytes": exported.size,
                "objects": exported.objects,
                "packages": [
                    {"target": one.target, "environment": one.environment, "manifest": one.manifest}
                    for one in refs
                ],
            }
        )
        return 0
    for one in refs:
        click.echo(f"{one.target}  {one.environment}")
    packages = "1 package" if len(refs) == 1 else f"{len(refs)} packages"
    click.echo(f"{file}: {packages}, {exported.objects} objects, {exported.size} bytes")
    return 0


def _refuse_terminal() -> None:
    if sys.stdout.isatty():
        raise click.UsageError("A bundle is not for a terminal: redirect it, or use -o FILE.")


@click.command("import")
@click.argument("file")
@click.option(
    "--only-this-environment",
    is_flag=True,
    help="Leave out packages that do not fit this machine's environment.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Make the imported packages current also where there are others.",
)
@click.option("--target", "targets", multiple=True, metavar="TARGET", help="Only this target.")
@common_options
def import_(
    options: Options,
    file: str,
    only_this_environment: bool,
    replace: bool,
    targets: tuple[str, ...],
) -> int:
    """Take the packages of a bundle into the store; FILE - is standard input."""
    return asyncio.run(
        _import(options, file, targets, only_here=only_this_environment, replace=replace)
    )


async def _import(
    options: Options, file: str, targets: tuple[str, ...], *, only_here: bool, replace: bool
) -> int:
    from preheat.store import DiskStore
    from preheatd.arriving import Arrivals
    from preheatd.bundles.importing import Importer, import_bundle
    from preheatd.selection import digests_of, environments_here, place_of

    place, config = place_of(options.config_path)
    answers = await environments_here(config) if only_here else {}
    source = sys.stdin.fileno() if file == _STANDARD else Path(file)
    importer = Importer(
        lambda: DiskStore(place, create=True, signing=config.signing if config else None),
        Arrivals(
            config,
            replace=replace,
            only=digests_of(answers) if only_here else None,
            targets=frozenset(targets),
        ),
        length=_length(source),
        here=lambda environment: nearest(environment, answers),
    )
    imported = await import_bundle(source, importer)
    if options.as_json:
        _print(_imported_answer(file, imported))
    else:
        _print_imported(imported)
    return 0


def _length(source: Path | int) -> int | None:
    """Of a regular file; what a pipe will bring is not known."""
    try:
        status = os.stat(source)  # noqa: PTH116 - a descriptor as well
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def nearest(wanted: Environment, answers: dict[str, ProbeAnswer]) -> tuple[Reason, ...]:
    """How an environment differs from the most similar one of the same device here."""
    from preheat.differences import differences

    here = (one.cuda if wanted.device == "cuda" else one.cpu for one in answers.values())
    found = [differences("environment_differs", wanted, one) for one in here if one is not None]
    return min(found, key=len, default=())


def _imported_answer(file: str, imported: Imported) -> Json:
    return {
        "file": file,
        "packages": [msgspec.to_builtins(one) for one in imported.packages],
        "objects": {
            "written": imported.written,
            "written_bytes": imported.written_bytes,
            "reused": imported.reused,
        },
        "signatures": imported.signatures,
    }


def _print_imported(imported: Imported) -> None:
    for one in imported.packages:
        click.echo(f"{one.target}  {one.environment}  {_WORDS[one.result]}")
    click.echo(
        f"{imported.written} objects written ({imported.written_bytes} bytes), "
        f"{imported.reused} were here already"
    )
    if imported.signatures:
        click.echo(f"{imported.signatures} packages brought signatures")


def _print(answer: Json) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")


def words_of(one: Arrived) -> str:
    """What became of a package, for people."""
    return _WORDS[one.result]
