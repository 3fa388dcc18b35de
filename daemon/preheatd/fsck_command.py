"""``preheat fsck``: looks at every object and ref of a store, explains, and repairs what can be."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from typing import TYPE_CHECKING

import click
import msgspec

from preheat.errors import ConfigurationError, PreheatError, UntrustedStoreError
from preheat.manifest import environment_digest
from preheat.store import DiskStore, build_lock, find_store
from preheat.store.examining import examine, problems
from preheat.store.facts import Finding, Repair
from preheat.store.files import Files
from preheat.store.inspecting import Inspector
from preheat.store.layout import Layout
from preheat.store.mending import Mender
from preheat.store.records import utc_now
from preheat.store.repairing import steps
from preheat.store.trust import Trust
from preheat.store.writing import Writer
from preheatd import commands, fsck_state
from preheatd.config import load_config
from preheatd.inventory import Inventory
from preheatd.options import common_options
from preheatd.state import State, state_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from preheat.manifest import Digest, Manifest
    from preheat.store.facts import StoreFacts
    from preheatd.config import Config
    from preheatd.options import Options

PROBLEM_EXIT_CODE = 3
_UNTRUSTED = frozenset({"untrusted", "object_untrusted", "ref_untrusted"})


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one finding: ``done`` says what was done, ``trouble`` why nothing could be."""

    kind: str
    place: str
    done: str = ""
    trouble: str = ""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What ``preheat fsck`` answers. ``findings``: what is to be said now, after the repairs."""

    store: str
    objects: int
    refs: int
    findings: tuple[Finding, ...]
    repairs: tuple[Repaired, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 for a store that is whole now, 5 for one that others may have changed, else 3."""
        found = problems(self.findings)
        if any(one.kind in _UNTRUSTED for one in found):
            return UntrustedStoreError.exit_code
        return PROBLEM_EXIT_CODE if found else 0


@click.command("fsck")
@click.option("--repair", is_flag=True, help="Repair what can be, and quarantine the rest.")
@common_options
def fsck(options: Options, repair: bool) -> int:
    """Verify every object and ref of the store."""
    return asyncio.run(_fsck(options, repair=repair))


async def _fsck(options: Options, *, repair: bool) -> int:
    checking = await asyncio.to_thread(_checking, options)
    checked = await asyncio.to_thread(checking.run, repair=repair)
    if options.as_json:
        answer = msgspec.to_builtins(checked)
        commands.print_json({**answer, "whole": checked.exit_code == 0})
    else:
        _print(checked)
    return checked.exit_code


def _checking(options: Options) -> Checking:
    """The store of the configuration; without one, where workers look for it."""
    try:
        config = load_config(options.config_path)
    except ConfigurationError:
        if options.config_path is not None:
            raise
        return checking_of(find_store(), None)
    return checking_of(config.store, config)


def checking_of(store: Path, config: Config | None, files: Files | None = None) -> Checking:
    """What looks at this store. Without ``config`` no ref can go back to an earlier package."""
    files = Files() if files is None else files
    trust = Trust.of("require", frozenset())
    layout = Layout(store)
    return Checking(
        files=files,
        layout=layout,
        inspector=Inspector(files, layout, trust.owners, utc_now),
        writer=Writer(files, trust, layout.temporary),
        state=State(state_path(store, os.environ)),
        config=config,
    )


@dataclasses.dataclass(frozen=True)
class Checking:
    """Looks at one store and its state directory, and repairs."""

    files: Files
    layout: Layout
    inspector: Inspector
    writer: Writer
    state: State
    config: Config | None

    def run(self, *, repair: bool) -> Checked:
        """Look, and with ``repair`` mend and look again. Raises ``StoreError`` where there is no store."""
        facts, found = self._look()
        repairs: tuple[Repaired, ...] = ()
        if repair:
            repairs = self._repair(facts, found)
            facts, found = self._look()
        return Checked(
            store=str(self.layout.root),
            objects=len(facts.objects),
            refs=len(facts.refs),
            findings=found,
            repairs=repairs,
        )

    def _look(self) -> tuple[StoreFacts, tuple[Finding, ...]]:
        facts = self.inspector.inspect()
        mender = self._mender(facts)
        found = [*examine(facts), *fsck_state.examine(self.state)]
        # Somebody may have published or collected since the look at the objects.
        return facts, tuple(
            one
            for one in found
            if one.repair is not Repair.RECOVER_REF
            or mender.is_still_broken(self.layout.root / one.place)
        )

    def _repair(self, facts: StoreFacts, found: Sequence[Finding]) -> tuple[Repaired, ...]:
        if facts.untrusted:
            # Whose files these are is not known: to take them away could be just what somebody wants.
            _, message, remedy = facts.untrusted[0]
            raise UntrustedStoreError(f"Nothing was repaired: {message}", remedy=remedy)
        mender = self._mender(facts)
        in_store = [one for one in found if one.repair is not Repair.REMOVE_RECORD]
        done = [
            _repaired(step.finding, functools.partial(mender.mend, step))
            for step in steps(facts, in_store, self._published(facts))
        ]
        done += [
            _repaired(one, functools.partial(fsck_state.put_away, self.state, one))
            for one in found
            if one.repair is Repair.REMOVE_RECORD
        ]
        return tuple(one for one in done if one.done or one.trouble)

    def _mender(self, facts: StoreFacts) -> Mender:
        root = self.layout.root
        return Mender(
            files=self.files,
            layout=self.layout,
            writer=self.writer,
            inspector=self.inspector,
            facts=facts,
            open_store=lambda: DiskStore(
                root,
                create=True,
                files=self.files,
                signing=self.config.signing if self.config else None,
            ),
            lock=lambda target, environment: build_lock(
                root, target, environment, files=self.files
            ),
            fits=self._fits,
            published=self._note_published,
        )

    def _fits(self, manifest: Manifest) -> bool:
        config = self.config
        targets = config.targets if config else ()
        target = next((one for one in targets if one.name == manifest.target), None)
        if config is None or target is None:
            return False
        inventory = Inventory(DiskStore(self.layout.root, files=self.files), self.state)
        environment = environment_digest(manifest.environment)
        return inventory.fits(config, manifest, target, environment)

    def _published(self, facts: StoreFacts) -> list[Digest]:
        """What the daemon published before, for each name the last one first."""
        manifests = (fact.package.manifest for fact in facts.objects if fact.package)
        names = {
            (one.target, environment_digest(one.environment))
            for one in manifests
            if one is not None
        }
        return [digest for name in sorted(names) for digest in self.state.published(*name)]

    def _note_published(self, manifest: Manifest, digest: Digest) -> None:
        environment = environment_digest(manifest.environment)
        self.state.note_published(manifest.target, environment, digest)


def _repaired(finding: Finding, mend: Callable[[], str]) -> Repaired:
    try:
        return Repaired(kind=finding.kind, place=finding.place, done=mend())
    except (PreheatError, OSError) as error:
        trouble = str(error) or type(error).__name__
        return Repaired(kind=finding.kind, place=finding.place, trouble=trouble)


def _print(checked: Checked) -> None:
    from rich.text import Text

    console = commands.output()
    styles = {"note": "", "problem": "red"}
    for repaired in checked.repairs:
        word, style = ("repaired", "green") if repaired.done else ("failed", "red")
        what = repaired.done or repaired.trouble
        start = Text(f"{word:8} ", style=style)
        console.print(Text.assemble(start, f"{repaired.place} ({_words(repaired.kind)}): {what}"))
    for one in checked.findings:
        level = Text(f"{one.level:8} ", style=styles[one.level])
        console.print(Text.assemble(level, (one.place, "bold"), f" {one.detail}"))
        if one.fix:
            console.print(Text(f"         -> {one.fix}"))
    console.print(_summary(checked), markup=False, highlight=False)


def _summary(checked: Checked) -> str:
    found = problems(checked.findings)
    state = "whole" if not found else _count(len(found), "problem")
    notes = len(checked.findings) - len(found)
    text = f"{checked.store}: {_count(checked.objects, 'object')}, {_count(checked.refs, 'ref')}; {state}"
    return f"{text}, {_count(notes, 'note')}" if notes else text


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
