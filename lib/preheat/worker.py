"""The worker: find a package, make sure that it is right, install it; never compile, never crash.

``load`` goes through trust (owners, modes, signatures), environment, settings, sources, live code and the
digests of every object, in this order, before any byte of a package is unpickled.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from preheat.environment import (
    capture,
    capture_settings,
    environment_differences,
    settings_differences,
)
from preheat.errors import (
    CorruptedError,
    IncompatibleError,
    MissError,
    OtherFormatError,
    PreheatError,
    UnsignedPackageError,
    UntrustedStoreError,
)
from preheat.formats import other_format
from preheat.forms import FormOpener, install_form, plainly_compiled, with_grad
from preheat.garbage import without_collector
from preheat.live import live_differences
from preheat.loaded import LoadReport, Runner, count_load, count_miss, wrap
from preheat.manifest import environment_digest
from preheat.policy import OnMiss, resolve_on_miss, resolve_wait_seconds, say_once
from preheat.sources.check import check
from preheat.sources.files import FileDigests
from preheat.sources.libraries import InstalledVersions, library_differences
from preheat.sources.locate import import_locator
from preheat.sources.running import edited_since_start
from preheat.store import DiskStore, find_stores
from preheat.store.leases import read_leased
from preheat.verdict import Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preheat.forms import FormKind, LoadedForm
    from preheat.manifest import Environment, Manifest
    from preheat.store.leases import Lease
    from preheat.store.protocol import Store

_POLL_SECONDS = 0.5
_digests = FileDigests()
_versions = InstalledVersions()


class Unusable(Exception):
    """No package can be used, and why. Internal: becomes the report's verdict and reasons."""

    def __init__(
        self, verdict: Verdict, *reasons: Reason, manifest: Manifest | None = None
    ) -> None:
        super().__init__(verdict)
        self.verdict = verdict
        self.reasons = reasons
        self.manifest = manifest


def load(
    target: str,
    fn: Callable[..., Any],
    *,
    store: str | Path | Store | None = None,
    on_miss: OnMiss | None = None,
    device: str | None = None,
    wait_seconds: float | None = None,
    form: FormKind | None = None,
    unproven: bool = False,
) -> Any:
    """``fn`` with the compiled code of ``target``'s package; without compiling anything.

    ``fn`` is the function, method or module that the target's factory builds, with this process's own
    parameters; what ``torch.compile`` was applied to already is taken without it. The result is called
    like it; a module's attributes, ``state_dict``, ``train`` and ``eval`` are the original's.
    ``result.preheat`` says what happened (``LoadReport``).

    ``store``: a path or a store; default as ``find_stores`` says, layers included. ``device``: ``cpu`` or
    ``cuda``, told from the module's parameters by default. ``form``: ``lean`` or ``dynamo`` alone; by
    default the lean form, which needs no compiler, and the dynamo form where the package has no lean one or
    it cannot be loaded here. ``unproven`` accepts a package without proof; the proof process itself uses it.

    Promised: a package is only used when its environment, sources, settings and live code are those of
    this process, its objects have the recorded digests, and on each call all guards hold. A target
    declared with ``grad=False`` runs without gradients here as well.

    When no package can be used, and for a call that the package does not cover, ``on_miss`` decides:
    ``compile`` (default): plain ``torch.compile``, with one warning that says why; ``eager``: the
    original; ``error``: ``MissError``; ``wait``: look for a package up to ``wait_seconds``, then as
    ``compile``. ``PREHEAT_ON_MISS`` and ``PREHEAT_WAIT_SECONDS`` are their defaults.

    Raises ``MissError`` under ``error`` only, and ``ConfigurationError`` for a wrong ``on_miss``.
    Not promised: that two loads of one target in one process are independent of each other's code:
    they share it, as ``torch.compile`` does.
    """
    began = time.perf_counter()
    with without_collector():
        from preheat.torch_internals.programs import uncompiled

        fn = uncompiled(fn)
    policy = resolve_on_miss(on_miss)
    deadline = time.monotonic() + (resolve_wait_seconds(wait_seconds) if policy == "wait" else 0.0)
    while True:
        request = _Request(target, fn, device, policy, form, unproven)
        with without_collector():
            runner, unusable = _try_to_load(request, store)
        if runner is not None or policy != "wait" or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    if runner is None:
        assert unusable is not None
        if policy == "error":
            count_load("error", unusable.verdict, time.perf_counter() - began)
        runner = _without_package(target, fn, policy, unusable)
    report = runner.report
    report.load_seconds = time.perf_counter() - began
    count_load(report.form, report.verdict, report.load_seconds)
    return wrap(fn, runner)


class _Request(NamedTuple):
    """What ``load`` was asked for."""

    target: str
    fn: Any
    device: str | None
    policy: OnMiss
    form: FormKind | None
    unproven: bool


def _try_to_load(
    request: _Request, store: str | Path | Store | None
) -> tuple[Runner | None, Unusable | None]:
    try:
        opened = open_store(store)
    except Unusable as unusable:
        return None, unusable
    failed: list[Unusable] = []
    for one in getattr(opened, "stores", (opened,)):  # a package that does not fit hides no other
        try:
            return _load(request, one), None
        except Unusable as unusable:
            failed.append(_of_layer(unusable, one) if failed else unusable)
    return None, _taken_together(failed)


def _of_layer(unusable: Unusable, layer: Store) -> Unusable:
    """The same, where each reason says of which layer it is."""
    where = f"in the layer {layer.location}"
    unusable.reasons = tuple(
        msgspec.structs.replace(one, detail=f"{one.detail} ({where})" if one.detail else where)
        for one in unusable.reasons
    )
    return unusable


def _taken_together(failed: list[Unusable]) -> Unusable:
    """Why no layer has a package that fits. One that was there and did not fit says most."""
    told = next((one for one in failed if one.verdict is not Verdict.MISSING), failed[0])
    told.reasons = tuple(reason for one in failed for reason in one.reasons)
    return told


def open_store(store: str | Path | Store | None) -> Store:
    """The store that was given or is found. Trouble with it is a reason, never an exception."""
    if store is not None and not isinstance(store, (str, os.PathLike)):
        return store
    try:
        first, *layers = find_stores(store)
        if not layers:
            return DiskStore(first)
        from preheat.store.layered import LayeredStore

        return LayeredStore(DiskStore(first), [DiskStore(one) for one in layers])
    except PreheatError as error:
        raise Unusable(Verdict.MISSING, _reason("store_not_usable", error)) from error


def _load(request: _Request, store: Store) -> Runner:
    manifest: Manifest | None = None
    try:
        digest, manifest, lease = _find(
            request.target, store, devices_of(request.fn, request.device)
        )
        if not (manifest.is_proven() or request.unproven):
            raise Unusable(Verdict.STALE, Reason(kind="not_proven"))
        if reasons := (
            *settings_differences(manifest.settings, capture_settings()),
            *check(manifest.sources, import_locator(), digests=_digests),
            *library_differences(manifest.sources, sys.path, _digests, _versions),
            *edited_since_start(manifest.sources, _digests),
            *live_differences(manifest.live),
        ):
            raise Unusable(Verdict.STALE, *reasons)
        return _install(request, store, manifest, digest, lease)
    except Unusable as unusable:
        unusable.manifest = manifest
        raise
    except UnsignedPackageError as error:
        raise Unusable(Verdict.UNTRUSTED, _reason(error.kind, error)) from error
    except UntrustedStoreError as error:
        raise Unusable(Verdict.UNTRUSTED, _reason("store_untrusted", error)) from error
    except OtherFormatError as error:
        raise Unusable(Verdict.MISSING, _reason("other_format", error)) from error
    except CorruptedError as error:
        raise Unusable(
            Verdict.MISSING, _reason("package_corrupted", error), manifest=manifest
        ) from error
    except MissError:
        raise
    except PreheatError as error:
        raise Unusable(Verdict.MISSING, _reason("load_failed", error), manifest=manifest) from error
    except Exception as error:
        reason = Reason(kind="load_failed", detail=f"{type(error).__name__}: {error}"[:500])
        raise Unusable(Verdict.STALE, reason, manifest=manifest) from error


def _reason(kind: str, error: PreheatError) -> Reason:
    return Reason(kind=kind, detail=str(error))


def devices_of(fn: Any, device: str | None) -> tuple[str, ...]:
    """The kinds of device whose packages may fit, likeliest first."""
    import torch

    if device is not None:
        return (device.partition(":")[0],)
    if not torch.cuda.is_available():
        return ("cpu",)
    if isinstance(fn, torch.nn.Module):
        kinds = {tensor.device.type for tensor in (*fn.parameters(), *fn.buffers())}
        if "cuda" in kinds or not kinds:
            return ("cuda", "cpu")
        return ("cpu", "cuda")
    return ("cuda", "cpu") if torch.cuda.is_initialized() else ("cpu", "cuda")


@functools.cache
def _environment(device: str) -> tuple[str, Environment]:
    here = capture(device)
    return environment_digest(here), here


def _find(
    target: str, store: Store, devices: tuple[str, ...]
) -> tuple[str, Manifest, Lease | None]:
    for device in devices:
        digest, _ = _environment(device)
        found = read_leased(store, target, digest)
        if found is not None:
            ref, manifest, lease = found
            # A store of somebody else's own making may have nothing to do with signatures.
            if (check_signed := getattr(store, "check_signed", None)) is not None:
                check_signed(ref, manifest)
            if manifest.target != target or environment_digest(manifest.environment) != digest:
                raise CorruptedError(f"The ref of {target!r} leads to another target's manifest.")
            return ref.manifest, manifest, lease
    raise Unusable(Verdict.MISSING, *_why_missing(target, store, devices))


def _why_missing(target: str, store: Store, devices: tuple[str, ...]) -> Iterator[Reason]:
    """The differences to the most similar environment that has a package."""
    _, here = _environment(devices[0])
    nearest: tuple[Reason, ...] | None = None
    for ref in store.refs(target):
        try:
            other = store.read_manifest(ref.manifest).environment
        except PreheatError:
            continue
        differences = environment_differences(other, here)
        if nearest is None or len(differences) < len(nearest):
            nearest = differences
    if nearest is None:
        yield Reason(kind="never_built", detail=f"{store.location} has no package of {target!r}")
    else:
        yield from nearest


def _install(
    request: _Request, store: Store, manifest: Manifest, digest: str, lease: Lease | None
) -> Runner:
    """Install the best form that can be loaded; the reasons of the others are in the report."""
    kinds = (request.form,) if request.form else ("lean", "dynamo")
    forms = [form for kind in kinds if (form := manifest.form(kind)) is not None]
    if not forms:
        reasons = tuple(
            Reason(kind="form_not_built", symbol=kind, detail=why)
            for kind, why in manifest.without.items()
            if kind in kinds
        )
        raise Unusable(Verdict.STALE, *(reasons or (Reason(kind="no_known_form"),)))
    failed: list[Reason] = []
    for form in forms:
        if (other := other_format(form)) is not None:
            failed.append(other)
            continue
        report = LoadReport(request.target, Verdict.FRESH, form.kind, manifest=digest)
        try:
            loaded = install_form(
                request.fn,
                form.kind,
                FormOpener(store, form),
                functools.partial(_decide, report, request.policy),
                functools.partial(plainly_compiled, spec=manifest.spec),
            )
        except IncompatibleError as error:
            failed += error.reasons or (_reason("load_failed", error),)
        except Exception as error:
            if form is forms[-1]:
                raise
            detail = f"{form.kind} form: {type(error).__name__}: {error}"[:500]
            failed.append(Reason(kind="load_failed", detail=detail))
        else:
            report.reasons = tuple(failed)
            return _runner(request, manifest, report, loaded, lease)
    raise Unusable(Verdict.STALE, *failed)


def _runner(
    request: _Request,
    manifest: Manifest,
    report: LoadReport,
    loaded: LoadedForm,
    lease: Lease | None,
) -> Runner:
    held = [lease]  # the runner keeps this function, and with it the lease, for as long as it lives

    def fall_back(reason: Reason) -> Callable[..., Any]:
        loaded.uninstall()
        held.clear()
        unusable = Unusable(Verdict.FAILED, reason, manifest=manifest)
        runner = _without_package(request.target, request.fn, request.policy, unusable)
        vars(report).update(vars(runner.report), load_seconds=report.load_seconds)
        return runner.run

    return Runner(report, with_grad(loaded.call, manifest.spec.grad), fall_back)


def _decide(report: LoadReport, policy: OnMiss, symbol: str, why: str) -> str:
    """What happens to a call that no variant covers; counts it."""
    count_miss(report, compiled=policy not in ("error", "eager"))
    reason = Reason(kind="call_not_covered", symbol=symbol, detail=why)
    if policy == "error":
        raise MissError(
            f"Target {report.target!r} does not cover this call: {reason}.", reasons=(reason,)
        )
    what = "runs this call without compilation" if policy == "eager" else "compiles this call"
    say_once(report.target, what, (reason,))
    return "eager" if policy == "eager" else "compile"


def _without_package(target: str, fn: Any, policy: OnMiss, unusable: Unusable) -> Runner:
    reasons = tuple(unusable.reasons)
    if policy == "error":
        raise MissError(
            f"Target {target!r} cannot be loaded ({unusable.verdict}): "
            + "; ".join(str(reason) for reason in reasons)
            + ".",
            reasons=reasons,
        )
    form = "eager" if policy == "eager" else "compile"
    what = "runs without compilation" if form == "eager" else "is compiled in this process"
    say_once(target, what, reasons)
    report = LoadReport(target, unusable.verdict, form, reasons)
    spec = unusable.manifest.spec if unusable.manifest is not None else None
    call = fn if form == "eager" else plainly_compiled(fn, spec)
    return Runner(report, call if spec is None else with_grad(call, spec.grad), None)
