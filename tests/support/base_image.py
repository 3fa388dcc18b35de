"""What stands for `python:3.12` and its like: this machine's programs, and installers that install nothing.

`pip` and `apt-get` note what they were asked for. After `pip install 'preheat[...]'` there is the command
`preheat`, and not before, as it would be there.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from support.container import PATH, Container

if TYPE_CHECKING:
    from pathlib import Path

ASKED = "/image/asked"
ENVIRONMENT = {"PATH": f"/image/bin:{PATH}", "LANG": "C.UTF-8"}
_PIP = """\
#!/bin/sh
echo "pip $*" >> /image/asked
case "$*" in *preheat*\\[*) printf '#!/bin/sh\\nexec {python} -m preheatd "$@"\\n' > /image/bin/preheat
chmod 755 /image/bin/preheat;; esac
"""
_PYTHON = """\
#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then shift 2; exec /image/bin/pip "$@"; fi
exec {python} "$@"
"""
_APT = '#!/bin/sh\necho "apt-get $*" >> /image/asked\n'


def base_image(place: Path) -> Container:
    """A container of it, with its own ``pip``, ``python`` and ``apt-get`` in ``ENVIRONMENT``'s path."""
    made = Container(place)
    python = os.fspath(sys.executable)
    made.write("/image/bin/pip", _PIP.format(python=python), 0o755)
    made.write("/image/bin/python", _PYTHON.format(python=python), 0o755)
    made.write("/image/bin/apt-get", _APT, 0o755)
    made.write(ASKED, "")
    return made


def asked(made: Container) -> list[str]:
    """What installers were asked for."""
    return made.at(ASKED).read_text().splitlines()
