"""``preheat keys``: making keys, trusting them, and signing what a store has."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preheat.errors import ConfigurationError, PreheatError, StoreError, UnsignedPackageError
from preheat.limits import read_limited
from preheat.store import DiskStore
from preheat.store.keys import (
    Signing,
    known_places,
    read_signer,
    read_trusted,
    signing_of,
    user_directory,
)
from preheat.store.signatures import MAX_KEYS_BYTES, PublicKey, new_key, parse_keys, signer_of
from preheatd.commands import print_json, say
from preheatd.config import find_config, load_config
from preheatd.options import Options, common_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preheat.manifest import Ref

_FILE = click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of trusted keys. Default: PREHEAT_TRUSTED_KEYS, the configuration's, the user's own.",
)


@click.group()
def keys() -> None:
    """Keys that sign packages, and those that are trusted here."""


@keys.command("new")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--name", default="", help="For people: who signs with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def new(path: Path | None, name: str, as_json: bool) -> int:
    """Make a private key in PATH (default: the user's signing_key), and print its public key.

    A file that is there already stays as it is, and the command fails.
    """
    path = (path or user_directory(os.environ) / "signing_key").absolute()
    pem = new_key()
    public = PublicKey(signer_of(pem, str(path)).public.raw, _checked(name))
    _create(path, pem)
    read_signer(path)  # it is good for nothing where it is not to be trusted; that is said at once
    if as_json:
        print_json({"private_key": str(path), **_shown(public)})
    else:
        say(f"wrote the private key {path}: keep it from everybody")
        say("its public key, for `preheat keys trust` where packages are loaded:")
        say(public.line)
    return 0


@keys.command("list")
@_FILE
@common_options
def list_keys(options: Options, file: Path | None) -> int:
    """Show the keys that are trusted here, and the one that signs."""
    signing = _signing(options)
    if file is not None:
        signing = Signing(signing.level, file.absolute(), signing.key)
    trusted = () if signing.trusted is None else read_trusted(signing.trusted)
    own = None if signing.key is None else read_signer(signing.key).public
    if options.as_json:
        print_json(
            {
                "policy": signing.level,
                "file": _text(signing.trusted),
                "trusted": [_shown(key) for key in trusted],
                "signing_key": _text(signing.key),
                "signs": None if own is None else _shown(own),
            }
        )
        return 0
    say(f"signatures: {signing.level}")
    say(f"trusted keys: {signing.trusted or 'no file'}")
    for key in trusted:
        say(f"  {key.id}  {key.line}")
    if own is not None:
        known = own.id in {key.id for key in trusted}
        say(f"signs with: {signing.key}")
        say(f"  {own.id}  {own.line}{'' if known else '  (not in the file of trusted keys)'}")
    return 0


@keys.command("trust")
@click.argument("key")
@click.option("--name", default="", help="For people: who signs with it.")
@_FILE
@common_options
def trust(options: Options, key: str, name: str, file: Path | None) -> int:
    """Trust KEY: a line `ed25519 BASE64 NAME`, or a file with such lines."""
    added = _given(key)
    if name:
        added = tuple(PublicKey(one.raw, _checked(name)) for one in added)
    path = _trusted_file(options, file)
    before = read_trusted(path) if path.exists() else ()
    known = {one.id for one in before}
    fresh = tuple(one for one in added if one.id not in known)
    if fresh or not path.exists():
        _write_trusted(path, (*before, *fresh))
    if options.as_json:
        print_json({"file": str(path), "added": [_shown(one) for one in fresh]})
    for one in () if options.as_json else added:
        say(f"{one.id} {'is' if one in fresh else 'was already'} trusted in {path}")
    return 0


@keys.command("remove")
@click.argument("id", metavar="ID")
@_FILE
@common_options
def remove(options: Options, id: str, file: Path | None) -> int:
    """Trust the key with this ID (or its beginning, 8 digits at least) no more.

    What only it has signed is UNTRUSTED from then on: `preheat keys resign` comes before.
    """
    path = _trusted_file(options, file)
    before = read_trusted(path)
    found = [one for one in before if len(id) >= 8 and one.id.startswith(id)]
    if len(found) != 1:
        raise ConfigurationError(
            f"{path}: {len(found) or 'no'} keys have an ID that begins with {id!r}.",
            remedy="`preheat keys list` shows them.",
        )
    _write_trusted(path, (one for one in before if one not in found))
    if options.as_json:
        print_json({"file": str(path), "removed": _shown(found[0])})
    else:
        say(f"{found[0].id} is not trusted any more in {path}")
    return 0


@keys.command("resign")
@click.option(
    "--unsigned",
    is_flag=True,
    help="Also what no trusted key has signed: you answer for all that the store holds.",
)
@common_options
def resign(options: Options, unsigned: bool) -> int:
    """Sign what the store has with the signing key, besides the signatures that are there.

    Only packages that a trusted key has signed, so that nothing of somebody else's gets a signature.
    Exit code 5 when some were left out.
    """
    config = load_config(options.config_path)
    key = config.signing.key
    if key is None:
        raise ConfigurationError(
            "No signing key is configured.",
            remedy="Set `key` in [signatures], or PREHEAT_SIGNING_KEY.",
        )
    store = DiskStore(config.store, signing=Signing("require", config.signing.trusted, key))
    done = [(ref, _resigned(store, ref, key, unsigned)) for ref in store.refs()]
    if options.as_json:
        print_json({"packages": [_outcome(ref, what) for ref, what in done]})
    for ref, what in () if options.as_json else done:
        say(f"{ref.target} ({ref.environment}): {what}")
    return UnsignedPackageError.exit_code if any(w.startswith("left") for _, w in done) else 0


def _resigned(store: DiskStore, ref: Ref, key: Path, unsigned: bool) -> str:
    try:
        manifest = store.read_manifest(ref.manifest)
        if not unsigned:
            store.check_signed(ref, manifest)
        for needed in manifest.objects():
            store.open_object(needed).close()  # what is signed is whole
        return "signed" if store.sign(ref, key) else "was signed already"
    except StoreError as error:
        return f"left out: {error}"


def _outcome(ref: Ref, what: str) -> dict[str, str]:
    return {"target": ref.target, "environment": ref.environment, "result": what}


def _shown(key: PublicKey) -> dict[str, str]:
    return {"id": key.id, "name": key.name, "line": key.line}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _checked(name: str) -> str:
    parse_keys(PublicKey(bytes(32), name).line.encode(), "--name")
    return name


def _given(key: str) -> tuple[PublicKey, ...]:
    """From the command line itself, or from a file that it names."""
    path = Path(key)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        return parse_keys(key.encode("utf-8", "replace"), "KEY")
    try:
        data = read_limited(path, MAX_KEYS_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    found = parse_keys(data, key)
    if not found:
        raise ConfigurationError(f"{path} holds no key.")
    return found


def _signing(options: Options) -> Signing:
    """As configured; without a configuration, as variables and known places say."""
    if options.config_path is None:
        try:
            find_config(Path.cwd())
        except PreheatError:
            return signing_of(os.environ)
    return load_config(options.config_path).signing


def _trusted_file(options: Options, file: Path | None) -> Path:
    if file is not None:
        return file.absolute()
    return _signing(options).trusted or known_places(os.environ)[-1]


def _write_trusted(path: Path, wanted: Iterable[PublicKey]) -> None:
    """Comments are not kept. A reader sees the old file or the new one, whole."""
    text = "# Keys whose packages may run here: see `preheat keys --help`.\n"
    text += "".join(f"{key.line}\n" for key in wanted)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    _create(temporary, text.encode(), 0o644)
    try:
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"{path} cannot be written: {error.strerror}.") from error
    read_trusted(path)


def _create(path: Path, data: bytes, mode: int = 0o600) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise ConfigurationError(
            f"{path} is there already.", remedy="Name another file; no key is written over."
        ) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}.") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode)
        file.flush()
        os.fsync(descriptor)
