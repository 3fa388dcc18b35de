"""Proves a package in forked processes, one form after another, and publishes it as the daemon does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preheat.job import Job, ProvenEvent
from preheat.store import DiskStore
from preheat.store.transfer import copy_package
from support.zygote import ChildFailed, Zygote

if TYPE_CHECKING:
    from preheat.manifest import Manifest

STAGE_SECONDS = 900
# What a proof process says of a form that it does not accept.
_UNPROVEN = "proof: "


@dataclasses.dataclass(frozen=True)
class Provers:
    """Processes that fork: ``worker`` has torch alone, ``compiler`` has imported the compiler as well.

    The lean form is proven without the compiler, as in a proof process, or it might lean on it. The other
    one needs it in any case, and to import it takes longer than the proof.
    """

    worker: Zygote
    compiler: Zygote

    def publish(self, job: Job, store: Path, directory: Path) -> str:
        """Prove what lies in the job's staging store, and publish it to ``store``; or why it is not.

        ``directory`` is for logs, and for compiler caches: proofs find nothing there, as on another machine.
        """
        staging = DiskStore(Path(job.staging))
        found = staging.read_package(job.target, job.environment)
        assert found is not None
        proven: list[ProvenEvent] = []
        without: dict[str, str] = {}
        for kind in sorted((form.kind for form in found[1].forms), key=lambda kind: kind != "lean"):
            try:
                answer = self._proof(msgspec.structs.replace(job, forms=(kind,)), directory)
            except ChildFailed as error:
                return f"proof_crashed: {error}"
            if isinstance(answer, ProvenEvent):
                proven.append(answer)
            elif answer.startswith(_UNPROVEN):
                without[kind] = answer
            else:
                return answer
        if not proven:
            return _UNPROVEN + " ".join(one.removeprefix(_UNPROVEN) for one in without.values())
        copied = _together(found[1], proven, without)
        target = DiskStore(store, create=True)
        copy_package(staging, target, copied)
        target.publish(copied)
        return ""

    def _proof(self, job: Job, directory: Path) -> ProvenEvent | str:
        """Of the one form that the job names."""
        zygote = self.worker if job.forms == ("lean",) else self.compiler
        answer = zygote.call(
            "support.capture_stages:prove",
            msgspec.to_builtins(job),
            log=directory / "prove.log",
            seconds=STAGE_SECONDS,
            environment={"TORCHINDUCTOR_CACHE_DIR": str(directory / "no-cache")},
        )
        return str(answer["failed"]) or msgspec.convert(answer["proven"], ProvenEvent)


def _together(manifest: Manifest, proven: list[ProvenEvent], without: dict[str, str]) -> Manifest:
    """The package with one proof of all its forms."""
    proof = msgspec.structs.replace(
        proven[0].proof,
        forms=tuple(form for one in proven for form in one.proof.forms),
        seconds=sum(one.proof.seconds for one in proven),
    )
    return manifest.proven(proof, without)
