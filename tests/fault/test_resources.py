"""Disks that are full, read-only or elsewhere; processes without descriptors or memory."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fault.test_daemon_killed import ENVIRONMENT as BUILT
from fault.test_daemon_killed import NOT_PASSED_ON, serving
from integration.test_daemon_double import make_project
from preheat.errors import StoreError
from preheat.store import DiskStore
from preheat.store.files import Files
from preheatd.config import load_config
from preheatd.project import open_project
from support import figures
from support.hosts import on_host, why_no_hosts, why_no_mounts
from support.manifests import ENVIRONMENT, manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parents[1]
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")


def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    passed = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **{"cwd": TESTS, "env": passed, **more},
    )


def mounted(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own; its arguments are ``$0``, ``$1``, ..."""
    if why := why_no_mounts():
        pytest.skip(f"no file system can be mounted here: {why}")
    return run("unshare", "-m", "sh", "-e", "-c", script, *arguments)


def note(what: str) -> None:
    figures.note("resources", **{what: 1})


# File systems that run full.

FILL = 'exec "$1" -m support.filled_store "$0/store" 40'


@pytest.mark.parametrize(
    ("options", "words"),
    [("size=1m", "No space left"), ("size=64m,nr_inodes=60", "No space left")],
    ids=["space", "inodes"],
)
def test_a_small_file_system_that_is_full(tmp_path: Path, options: str, words: str) -> None:
    done = mounted(f'mount -t tmpfs -o {options} none "$0"; {FILL}', str(tmp_path), sys.executable)
    check_filled(done, words)
    note(f"full: {options.partition('=')[0]}" if "," not in options else "full: inodes")


QUOTA = """
truncate -s 16M "$0/disk"
mkfs.ext4 -q -O quota -E quotatype=usrquota "$0/disk"
mkdir "$0/mnt"
mount -o loop,usrquota "$0/disk" "$0/mnt"
"$1" -m support.quota "$0/mnt" 65534 1024
mkdir -m 755 "$0/mnt/own"; chown 65534 "$0/mnt/own"; chmod 755 "$0" "$0/.." "$0/../.."
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$1" -m support.filled_store "$0/mnt/own/store" 40
"""


def test_a_quota_that_is_used_up(tmp_path: Path) -> None:
    done = mounted(QUOTA, str(tmp_path), sys.executable)
    if done.returncode == 77 or "mount:" in done.stderr or "mkfs" in done.stderr:
        pytest.skip(f"no file system with a quota can be made here: {done.stderr.strip()[-200:]}")
    check_filled(done, "quota")
    note("full: quota")


def check_filled(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["failure"] is not None
    assert words in said["failure"]
    assert "PREHEAT_STORE" in said["remedy"]
    assert said["whole"]
    assert said["left"] == []
    assert said["again"]


class Refusing(Files):
    """Every call that changes something fails, from a given one on."""

    def __init__(self, number: int, first: int) -> None:
        self.number, self.left = number, first

    def _maybe(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))

    def _maybe_open(self) -> None:
        if self.number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            self._maybe()

    def create(self, path: Path | str, dir_fd: int | None = None) -> int:
        self._maybe()
        return super().create(path, dir_fd)

    def open_for_reading(
        self, path: Path | str, *, follow: bool = False, dir_fd: int | None = None
    ) -> int:
        self._maybe_open()
        return super().open_for_reading(path, follow=follow, dir_fd=dir_fd)

    def open_component(self, name: str, dir_fd: int | None = None) -> tuple[int, os.stat_result]:
        self._maybe_open()
        return super().open_component(name, dir_fd)

    def open_directory(self, path: Path | str, dir_fd: int | None = None) -> int:
        self._maybe_open()
        return super().open_directory(path, dir_fd)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._maybe()
        return super().write(descriptor, data)

    def replace(self, source: Path | str, destination: Path | str, **where: Any) -> None:
        self._maybe()
        super().replace(source, destination, **where)

    def mkdir(self, path: Path | str, mode: int, dir_fd: int | None = None) -> None:
        self._maybe()
        super().mkdir(path, mode, dir_fd)


NUMBERS = ("EDQUOT", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC")


@pytest.mark.parametrize("name", NUMBERS)
def test_what_the_system_refuses_is_a_store_error_and_loses_nothing(
    tmp_path: Path, name: str
) -> None:
    root = tmp_path / "store"
    store = DiskStore(root, create=True)
    store.put_object(b"old")
    store.publish(manifest_of(b"old"))
    points = 0
    while True:
        failing = DiskStore(root, create=True, files=None)
        failing = DiskStore(root, create=False, files=Refusing(getattr(errno, name), points))
        try:
            failing.put_object(f"new {points}".encode())
            failing.publish(manifest_of(f"new {points}".encode()))
        except StoreError as error:
            assert str(root) in error.message
            package = DiskStore(root).read_package("model", ENVIRONMENT)
            assert package is not None
            assert package[1] == manifest_of(b"old")
        else:
            break
        points += 1
    assert points >= 5
    figures.note("resources", fault_points=points)
    package = DiskStore(root).read_package("model", ENVIRONMENT)
    assert package is not None
    assert package[1] == manifest_of(f"new {points}".encode())


# Read-only.


def test_a_store_on_a_read_only_file_system_is_read_and_says_so_when_written(
    tmp_path: Path,
) -> None:
    store = DiskStore(tmp_path / "store", create=True)
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))
    script = (
        "import sys; from pathlib import Path\n"
        "from support.filled_store import whole\n"
        "from preheat.store import DiskStore; from preheat.errors import StoreError\n"
        "root = Path(sys.argv[1]); assert whole(root, b'content')\n"
        "try: DiskStore(root, create=True).put_object(b'more')\n"
        "except StoreError as error: print(error.message, error.remedy)"
    )
    done = mounted(
        'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; exec "$1" -c "$2" "$0/store"',
        str(tmp_path),
        sys.executable,
        script,
    )
    assert done.returncode == 0, done.stderr
    assert "is on a read-only file system" in done.stdout
    assert "Loading from there works" in done.stdout
    note("read-only")


# Processes without something.


def limited(what: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (value, value))


READ_ALL = """
import sys
from preheat.errors import StoreError
from preheat.store import DiskStore
from support.manifests import ENVIRONMENT
import os
store = DiskStore(sys.argv[1])
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    store.read_package("model", ENVIRONMENT)
except StoreError as error:
    print("refused:", error.message)
for one in taken:
    os.close(one)
package = store.read_package("model", ENVIRONMENT)
store.open_object(package[1].objects()[0]).close()
print("read")
"""


def test_a_worker_without_a_free_descriptor_is_refused_and_goes_on(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "store", create=True)
    store.put_object(b"content")
    store.publish(manifest_of(b"content"))
    done = run(
        sys.executable,
        "-c",
        READ_ALL,
        str(tmp_path / "store"),
        preexec_fn=limited(resource.RLIMIT_NOFILE, 64),
    )
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout
    assert "Too many open files" in done.stdout
    assert done.stdout.endswith("read\n")
    note("no descriptor")


TAKE_MEMORY = """
import os, resource, sys
from preheat.store import DiskStore
from support.manifests import ENVIRONMENT
store = DiskStore(sys.argv[1])
package = store.read_package("model", ENVIRONMENT)
before = len(os.listdir("/proc/self/fd"))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, resource.RLIM_INFINITY))
try:
    store.open_object(package[1].objects()[0])
except MemoryError:
    print("no memory")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert len(os.listdir("/proc/self/fd")) == before
assert store.open_object(package[1].objects()[0]).read() == b"x" * 2**26
print("read")
"""


def test_an_object_for_which_there_is_no_memory_leaks_nothing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "store", create=True)
    store.put_object(b"x" * 2**26)
    store.publish(manifest_of(b"x" * 2**26))
    done = run(sys.executable, "-c", TAKE_MEMORY, str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no memory\nread\n"
    note("no memory")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group of the kernel with so many bytes of memory."""
    path = MEMORY_CGROUPS / f"preheat-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error}")
    try:
        yield path
    finally:
        path.rmdir()


def test_a_build_that_the_kernel_ends_for_its_memory(tmp_path: Path) -> None:
    """It is the build that goes, not who started it: the others are built."""
    file = make_project(
        tmp_path / "project", ("hungry", "modest"), build={"hungry": "allocate"}, extra=""
    )
    with memory_group(250 * 2**20) as group:
        join = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -m preheatd warm --json"
        done = run("sh", "-c", join, cwd=file.parent)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "SIGKILL (out of memory, perhaps)" in done.stdout
    store = DiskStore(tmp_path / "store")
    assert store.read_package("modest", BUILT) is not None
    assert store.read_package("hungry", BUILT) is None
    assert list(open_project(load_config(file), create=True).state.work.iterdir()) == []
    note("build ended by the kernel for its memory")


FEW = (12, 16, 20, 24, 28, 32, 40, 64) if figures.FULL else (16,)


@pytest.mark.parametrize("descriptors", FEW)
def test_a_command_with_few_descriptors_says_what_is_missing(
    tmp_path: Path, descriptors: int
) -> None:
    file = make_project(tmp_path / "project")
    done = run(
        sys.executable,
        "-m",
        "preheatd",
        "warm",
        "--json",
        cwd=file.parent,
        preexec_fn=limited(resource.RLIMIT_NOFILE, descriptors),
    )
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode != 0:
        logs = "".join(path.read_text() for path in tmp_path.rglob("logs/*"))
        assert "Too many open files" in done.stdout + done.stderr + logs, (done, logs)
    again = run(sys.executable, "-m", "preheatd", "warm", cwd=file.parent)
    assert again.returncode == 0, again.stdout + again.stderr
    note("few descriptors")


# Elsewhere.


def test_a_directory_that_can_only_be_polled(tmp_path: Path) -> None:
    """No inotify at all is to be had, as where other programs have used it up."""
    file = make_project(tmp_path / "project", extra='watch = ["app"]\n')
    without = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    if run("unshare", "--user", "--map-root-user", "sh", "-c", without, "sh", "true").returncode:
        pytest.skip("no user namespace can be made here, so inotify cannot be taken away")
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", without, "sh")
    with serving(file, prefix=prefix) as daemon:
        daemon.wait("build_published")
        daemon.wait("watch_polling")
        (file.parent / "app" / "encoder.py").write_text("def encoder():\n    return 2\n")
        daemon.wait("build_published", 2)
    note("polling only")


def test_a_clock_that_jumps_loses_nothing_of_a_store(tmp_path: Path) -> None:
    """To 1971 and to 2100: generations go on, and what is swept is at most what is half-written."""
    for count, year in enumerate((2026, 1971, 2100, 1971, 2026), start=1):
        at = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)
        store = DiskStore(tmp_path / "store", create=True, now=lambda at=at: at)  # type: ignore[misc]
        store.put_object(b"%d" % count)
        assert store.publish(manifest_of(b"%d" % count)).generation == count
        (store.layout.temporary / "elsewhere.0123.7.half-written").touch()
        store.sweep_temporary()
        package = store.read_package("model", ENVIRONMENT)
        assert package is not None
        store.open_object(package[1].objects()[0]).close()
    note("clock jumps")


def test_files_of_another_hosts_writer_are_left_to_it(tmp_path: Path) -> None:
    """The same process number lives here: it says nothing about the one over there."""
    if why := why_no_hosts():
        pytest.skip(f"a second host cannot be simulated: {why}")
    store = DiskStore(tmp_path / "store", create=True)
    script = (
        "import os, sys; from preheat.store import DiskStore\n"
        "from preheat.store.temporary import temporary_name\n"
        "root = DiskStore(sys.argv[1], create=True).layout\n"
        "(root.temporary / temporary_name()).write_bytes(b'half')"
    )
    done = run(*on_host("preheat-host-b", sys.executable, "-c", script, str(tmp_path / "store")))
    assert done.returncode == 0, done.stderr
    assert store.sweep_temporary() == ()
    (left,) = store.layout.temporary.iterdir()
    assert left.name.startswith("preheat-host-b.")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    assert DiskStore(tmp_path / "store", create=True, now=lambda: later).sweep_temporary() == (
        left,
    )
