"""The plan: facts in, verdict and action out."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from preheat.formats import FORMATS
from preheat.manifest import (
    BuildRecord,
    Environment,
    Form,
    FormProof,
    Manifest,
    Proof,
    Settings,
    Sources,
    SpecRecord,
)
from preheat.verdict import Reason, Verdict
from preheatd.plan import Action, TargetFacts, decide, make_plan
from preheatd.state import Failure

PROOF = Proof(
    forms=(
        FormProof(form="dynamo", frames_compiled=0, max_error=0.0, load_seconds=0.1, modules=1),
    ),
    examples=1,
    against="eager",
    seconds=0.1,
)
PACKAGE = Manifest(
    target="encoder",
    factory="app:encoder",
    environment=Environment(
        python="3",
        abi="",
        platform="",
        torch="2",
        torch_git="",
        triton=None,
        cuda=None,
        driver=None,
        device="cpu",
        gpus=(),
        cpu_isa="",
        cpu_count=1,
        variables={},
    ),
    settings=Settings(threads=1, default_dtype="", matmul_precision="", configuration={}),
    spec=SpecRecord(
        grad=False,
        backward=False,
        mode=None,
        dynamic=None,
        fullgraph=False,
        backend="inductor",
        options={},
        examples=1,
    ),
    sources=Sources(),
    live=(),
    forms=(Form(kind="dynamo", format=FORMATS["dynamo"], objects=()),),
    build=BuildRecord(preheat="0", started_at="now", seconds={}, graphs=1, kernels=0),
    proof=PROOF,
)
EDITED = Reason(kind="module_edited", file="app/encoder.py")
NOW = 1000.0
FACTS = TargetFacts(
    target="encoder",
    factory="app:encoder",
    environment="e" * 32,
    manifest=PACKAGE,
    sources_state="state one",
)


def failure(**fields: object) -> Failure:
    values: dict[str, object] = {
        "target": "encoder",
        "environment": "e" * 32,
        "kind": "target",
        "message": "The factory raised.",
        "tried": ("state one",),
        "at": NOW - 1,
    }
    return Failure(**{**values, **fields})  # type: ignore[arg-type]


def verdict(**changes: object) -> tuple[Verdict, Action, list[str]]:
    decision = decide(dataclasses.replace(FACTS, **changes), NOW)  # type: ignore[arg-type]
    return decision.verdict, decision.action, [reason.kind for reason in decision.reasons]


def test_an_unchanged_package_is_fresh() -> None:
    assert verdict() == (Verdict.FRESH, Action.NONE, [])


def test_a_form_of_another_version_is_built_again() -> None:
    older = Form(kind="lean", format=FORMATS["lean"] - 1, objects=())
    newer = Form(kind="dynamo", format=FORMATS["dynamo"] + 1, objects=())
    unknown = Form(kind="of later days", format=1, objects=())
    for form in (older, newer, unknown):
        forms = (*PACKAGE.forms, form)
        manifest = msgspec.structs.replace(PACKAGE, forms=forms)
        assert verdict(manifest=manifest) == (Verdict.STALE, Action.BUILD, ["other_format"])


def test_a_package_may_be_missing() -> None:
    assert verdict(manifest=None) == (Verdict.MISSING, Action.BUILD, ["package_missing"])
    elsewhere = (Reason(kind="environment_differs", symbol="torch"),)
    missing = (Verdict.MISSING, Action.BUILD, ["environment_differs"])
    assert verdict(manifest=None, elsewhere=elsewhere) == missing


def test_a_layer_that_has_it_leaves_nothing_to_do() -> None:
    in_layer = dataclasses.replace(FACTS, layer="/shared")
    decision = decide(in_layer, NOW)
    assert (decision.verdict, decision.action) == (Verdict.FRESH, Action.NONE)
    assert [(one.kind, one.file) for one in decision.reasons] == [("in_layer", "/shared")]
    # Whoever asks for a build gets one, and what a layer has is not proven once more here.
    assert decide(in_layer, NOW, rebuild=True).action is Action.BUILD
    assert PACKAGE.proof is not None
    forked = msgspec.structs.replace(
        PACKAGE, proof=msgspec.structs.replace(PACKAGE.proof, forked=True)
    )
    assert verdict(manifest=forked)[1] is Action.CONFIRM
    assert verdict(manifest=forked, layer="/shared")[1] is Action.NONE


def test_layers_that_could_not_help_are_named() -> None:
    troubles = (Reason(kind="layer_missing", file="/shared"),)
    assert verdict(layer_reasons=troubles) == (Verdict.FRESH, Action.NONE, [])
    missing = ["package_missing", "layer_missing"]
    assert verdict(manifest=None, layer_reasons=troubles) == (
        Verdict.MISSING,
        Action.BUILD,
        missing,
    )


def test_a_damaged_or_unproven_package_is_missing() -> None:
    damage = (Reason(kind="package_corrupted"),)
    assert verdict(damage=damage) == (Verdict.MISSING, Action.BUILD, ["package_corrupted"])
    unproven = dataclasses.replace(FACTS, manifest=_without_proof())
    assert decide(unproven, NOW).reasons[0].kind == "proof_missing"


def _without_proof() -> Manifest:
    import msgspec

    return msgspec.structs.replace(PACKAGE, proof=None)


def test_edits_and_another_factory_make_it_stale() -> None:
    assert verdict(source_reasons=(EDITED,)) == (Verdict.STALE, Action.BUILD, ["module_edited"])
    assert verdict(factory="app:other", source_reasons=(EDITED,)) == (
        Verdict.STALE,
        Action.BUILD,
        ["factory_changed", "module_edited"],
    )


def test_what_another_process_builds_is_waited_for() -> None:
    assert verdict(manifest=None, building=True)[:2] == (Verdict.BUILDING, Action.WAIT)
    assert verdict(building=True)[:2] == (Verdict.FRESH, Action.NONE)


def test_an_untrusted_store_is_never_built_into() -> None:
    assert verdict(untrusted="writable by everybody") == (
        Verdict.UNTRUSTED,
        Action.NONE,
        ["store_untrusted"],
    )


def test_a_failure_is_not_repeated_before_its_time() -> None:
    decision = decide(dataclasses.replace(FACTS, manifest=None, failure=failure()), NOW)

    assert (decision.verdict, decision.action) == (Verdict.FAILED, Action.WAIT)
    assert decision.not_before is not None
    assert [reason.kind for reason in decision.reasons] == ["target", "package_missing"]


def test_a_failure_is_repeated_when_due_or_asked_for() -> None:
    facts = dataclasses.replace(FACTS, manifest=None, failure=failure())
    due = decide(facts, NOW).not_before
    assert due is not None

    assert decide(facts, due).action is Action.BUILD
    assert decide(facts, NOW, retry=True).action is Action.BUILD
    assert decide(facts, NOW - 500).action is Action.BUILD  # the clock was set back


def test_an_edit_is_tried_at_once() -> None:
    facts = dataclasses.replace(
        FACTS, manifest=None, failure=failure(attempts=20), sources_state="state two"
    )
    assert decide(facts, NOW).verdict is Verdict.MISSING
    assert decide(facts, NOW).action is Action.BUILD


def test_an_undone_edit_is_fresh_whatever_failed() -> None:
    assert verdict(failure=failure()) == (Verdict.FRESH, Action.NONE, [])


def test_a_refused_program_is_tried_again_only_after_an_edit() -> None:
    decision = decide(
        dataclasses.replace(FACTS, manifest=None, failure=failure(refused=True)), 1e12
    )
    assert (decision.action, decision.not_before) == (Action.WAIT, None)


def test_an_interpreter_that_does_not_answer() -> None:
    probe = failure(environment="", kind="probe", tried=())
    assert verdict(environment="", manifest=None, failure=probe) == (
        Verdict.FAILED,
        Action.WAIT,
        ["probe"],
    )


def test_the_plan_sums_up() -> None:
    waiting = dataclasses.replace(FACTS, target="b", manifest=None, failure=failure())
    missing = dataclasses.replace(FACTS, target="c", manifest=None)
    plan = make_plan([FACTS, waiting, missing], NOW)

    assert [one.target for one in plan.decisions] == ["encoder", "b", "c"]
    assert [one.target for one in plan.to_build()] == ["c"]
    assert plan.next_retry() == plan.decisions[1].not_before
    assert not plan.all_fresh
    assert make_plan([FACTS], NOW).all_fresh
    assert make_plan([FACTS], NOW).next_retry() is None
    with pytest.raises(AttributeError):
        plan.decisions = ()  # type: ignore[misc]


UNSIGNED = Reason(kind="signature_missing", detail="The package is not signed.")


def test_an_unsigned_package_is_built_where_it_can_be_signed_and_left_alone_elsewhere() -> None:
    wanted = (Verdict.UNTRUSTED, ["signature_missing"])
    for may_replace, action in ((False, Action.NONE), (True, Action.BUILD)):
        found = verdict(manifest=None, unsigned=UNSIGNED, may_replace=may_replace)
        assert found == (wanted[0], action, wanted[1])
    found = verdict(manifest=None, unsigned=UNSIGNED, may_replace=True, failure=failure())
    assert found[:2] == (Verdict.FAILED, Action.WAIT)
    found = verdict(manifest=None, unsigned=UNSIGNED, may_replace=True, building=True)
    assert found[:2] == (Verdict.BUILDING, Action.WAIT)
