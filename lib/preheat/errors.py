"""Every error that preheat raises on purpose, in one tree.

The first line of a class's docstring is its default message. ``remedy`` says what the reader can do
about it. ``exit_code`` is what the command ``preheat`` ends with when the error ends it; the numbers
are part of the command line's contract (see ``docs/cli.md``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preheat.verdict import Reason


class PreheatError(Exception):
    """Something went wrong in preheat.

    Raised never by itself: it is the root to catch everything that preheat raises on purpose.
    """

    exit_code: ClassVar[int] = 1
    default_remedy: ClassVar[str] = ""

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        if message is None:
            message = (type(self).__doc__ or type(self).__name__).splitlines()[0]
        super().__init__(message)
        self.message = message
        self.remedy = self.default_remedy if remedy is None else remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConfigurationError(PreheatError):
    """The configuration cannot be used.

    Raised by whoever reads ``preheat.toml`` or ``[tool.preheat]``. The message names the file and
    the key.
    """

    exit_code = 2
    default_remedy = "Correct the configuration and run the command again."


class UnsupportedVersionError(PreheatError):
    """This version of torch or Python is not one that preheat knows.

    Raised before any private torch API is touched.
    """

    exit_code = 2
    default_remedy = "Install a torch release from 2.11 to 2.14."


class TargetError(PreheatError):
    """The target's factory cannot be used.

    Raised in the build and proof process when a factory is missing, raises, returns something else
    than a ``Spec``, or when one of its examples fails without compilation.
    """

    exit_code = 3
    default_remedy = "Correct the factory; other targets are not affected."


class RefusedError(PreheatError):
    """The program cannot be kept warm.

    Raised in the build process for a program that torch cannot package or that preheat could not
    load back safely. Plain ``torch.compile`` still works for it.
    """

    exit_code = 3
    default_remedy = "Use plain torch.compile for this target, or change the part that is named."


class BuildError(PreheatError):
    """The build process failed.

    Raised by the daemon side for a build process that ended badly: by a signal, without a result,
    or with an error that the process reported.
    """

    exit_code = 3
    default_remedy = "Read the end of its log with `preheat status`."


class EnvironmentDiffersError(BuildError):
    """The build process finds another environment than it was asked for.

    Raised when the interpreter or its libraries changed between the daemon's question and the build.
    The daemon asks again.
    """

    default_remedy = "The next plan asks the interpreter again."


class ProofError(PreheatError):
    """The proof process did not accept the package.

    Raised when the built package compiled something, differed from eager, or ended the process.
    """

    exit_code = 3
    default_remedy = "Nothing was published. Read the end of its log with `preheat status`."


class StoreError(PreheatError):
    """The store cannot be used.

    Raised for a directory that cannot be created, written or read, or that is of another format.
    """

    exit_code = 2
    default_remedy = "Check the directory, its owner and its free space."


class CorruptedError(StoreError):
    """A file of the store is damaged.

    Raised when a ref, manifest or object does not parse, has another size or another digest than
    recorded. Readers treat the package as missing; the daemon builds it again.
    """

    exit_code = 3
    default_remedy = "The package will be built again by `preheat warm` or the daemon."


class OtherFormatError(CorruptedError):
    """A file of the store was written by another version of preheat.

    Raised when a ref or manifest has another format number. The package is missing for this version,
    which builds it again.
    """


class UntrustedStoreError(StoreError):
    """The store could have been changed by somebody else.

    Raised by the trust check: a path component, ref or object that another user owns or may write.
    """

    exit_code = 5
    default_remedy = "Make yourself or root the owner, and remove write permission for others."


class UnsignedPackageError(UntrustedStoreError):
    """The package is not signed by a key that is trusted here.

    Raised where signatures are required. ``kind`` is a stable word: ``signature_missing``,
    ``signature_wrong``, ``signature_unknown_key``, ``signature_damaged``, ``no_trusted_keys``,
    ``keys_not_usable`` or ``signatures_not_supported``.
    """

    exit_code = 5
    default_remedy = (
        "Look at `preheat keys list`; a daemon with a signing key builds and signs anew."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        kind: str = "signature_missing",
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.kind = kind


class BundleError(PreheatError):
    """The bundle cannot be used.

    Raised for a file that is not a bundle, was cut off, altered or made by another version; and for packages
    that cannot be put into one. Nothing of it becomes visible in the store.
    """

    exit_code = 2
    default_remedy = "Nothing was imported. Give a file that `preheat export` wrote."


class RemoteError(PreheatError):
    """The remote store cannot be used.

    Raised by ``preheat push`` and ``preheat pull`` for a remote that does not answer, runs out of room, or
    does not hold what its own refs name.
    """

    exit_code = 7
    default_remedy = (
        "Nothing was made visible by halves; run the command again to go on from there."
    )


class WaitTimeoutError(PreheatError):
    """The time limit passed.

    Raised when a build, a proof or a wait took longer than allowed.
    """

    exit_code = 4
    default_remedy = (
        "Raise the limit `timeout`, or look at what takes so long with `preheat status`."
    )


class NoDaemonError(PreheatError):
    """No daemon answers.

    Raised by commands that need a running daemon.
    """

    exit_code = 6
    default_remedy = "Start one with `preheat watch` or `preheat serve`."


class BusyError(PreheatError):
    """Somebody else holds this build.

    Raised when another process holds the build lock of the same target and environment.
    """

    exit_code = 75
    default_remedy = "Wait for it, or look at who builds with `preheat status`."


class IncompatibleError(PreheatError):
    """The package does not fit this process.

    Raised while a package is installed: the live code or a value in it is not what was built from.
    ``load`` turns it into a verdict; ``reasons`` says why, as data.
    """

    exit_code = 3

    def __init__(self, message: str | None = None, *, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message or "; ".join(str(reason) for reason in reasons) or None)
        self.reasons = tuple(reasons)


class MissError(PreheatError):
    """No package covers this call.

    Raised in a worker only under ``on_miss="error"``. ``reasons`` says why, as data.
    """

    exit_code = 3
    default_remedy = "Run `preheat explain` for the target, or choose another on_miss."

    def __init__(
        self,
        message: str | None = None,
        *,
        reasons: Sequence[Reason] = (),
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.reasons = tuple(reasons)
