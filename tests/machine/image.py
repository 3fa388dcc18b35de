"""The root of the container: a fresh Debian with the wheels that pip will ask for, and the checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "systemd systemd-sysv dbus libpam-systemd udev kmod python3 python3-venv python3-dev g++ make curl "
    "procps iproute2"
)
# Started when the machine is up; what it prints goes to the console, which is the result.
FOLLOW_UNIT = """\
[Unit]
After=multi-user.target
[Service]
Type=exec
ExecStart=python3 /checkout/tests/machine/follow.py
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
[Install]
WantedBy=default.target
"""


def run(*words: str | Path, **options: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, **options)  # type: ignore[call-overload]


def wheels(place: Path) -> None:
    """What `pip install 'preheat[daemon]'` needs, as a machine without a network can find it."""
    pip = (ROOT / ".venv/bin/python", "-m", "pip")
    constraints = ROOT / "constraints.txt"
    run(
        *pip,
        "download",
        "-q",
        "-d",
        place,
        "-c",
        constraints,
        f"{ROOT}[daemon,fleet,sign]",
        "pip",
        "setuptools",
    )
    for own in place.glob("preheat-*"):
        own.unlink()  # the checkout's disk brings it, as it is now


def system(place: Path) -> Path:
    """The fresh system in ``place``; made once, and kept."""
    place.mkdir(parents=True, exist_ok=True)
    found = place / "system"
    if not found.exists():
        wheels(place / "wheelhouse")
        debian(place, place / "wheelhouse")
    return found


def debian(place: Path, wheelhouse: Path) -> Path:
    """The system, made once: Debian 12 with a second interpreter in /srv/shop/venv."""
    tree, finished = place / "unfinished", place / "system"
    shutil.rmtree(tree, ignore_errors=True)
    include = PACKAGES.replace(" ", ",")
    run("mmdebstrap", "--variant=minbase", f"--include={include}", "bookworm", tree)
    shutil.copytree(wheelhouse, tree / "wheels")
    (tree / "checkout").mkdir()
    (tree / "etc/pip.conf").write_text(
        "[global]\nno-index = true\nfind-links = /wheels\n    /checkout/wheels\n"
    )
    (tree / "etc/systemd/system/follow.service").write_text(FOLLOW_UNIT)
    (tree / "etc/hostname").write_text("node\n")
    # Nothing of this machine's own configuration, that of pip among it, counts in there.
    inside = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "chroot", tree)
    run(*inside, "systemctl", "enable", "follow.service")
    run(*inside, "systemctl", "mask", "console-getty.service")
    run(*inside, "useradd", "--create-home", "--shell", "/bin/bash", "alice")
    run(*inside, "python3", "-m", "venv", "/srv/shop/venv")
    run(*inside, "/srv/shop/venv/bin/pip", "install", "-q", "torch")
    tree.rename(finished)
    return finished


def checkout(place: Path) -> Path:
    """The working tree as git has it, and its wheel; made for every run."""
    tree = place / "checkout"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    pip = (ROOT / ".venv/bin/python", "-m", "pip")
    run(*pip, "wheel", "-q", "--no-deps", "-w", tree / "wheels", ROOT)
    return tree
