"""Another host on the same machine: other process numbers, another host name."""

from __future__ import annotations

import functools
import subprocess

_UNSHARE = ("unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child")


def on_host(name: str, *command: str) -> tuple[str, ...]:
    """The command line that runs ``command`` as process 1 of a host of its own with this name."""
    return (*_UNSHARE, "sh", "-c", 'hostname "$0" && exec "$@"', name, *command)


@functools.cache
def why_no_hosts() -> str:
    """Why namespaces cannot be had here; empty where they can."""
    return _try(on_host("preheat-host-b", "true"))


@functools.cache
def why_no_mounts() -> str:
    """Why file systems cannot be mounted here; empty where they can."""
    return _try(("unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"))


def _try(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return "" if done.returncode == 0 else f"{command[0]}: {done.stderr.strip()}"
