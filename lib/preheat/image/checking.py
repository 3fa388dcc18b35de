"""The guards of one variant: torch's own tree, and the checks that stand for guards on identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preheat.image.call_checks import CallChecks, Check, add_call_checks, guard_text, holds
from preheat.image.format import unmarshal
from preheat.image.guards import Guards, with_names
from preheat.image.standins import guard_helpers
from preheat.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preheat.image import format as image_format
    from preheat.image.format import Image, Variant


class CheckedGuards:
    """torch's guards together with preheat's call-time checks."""

    def __init__(self, guards: Guards, checks: CallChecks | None) -> None:
        self.root = guards.root
        self.check = guards.check
        self._guards = guards
        self._checks = checks

    def why_not(self, local_scope: dict[str, Any]) -> str:
        failed = self._checks.failed(local_scope) if self._checks is not None else None
        if failed is not None:
            return f"{failed.expression} is not {describe(failed)}"
        return self._guards.why_not(local_scope)


def _holds_now(check: Check, scope: dict[str, Any]) -> bool:
    try:
        return holds(check, eval(check.expression, scope, {"L": {}}))  # noqa: S307
    except Exception:
        return False


def _changed(check: Check) -> Reason:
    return Reason(
        kind="value_changed",
        symbol=check.expression,
        detail=f"was {describe(check)} when the package was built",
    )


def describe(check: Check) -> str:
    """A check's expectation for a person."""
    kind, *rest = check.expected
    if kind == "literal":
        return str(rest[1])
    return " ".join(str(part) for part in (kind, *rest[:2]) if isinstance(part, str))


class GuardMaker:
    """Makes the guards of an image's variants.

    ``names`` are globals that have another name here, ``same_weights`` a check of frozen parameters.
    ``skipped`` says why variants cannot be used in this process at all.
    """

    def __init__(
        self,
        image: Image,
        names: Mapping[str, str],
        any_thread_count: bool,
        same_weights: Callable[[Any], bool] | None,
    ) -> None:
        self.skipped: list[Reason] = []
        self._image = image
        self._names = names
        self._any_thread_count = any_thread_count
        self._same_weights = same_weights

    def make(self, variant: Variant, scope: dict[str, Any]) -> CheckedGuards | None:
        """The guards over the globals ``scope``; None for a variant that is skipped."""
        helpers = {**guard_helpers(), "G": scope}
        for check in self._checks(variant.load_checks):
            if not _holds_now(check, helpers):
                self.skipped.append(_changed(check))
                return None
        guards = Guards(
            variant.guards,
            scope,
            variant.modes,
            self._image.guard_settings,
            self._names,
            self._any_thread_count,
        )
        checks = None
        if variant.call_checks:
            checks = CallChecks(self._checks(variant.call_checks), helpers)
            add_call_checks(guards.root, checks)
        if self._same_weights is not None:
            text = guard_text(["preheat: frozen parameters are unchanged"])
            guards.root.add_epilogue_lambda_guard(self._same_weights, *text)
        return CheckedGuards(guards, checks)

    def _checks(self, records: Sequence[image_format.Check]) -> tuple[Check, ...]:
        return tuple(
            Check(
                with_names(record.expression, self._names),
                record.subject,
                unmarshal(record.expected),
            )
            for record in records
        )
