"""The forms that this version can load, each with the number of its format, and the kinds of code in them.

Pure; without torch. Raise a form's number with every change of what its objects hold. A worker leaves forms
of other numbers alone, and the daemon builds their packages again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preheat.verdict import Reason

if TYPE_CHECKING:
    from preheat.manifest import Form, Manifest

FORMATS: Final = {"lean": 3, "dynamo": 5}

# Kinds of compiled code inside of forms (``preheat.kinds``). Names that begin so are of other distributions,
# and only the interpreter that they are installed for knows them.
KINDS: Final = ("inductor", "eager", "aot_eager", "regional", "aoti")
CUSTOM: Final = "custom/"


def other_format(form: Form) -> Reason | None:
    """Why this version cannot load a form, judged by its number alone."""
    known = FORMATS.get(form.kind)
    if form.format == known:
        unknown = (unknown_kind(name) for name in form.code if not _is_known(name))
        return next(unknown, None)
    knows = "does not know that form" if known is None else f"knows format {known}"
    return Reason(
        kind="other_format",
        symbol=form.kind,
        detail=f"the {form.kind} form has format {form.format}, and this version {knows}",
    )


def _is_known(kind: str) -> bool:
    return kind in KINDS or kind.startswith(CUSTOM)


def unknown_kind(name: str) -> Reason:
    """Why code of a kind cannot be loaded: nothing here implements it."""
    if name.startswith(CUSTOM):
        detail = (
            f"no installed distribution has an entry point {name.removeprefix(CUSTOM)!r} in the group "
            "'preheat.kinds'"
        )
    else:
        detail = f"this version knows {', '.join(KINDS)}"
    return Reason(kind="unknown_kind", symbol=name, detail=detail)


def other_formats(manifest: Manifest) -> tuple[Reason, ...]:
    """The same of all forms of a package."""
    found = (other_format(form) for form in manifest.forms)
    return tuple(reason for reason in found if reason is not None)
