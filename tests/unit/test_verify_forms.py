"""The proof goes form by form: a package is accepted without the forms that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preheat import verify
from preheat.errors import ProofError
from preheat.formats import FORMATS
from preheat.job import Job, ProvenEvent
from preheat.manifest import Form, FormProof
from preheat.store import DiskStore
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from pathlib import Path

    from preheat.job import Event

MANIFEST = msgspec.structs.replace(
    manifest_of(),
    forms=tuple(Form(kind=kind, format=FORMATS[kind], objects=()) for kind in FORMATS),
)


class Heard:
    def __init__(self) -> None:
        self.answer: Event | None = None

    def send(self, event: Event) -> None:
        self.answer = event

    def phase(self, name: str, detail: str = "") -> None:
        pass


def proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: tuple[str, ...], order: list[str]
) -> ProvenEvent:
    """What the proof process says when the forms ``bad`` are not accepted."""

    def prove(kind: str, *rest: Any) -> FormProof:
        order.append(kind)
        if kind in bad:
            raise ProofError(f"The {kind} form is wrong.")
        return FormProof(form=kind, frames_compiled=0, max_error=0.0, load_seconds=0.0, modules=0)

    class Nothing:
        def install(self) -> None:
            pass

    DiskStore(tmp_path / "staging", create=True).publish(MANIFEST)
    monkeypatch.setattr(verify, "_prove_form", prove)
    monkeypatch.setattr(verify, "find_factory", lambda *names: None)
    monkeypatch.setattr(verify, "recording_user_code", lambda job: Nothing())
    job = Job(
        target="model",
        factory="app:model",
        project=str(tmp_path),
        staging=str(tmp_path / "staging"),
        environment=ENVIRONMENT,
        device="cpu",
    )
    heard = Heard()
    verify.main(job, heard)  # type: ignore[arg-type]
    assert isinstance(heard.answer, ProvenEvent)
    return heard.answer


@pytest.mark.parametrize("bad", ["lean", "dynamo"])
def test_the_other_form_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    order: list[str] = []
    event = proven(tmp_path, monkeypatch, (bad,), order)
    assert order == ["lean", "dynamo"]
    (good,) = set(FORMATS) - {bad}
    package = MANIFEST.proven(event.proof, event.without)
    assert package.is_proven()
    assert [form.kind for form in package.forms] == [good]
    assert package.without == {bad: f"proof: The {bad} form is wrong."}


def test_nothing_is_left_out_of_a_good_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = proven(tmp_path, monkeypatch, (), [])
    package = MANIFEST.proven(event.proof, event.without)
    assert (package.forms, package.without) == (MANIFEST.forms, {})


def test_a_package_without_a_good_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProofError, match=r"The lean form is wrong\. The dynamo form is wrong\."):
        proven(tmp_path, monkeypatch, ("lean", "dynamo"), [])
