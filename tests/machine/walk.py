"""Follows the beginning of docs/jobs.md on two fresh systems, nothing left out: part of `make test-machine`.

By hand, as root on Debian, with the packages mmdebstrap and systemd-container. Both systems are the fresh
Debian of ``boot.py``, without its environment for projects: `pip install` installs torch and preheat there.
They share a directory, and have no network.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import image
from support.walkthrough import MACHINES, PAGE, STAYS, Step, alike, files, steps

# In a mount namespace of its own, so that nothing stays mounted.
RUN = """
mount -t overlay overlay {place}/root \\
  -o lowerdir={system},upperdir={place}/changed,workdir={place}/work || exit 1
exec systemd-nspawn --quiet --directory={place}/root --as-pid2 --register=no --keep-unit --private-network \\
  --console=pipe --machine={name} --bind={team}:/mnt/team --bind-ro={checkout}:/checkout \\
  /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -uc "$1"
"""


# What torch says where there is no numpy, as the page remarks.
OF_TORCH = ("Failed to initialize NumPy", "cpu = _conversion_method_template")


class Machine:
    """A fresh system whose changes stay from one line to the next, and its shell with them."""

    def __init__(self, name: str, system: Path, run: Path, team: Path, checkout: Path) -> None:
        place = run / name
        for part in ("changed", "work", "root"):
            (place / part).mkdir(parents=True)
        self._script = RUN.format(
            name=name, system=system, place=place, team=team, checkout=checkout
        )
        self._before: list[str] = []

    def sh(self, command: str) -> tuple[int, tuple[str, ...]]:
        script = "\n".join(
            [*(f"{one} >/dev/null 2>&1" for one in self._before), "exec 2>&1", command]
        )
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", self._script, "sh", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if STAYS.search(command):
            self._before.append(command)
        # All that the command says is in ``stdout``; nspawn itself has remarks about its host's /run.
        said = done.stdout if done.returncode == 0 else done.stdout + done.stderr
        lines = said.splitlines()
        return done.returncode, tuple(one for one in lines if not any(w in one for w in OF_TORCH))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what the person who runs it wants to see


def follow(step: Step, machine: Machine) -> bool:
    """Whether the line succeeds and shows what the page shows. pip may say what it likes."""
    began = time.monotonic()
    code, seen = machine.sh(step.command)
    right = code == 0 and (alike(step.shown, seen) or step.command.startswith("pip "))
    say(
        f"{'ok' if right else 'NOT OK'}: {step.machine}$ {step.command} ({time.monotonic() - began:.1f} s)"
    )
    for line in seen:
        say(f"    {line}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path, help="a folder for the system, kept for the next run")
    place = parser.parse_args().place.absolute()
    system = image.system(place)
    run = place / "walk"
    shutil.rmtree(run, ignore_errors=True)
    (run / "team").mkdir(parents=True)
    checkout = image.checkout(place)
    machines = {name: Machine(name, system, run, run / "team", checkout) for name in MACHINES}
    for machine in machines.values():
        machine.sh("rm -rf /srv/shop")
    failed = passed = 0
    text = PAGE.read_text()
    for step in steps(text):
        if follow(step, machines[step.machine]):
            passed += 1
        else:
            failed += 1
        if passed + failed == 1:  # what a person writes with an editor, once there is the directory
            for name, content in files(text).items():
                path = run / "build" / "changed" / "srv" / "shop" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
    say(f"FOLLOWED docs/jobs.md: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
