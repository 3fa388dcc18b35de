"""Sets a user's quota: ``python -m support.quota MOUNT UID KIBIBYTES``; exit status 77 where that fails."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# From <linux/quota.h>.
_SET_QUOTA = 0x800008 << 8  # QCMD(Q_SETQUOTA, USRQUOTA)
_BLOCK_LIMITS = 1


class _Quota(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("hard", "soft", "space", "ihard", "isoft", "inodes")
        ),
        ("btime", ctypes.c_uint64),
        ("itime", ctypes.c_uint64),
        ("valid", ctypes.c_uint32),
    )


def main(mount: str, uid: str, kibibytes: str) -> None:
    """The device is found by where it is mounted."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    device = next(line.split()[0] for line in lines if line.split()[1] == mount)
    limit = int(kibibytes)
    quota = _Quota(hard=limit, soft=limit, valid=_BLOCK_LIMITS)
    libc = ctypes.CDLL(None, use_errno=True)
    command = ctypes.c_int(_SET_QUOTA)
    if libc.quotactl(command, device.encode(), int(uid), ctypes.byref(quota)) != 0:
        sys.stderr.write(f"quotactl: {os.strerror(ctypes.get_errno())}\n")
        sys.exit(77)


if __name__ == "__main__":
    main(*sys.argv[1:])
