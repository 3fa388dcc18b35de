"""Which keys are trusted, which one signs, and what is asked of signatures: variables and judged files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from preheat.errors import (
    ConfigurationError,
    StoreError,
    UnsignedPackageError,
    UntrustedStoreError,
)
from preheat.store.files import Files
from preheat.store.reading import Reader
from preheat.store.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preheat.manifest import Ref
    from preheat.store.signatures import PublicKey, Signatures, Signer

SignatureLevel = Literal["require", "warn", "off"]
LEVEL_VARIABLE = "PREHEAT_SIGNATURES"
TRUSTED_VARIABLE = "PREHEAT_TRUSTED_KEYS"
SIGNING_VARIABLE = "PREHEAT_SIGNING_KEY"
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
CREDENTIAL_NAME = "preheat-signing-key"
SYSTEM_TRUSTED = Path("/etc/preheat/trusted_keys")


class Signing(msgspec.Struct, frozen=True):
    """What a reader asks of signatures, and the key that a writer signs with.

    ``trusted``: the file of trusted keys, None where there is none. ``key``: the private key's file.
    """

    level: SignatureLevel
    trusted: Path | None = None
    key: Path | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is verified at all."""
        return self.level != "off"

    def check(self, found: Signatures | None, ref: Ref) -> None:
        """Raises ``UnsignedPackageError`` for a package that no trusted key signed; or logs it."""
        # Here, and likewise below: a worker that trusts no keys does not pay for it.
        from preheat.store.signatures import check

        try:
            check(found, ref, self.keys())
        except UnsignedPackageError as error:
            self.refuse(error)

    def refuse(self, error: UnsignedPackageError) -> None:
        """Raises it; at the level ``warn`` it is logged alone."""
        if self.level != "warn":
            raise error
        import logging

        logging.getLogger("preheat.store").warning("%s", error)

    def keys(self) -> tuple[PublicKey, ...]:
        """All keys that are trusted: those of the file, and the own one. Raises ``UnsignedPackageError``."""
        try:
            listed = () if self.trusted is None else read_trusted(self.trusted)
            own = () if self.key is None else (read_signer(self.key).public,)
        except UnsignedPackageError:
            raise
        except (ConfigurationError, StoreError) as error:
            raise UnsignedPackageError(
                error.message, kind="keys_not_usable", remedy=error.remedy
            ) from error
        return (*listed, *own)


def signing_of(
    environ: Mapping[str, str],
    *,
    level: str | None = None,
    trusted: Path | None = None,
    key: Path | None = None,
) -> Signing:
    """What variables say, else the arguments (a configuration's values), else the places that are known.

    Without a word about the level it is ``require`` where keys are named, else ``off``.
    Raises ``ConfigurationError`` for an unknown level.
    """
    if named := environ.get(TRUSTED_VARIABLE):
        trusted = Path(named).absolute()
    elif trusted is None:
        trusted = next((path for path in known_places(environ) if _is_there(path)), None)
    key = signing_key(environ, key)
    level = environ.get(LEVEL_VARIABLE) or level
    if level is None:
        level = "off" if trusted is None and key is None else "require"
    if level not in get_args(SignatureLevel):
        raise ConfigurationError(f"signatures must be require, warn or off, not {level!r}.")
    return Signing(level, trusted, key)  # type: ignore[arg-type]


def signing_key(environ: Mapping[str, str], configured: Path | None) -> Path | None:
    """The private key's file: the variable, the configuration, the service manager's credential."""
    if named := environ.get(SIGNING_VARIABLE):
        return Path(named).absolute()
    if configured is not None:
        return configured
    credentials = environ.get(CREDENTIALS_VARIABLE)
    if credentials and _is_there(Path(credentials) / CREDENTIAL_NAME):
        return Path(credentials) / CREDENTIAL_NAME
    return None


def known_places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where trusted keys are looked for when nothing names a file: the machine's, then the user's."""
    return (SYSTEM_TRUSTED, user_directory(environ) / "trusted_keys")


def user_directory(environ: Mapping[str, str]) -> Path:
    """Where a user's own keys are."""
    base = environ.get("XDG_CONFIG_HOME", "")
    home = environ.get("HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "preheat"
    return Path(home if Path(home).is_absolute() else "/nonexistent") / ".config" / "preheat"


def read_trusted(path: Path) -> tuple[PublicKey, ...]:
    """The trusted keys of a file that nobody else can change.

    Raises ``ConfigurationError``, ``UntrustedStoreError``.
    """
    from preheat.store.signatures import MAX_KEYS_BYTES, parse_keys

    return parse_keys(_judged(path, MAX_KEYS_BYTES), str(path))


def read_signer(path: Path) -> Signer:
    """What signs with a private key that nobody else can read.

    Raises ``ConfigurationError``, ``UntrustedStoreError``.
    """
    from preheat.store.signatures import MAX_KEYS_BYTES, signer_of

    credentials = os.environ.get(CREDENTIALS_VARIABLE)
    # The service manager lets a service read its credentials by a group's bit or an access list.
    allowed = 0o040 if credentials and path.parent == Path(credentials) else 0
    return signer_of(_judged(path, MAX_KEYS_BYTES, private=True, allowed=allowed), str(path))


def _judged(path: Path, limit: int, *, private: bool = False, allowed: int = 0) -> bytes:
    files = Files()
    reader = Reader(files, Trust.of("require", frozenset()))
    opened = reader.open(path)
    if opened is None:
        raise ConfigurationError(
            f"There is no key file {path}.", remedy="Make or name one: see `preheat keys --help`."
        )
    descriptor, size = opened
    try:
        mode = stat.S_IMODE(files.fstat(descriptor).st_mode)
        if private and mode & 0o077 & ~allowed:
            raise UntrustedStoreError(
                f"{path} has the mode {mode:04o}: others could read the private key.",
                remedy=f"chmod 0600 {path}; if others may have read it, make a new one.",
            )
        if size > limit:
            raise ConfigurationError(f"{path}: {size} bytes is over the limit of {limit}.")
        data = reader.read_descriptor(path, descriptor, size)
    finally:
        files.close(descriptor)
    if data is None:
        raise ConfigurationError(f"There is no key file {path} any more.")
    return data


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # what cannot be looked at is not taken for absent
    return True
