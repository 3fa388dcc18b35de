"""The forms that this version can load, each with the number of its format. Pure; without torch.

Raise a form's number with every change of what its objects hold. A worker leaves forms of other numbers
alone, and the daemon builds their packages again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preheat.verdict import Reason

if TYPE_CHECKING:
    from preheat.manifest import Form, Manifest

FORMATS: Final = {"lean": 2, "dynamo": 4}


def other_format(form: Form) -> Reason | None:
    """Why this version cannot load a form, judged by its number alone."""
    known = FORMATS.get(form.kind)
    if form.format == known:
        return None
    knows = "does not know that form" if known is None else f"knows format {known}"
    return Reason(
        kind="other_format",
        symbol=form.kind,
        detail=f"the {form.kind} form has format {form.format}, and this version {knows}",
    )


def other_formats(manifest: Manifest) -> tuple[Reason, ...]:
    """The same of all forms of a package."""
    found = (other_format(form) for form in manifest.forms)
    return tuple(reason for reason in found if reason is not None)
