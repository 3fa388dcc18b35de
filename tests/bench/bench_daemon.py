"""What a daemon costs while nothing happens, and how soon it decides. Run by hand: ``make bench-daemon``.

Real daemons and real files; the targets' interpreter is the tests' double, so nothing needs torch. One
line a figure, as a row of a table: aim, figure, and whether the aim is met. Nothing is asserted: machines
differ, and a busy machine is slow. Takes about two minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

import test_daemon_double as double

from preheat.store import DiskStore
from preheatd.config import load_config
from preheatd.project import open_project
from support.control import ask
from support.published import publish

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_SECONDS = 20.0
SETTLE_SECONDS = 0.05
LIMIT_SECONDS = 120.0


class Daemon:
    """A real daemon, and when each of its events arrived."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-m", "preheatd", "serve", "--json", "--config", str(file)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.events: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append((time.monotonic(), json.loads(line)))

    def until(self, action: str, detail: str = "", since: int = 0) -> float:
        """When an event like this arrived, the first one after ``since`` others."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            for at, event in self.events[since:]:
                if event["action"] == action and detail in event.get("detail", ""):
                    return at
            time.sleep(0.0005)
        raise TimeoutError(action)

    def quiet(self, seconds: float) -> None:
        """Wait until nothing has been heard for so long."""
        while not self.events or time.monotonic() - self.events[-1][0] < seconds:
            time.sleep(0.05)

    @property
    def proc(self) -> Path:
        return Path(f"/proc/{self.process.pid}")


@contextlib.contextmanager
def serving(file: Path, targets: int) -> Iterator[Daemon]:
    daemon = Daemon(file)
    try:
        daemon.until("planned", f"{targets} fresh")
        daemon.quiet(2.5)  # files that are younger than two seconds are read again
        yield daemon
    finally:
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(LIMIT_SECONDS)


def say(what: str, aim: float, figure: float, unit: str) -> None:
    verdict = "ok" if figure <= aim else "over"
    print(f"| {what} | {aim:g} {unit} | {figure:.4g} {unit} | {verdict} |", flush=True)  # noqa: T201


def idle(daemon: Daemon) -> None:
    """Memory, wake-ups and reads of a daemon that has nothing to do."""
    switches, reads = context_switches(daemon), system_reads(daemon)
    time.sleep(IDLE_SECONDS)
    woken, read = context_switches(daemon) - switches, system_reads(daemon) - reads
    text = (daemon.proc / "status").read_text()
    resident = int(text.partition("VmRSS:")[2].split()[0]) / 1024
    torch = "torch" in (daemon.proc / "maps").read_text()
    say("idle: resident memory", 50, resident, "MiB")
    say("idle: libraries of torch that are loaded", 0, float(torch), "")
    say("idle: wake-ups of all threads", 1, woken / IDLE_SECONDS, "a second")
    say("idle: read calls between two rescans", 0, read, "in 20 s")


def context_switches(daemon: Daemon) -> int:
    tasks = (daemon.proc / "task").iterdir()
    texts = [(task / "status").read_text() for task in tasks]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


def system_reads(daemon: Daemon) -> int:
    return int((daemon.proc / "io").read_text().partition("syscr:")[2].split()[0])


def one_file(daemon: Daemon, file: Path, rounds: int = 15) -> None:
    """An edit that changes no program, so that nothing but the decision follows."""
    seconds = []
    for number in range(rounds):
        since = len(daemon.events)
        replace(file, f"# {number}\ndef decoder():\n    return 1\n")
        written = time.monotonic()
        seconds.append(daemon.until("planned", since=since) - written - SETTLE_SECONDS)
        daemon.quiet(0.3)
    say("decision after the settle time, one file", 10, statistics.median(seconds) * 1e3, "ms")


def replace(file: Path, text: str) -> None:
    """As an editor saves."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)


def git(project: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*command, *words], cwd=project, check=True, capture_output=True)


def checkout(directory: Path, files: int, aim: float) -> None:
    """A checkout that rewrites so many files."""
    file = double.make_project(directory / "project")
    package = file.parent / "app"
    git(file.parent, "init")
    for branch, text in (("main", "x = 1\n"), ("other", "x = 22\n")):
        for number in range(files):
            (package / f"m{number}.py").write_text(text)
        git(file.parent, "add", "app")
        if branch != "main":
            git(file.parent, "checkout", "-b", branch)
        git(file.parent, "commit", "-m", branch)
    with serving(file, 1) as daemon:
        since = len(daemon.events)
        git(file.parent, "checkout", "main")
        ended = time.monotonic()
        daemon.until("planned", since=since)
        daemon.quiet(3.0)
        plans = [at for at, one in daemon.events[since:] if one["action"] == "planned"]
        say(f"checkout of {files} files: plans", 1, len(plans), "")
        say(f"checkout of {files} files: decided after its end", aim, plans[-1] - ended, "s")


def many_targets(directory: Path, count: int = 1000) -> None:
    """Packages of as many targets, published without builds."""
    names = tuple(f"target_{number}" for number in range(count))
    file = double.make_project(directory / "project", names)
    store = DiskStore(directory / "store", create=True)
    for name in names:
        publish(file, store, name)
    command(file, "plan")  # the interpreter's answer is kept from the first time on
    plain = f"{count} targets, no daemon: the command"
    say(f"{plain} `preheat plan`", 2, command(file, "plan"), "s")
    say(f"{plain} `preheat status`", 0.1, command(file, "status"), "s")
    with serving(file, count) as daemon:
        asked = f"{count} targets, a daemon runs:"
        state = open_project(load_config(file), create=False).state
        (owner,) = state.running_daemons(file)
        say(f"{asked} its answer to /v1/status", 100, median_ms(owner.control, "/v1/status"), "ms")
        say(f"{asked} a plan, asked for", 2, median_ms(owner.control, "/v1/plan") / 1e3, "s")
        say(f"{asked} the command `preheat status`", 0.1, command(file, "status"), "s")
        assert daemon.process.poll() is None


def command(file: Path, what: str) -> float:
    """How many seconds a command takes, its interpreter's start among them."""
    words = [sys.executable, "-m", "preheatd", what, "--json", "--config", str(file)]
    began = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def median_ms(place: str, path: str, rounds: int = 5) -> float:
    """How many milliseconds an answer takes over the socket."""
    seconds = []
    for _ in range(rounds):
        began = time.monotonic()
        assert ask(Path(place), path).status == 200
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds) * 1e3


def main() -> None:
    for name in ("PREHEAT_STORE", "PREHEAT_STATE", "STATE_DIRECTORY", "CACHE_DIRECTORY"):
        os.environ.pop(name, None)
    place = Path(tempfile.mkdtemp(prefix="bench-daemon-"))
    try:
        print("| what | aim: at most | measured | |\n| --- | ---: | ---: | --- |")  # noqa: T201
        file = double.make_project(place / "idle" / "project", ("encoder", "decoder", "third"))
        with serving(file, 3) as daemon:
            idle(daemon)
            one_file(daemon, file.parent / "app" / "decoder.py")
        checkout(place / "500", 500, 1.0)
        checkout(place / "3000", 3000, 1.0)
        many_targets(place / "many")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
