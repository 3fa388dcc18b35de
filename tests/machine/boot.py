"""Boots a fresh Debian in a container and follows docs/service.md there: `make test-machine`.

By hand, as root on Debian, with the packages mmdebstrap and systemd-container. The container has a root,
processes, network and temporary files of its own: systemd as process 1 of a namespace that shares any
of these with the machine would end its processes and clean its /tmp. What is kept in the folder that is
given (the system, about 2 GB) makes the next run short; what a run writes is thrown away.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import image

# In a mount namespace of its own, so that nothing stays mounted.
BOOT = """
mount -t overlay overlay -o lowerdir={system},upperdir={run}/changed,workdir={run}/work {run}/root || exit 1
status=133  # of a machine that is booted again
while [ $status = 133 ]; do
  systemd-nspawn --quiet --directory={run}/root --boot --register=no --keep-unit --private-network \\
    --machine=node --bind-ro={checkout}:/checkout --console=read-only
  status=$?
done
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path, help="a folder for the system, kept for the next run")
    place = parser.parse_args().place.absolute()
    system = image.system(place)
    run = place / "run"
    shutil.rmtree(run, ignore_errors=True)
    for name in ("changed", "work", "root"):
        (run / name).mkdir(parents=True)
    script = BOOT.format(system=system, run=run, checkout=image.checkout(place))
    last = ""
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as machine:
        assert machine.stdout is not None
        for line in machine.stdout:
            print(line, end="", flush=True)  # noqa: T201 - what the person who runs it wants to see
            last = line.strip() if line.startswith("FOLLOWED") else last
    return 0 if last.endswith(" 0 failed") else 1


if __name__ == "__main__":
    raise SystemExit(main())
