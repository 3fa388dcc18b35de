"""The one seam between the store and the operating system.

Every file-system call of the store goes through an instance of ``Files``, so that a double can fail,
count or end the process at any one of them. Nothing here decides anything: each method is one call.
Only ``locks`` goes past it, because the lock is a library's.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

_NO_DIRECTORY_FSYNC = frozenset({errno.EINVAL, errno.ENOTSUP})


class Files:
    """The real calls. Each raises ``OSError`` as the operating system does, with nothing wrapped."""

    def open_for_reading(self, path: Path, *, follow: bool = False) -> int:
        """A descriptor, closed on exec. A symbolic link in the last component is ELOOP unless ``follow``."""
        # O_NONBLOCK: a FIFO in place of an object must not hang a worker before fstat refuses it.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(path, flags if follow else flags | os.O_NOFOLLOW)

    def create(self, path: Path) -> int:
        """A descriptor for writing of a new file of mode 0600. EEXIST when there is one already."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def open_lock(self, path: Path) -> int:
        """A descriptor of a file that is only there to be locked; made, mode 0600, if it is missing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(path, flags, 0o600)

    def try_lock(self, descriptor: int, *, exclusive: bool) -> bool:
        """Take a lock of flock(2) if nobody else's is in the way, without waiting; says whether it is ours.

        It ends when every copy of the descriptor is closed, a forked child's included. Other errors than
        that it is taken say that locks do not work here: NFS wants a descriptor for writing (EBADF), and
        some file systems have none at all.
        """
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def keep_access_time(self, descriptor: int) -> None:
        """Reading this descriptor leaves no trace in the time of access. EPERM for another owner's file."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NOATIME)

    def read(self, descriptor: int, count: int) -> bytes:
        """At most ``count`` bytes; none at the end of the file."""
        return os.read(descriptor, count)

    def map(self, descriptor: int, size: int) -> mmap.mmap:
        """The first ``size`` bytes in memory; what is written there stays private to this process."""
        import mmap  # only here: most processes map nothing by themselves

        private = mmap.MAP_PRIVATE
        return mmap.mmap(descriptor, size, flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def write(self, descriptor: int, data: memoryview) -> int:
        """How many bytes were taken: possibly fewer than given."""
        return os.write(descriptor, data)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def fstat(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def lstat(self, path: Path) -> os.stat_result:
        return path.lstat()

    def readlink(self, path: Path) -> Path:
        return path.readlink()

    def fchmod(self, descriptor: int, mode: int) -> None:
        os.fchmod(descriptor, mode)

    def fchown(self, descriptor: int, uid: int, gid: int) -> None:
        os.fchown(descriptor, uid, gid)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def touch(self, descriptor: int) -> None:
        """Set the modification time to now; needs ownership, not write permission."""
        os.utime(descriptor)

    def replace(self, source: Path, destination: Path) -> None:
        """Atomic rename over whatever is there."""
        source.replace(destination)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path, mode: int) -> None:
        """``mode`` is subject to the umask."""
        path.mkdir(mode)

    def chmod(self, path: Path, mode: int) -> None:
        path.chmod(mode)

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries)

    def entries(self, directory: Path) -> list[tuple[str, os.stat_result]]:
        """The names in a directory, sorted, each with its lstat; what vanishes meanwhile is left out."""
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
        return sorted(found)

    def mount(self, path: Path) -> os.statvfs_result:
        """What is known of the file system: among its flags whether it keeps times of access."""
        return os.statvfs(path)

    def fsync_directory(self, path: Path) -> None:
        """Make renames in a directory durable, where the file system offers that at all."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # CIFS and some FUSE file systems have no fsync of directories; there is nothing better to do.
            if error.errno not in _NO_DIRECTORY_FSYNC:
                raise
        finally:
            os.close(descriptor)

    def process_exists(self, pid: int) -> bool:
        """Whether this host's process table, as this process sees it, has ``pid``."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            return True
        return True
