"""The Slurm recipes as shipped, run as slurmd runs them: as root, from nowhere, with no environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.container import ACCOUNTS, IN_FULL, IS_ROOT, Bind, Container

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.walkthrough import Walkthrough

RECIPES = Path(__file__).parents[2] / "docs" / "recipes" / "slurm"
SCRIPTS = {
    "prolog.sh": "/etc/slurm/preheat-prolog.sh",
    "epilog.sh": "/etc/slurm/preheat-epilog.sh",
    "task_prolog.sh": "/etc/slurm/preheat-task-prolog.sh",
}
STORE, STATE = "/var/cache/preheat/shop", "/var/lib/preheat/shop"
SHELLCHECK = shutil.which("shellcheck", path=str(Path(__file__).parents[2] / ".venv/bin")) or (
    shutil.which("shellcheck")
)
# As docs/service.md has it.
CONFIGURATION = """\
targets = ["app.warm:classifier"]
python = "/srv/shop/venv/bin/python"
cwd = "/srv/shop"

[env]
PYTHONPATH = "/srv/shop"
"""


def node(place: Path, walk: Walkthrough) -> Container:
    """A node as the recipe expects it: preheat, the project, the remote, and the recipe's own files."""
    made = Container(place)
    made.install_preheat("/opt/preheat", "/srv/shop/venv")
    for name in ("app", "work.py"):
        made.bind(walk.project / name, f"/srv/shop/{name}")
    made.bind(walk.remote, "/mnt/team/preheat")
    made.write("/etc/preheat/shop.toml", CONFIGURATION)
    settings = (RECIPES / "preheat.conf").read_text()
    if not IS_ROOT:  # there is one account in a user namespace
        settings = settings.replace("account=preheat", "account=root")
    made.write("/etc/preheat/slurm.conf", settings)
    for name, at in SCRIPTS.items():
        made.write(at, (RECIPES / name).read_text(), 0o755)
    return made


def set_(made: Container, **settings: str) -> None:
    """Change settings of the node, which must be there."""
    path = made.at("/etc/preheat/slurm.conf")
    text = path.read_text()
    for name, value in settings.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, name
    path.write_text(text)


def prolog(made: Container, **more: bool) -> subprocess.CompletedProcess[str]:
    """As slurmd starts it."""
    return made.run("/etc/slurm/preheat-prolog.sh", env={"SLURM_JOB_ID": "17"}, **more)  # type: ignore[arg-type]


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the script says; it never says anything to standard output, which would be an order to Slurm."""
    assert done.stdout == "", done
    said = [line for line in done.stderr.splitlines() if line.startswith("preheat-")]
    return [line.partition(": ")[2] for line in said]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory, walkthrough: Walkthrough) -> Container:
    """A node where the prolog has run. Tests only read it."""
    made = node(tmp_path_factory.mktemp("node"), walkthrough)
    done = prolog(made)
    assert done.returncode == 0, done
    assert "shop: hit   classifier" in lines(done), done
    return made


@pytest.fixture
def another(tmp_path: Path, walkthrough: Walkthrough, warmed: Container) -> Container:
    """A node that knows the interpreter's answers already, and has no package."""
    made = node(tmp_path / "another", walkthrough)
    shutil.copytree(warmed.at(STATE), made.at(STATE), symlinks=True)
    for path in (made.at(STATE), *made.at(STATE).rglob("*")):
        made.own(str(path.relative_to(made.root)), "preheat")
    return made


@pytest.mark.parametrize("name", [*SCRIPTS, "preheat.conf"])
def test_the_shell_understands_it(name: str) -> None:
    done = subprocess.run(["bash", "-n", RECIPES / name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if name != "preheat.conf":
        assert (RECIPES / name).stat().st_mode & 0o111


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_has_nothing_to_say(name: str) -> None:
    done = subprocess.run(
        [str(SHELLCHECK), "-x", RECIPES / name],
        cwd=RECIPES.parents[2],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_job_starts_warm(warmed: Container) -> None:
    """The prolog has brought the package; a worker of another account gets told where, and loads it.

    An epilog of another job sees that it is in use.
    """
    uid = ACCOUNTS["preheat"] if IS_ROOT else warmed.at("/").stat().st_uid
    assert warmed.at(STORE).stat().st_uid == uid
    assert warmed.at(STORE).stat().st_mode & 0o777 == 0o755
    assert warmed.at(STATE).stat().st_mode & 0o777 == 0o700
    told = warmed.run("/etc/slurm/preheat-task-prolog.sh", uid=ACCOUNTS["alice"])
    orders = [line.removeprefix("export ").partition("=") for line in told.stdout.splitlines()]
    variables = {name: value for name, _, value in orders}
    assert variables == {
        "PREHEAT_STORE": STORE,
        "PREHEAT_TRUSTED_UIDS": str(ACCOUNTS["preheat"] if IS_ROOT else 0),
    }
    with warmed.started(
        "/srv/shop/venv/bin/python",
        "-uc",
        "import runpy, time; kept = runpy.run_path('work.py'); time.sleep(1000)",
        env=variables,
        uid=ACCOUNTS["alice"],
        cwd="/srv/shop",
    ) as worker:
        said = [worker.stdout.readline() for _ in range(2)] if worker.stdout else []
        assert said[0].startswith("(32, 10) from the form lean"), said
        assert said[1] == "0 frames compiled; compiler imported: False\n"
        done = warmed.run("/etc/slurm/preheat-epilog.sh", env={"SLURM_JOB_ID": "17"})
        assert done.returncode == 0
        assert any("1 leased" in line for line in lines(done)), done


def test_what_the_job_says_itself_stays_in_front(warmed: Container) -> None:
    own = {"PREHEAT_STORE": "/scratch/mine", "PREHEAT_TRUSTED_UIDS": "4711"}
    told = warmed.run("/etc/slurm/preheat-task-prolog.sh", env=own, uid=ACCOUNTS["alice"])
    assert f"export PREHEAT_STORE=/scratch/mine:{STORE}\n" in told.stdout
    assert "export PREHEAT_TRUSTED_UIDS=4711," in told.stdout


def test_a_second_prolog_asks_nobody(warmed: Container) -> None:
    """Not even where the remote is gone."""
    empty = warmed.root.parent / "empty"
    empty.mkdir()
    done = warmed.run("/etc/slurm/preheat-prolog.sh", binds=(Bind(empty, "/mnt/team/preheat"),))
    assert (done.returncode, lines(done)) == (0, ["shop: warm already, with processors: all"])


@IN_FULL
def test_other_numbers_of_processors_are_other_packages(warmed: Container) -> None:
    count = len(os.sched_getaffinity(0))
    if count == 1:
        pytest.skip("this machine has one processor")
    before = warmed.at("/etc/preheat/slurm.conf").read_text()
    set_(warmed, processors="(all 1)")
    try:
        done = prolog(warmed)
    finally:
        warmed.at("/etc/preheat/slurm.conf").write_text(before)
    said = lines(done)
    assert done.returncode == 0
    assert said[0] == "shop: warm already, with processors: all"
    assert any(re.search(rf"cpu_count: built with {count}, there 1", line) for line in said), said
    assert said[-1] == "shop: not everything is warm; the job compiles the rest"


def test_the_epilog_keeps_what_is_in_use(warmed: Container) -> None:
    """With a limit that nothing meets: it is said, and the next job still starts warm."""
    done = warmed.run("/etc/slurm/preheat-epilog.sh", env={"SLURM_JOB_ID": "17"})
    assert done.returncode == 0
    assert any("0 of 1 package" in line for line in lines(done)), done
    before = warmed.at("/etc/preheat/slurm.conf").read_text()
    set_(warmed, store_max_size="1KiB")
    try:
        done = warmed.run("/etc/slurm/preheat-epilog.sh")
    finally:
        warmed.at("/etc/preheat/slurm.conf").write_text(before)
    assert done.returncode == 0
    assert lines(done)[-1] == "shop: what is in use is more than 1KiB", done
    assert lines(prolog(warmed)) == ["shop: warm already, with processors: all"]


def _no_remote(made: Container, empty: Path) -> None:
    made.bind(empty, "/mnt/team/preheat")


def _damaged_remote(made: Container, empty: Path) -> None:
    source = next(one.source for one in made.binds if one.at == "/mnt/team/preheat")
    shutil.copytree(source, empty, dirs_exist_ok=True)
    objects = [path for path in empty.rglob("objects/*/*") if path.is_file()]
    largest = max(objects, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.chmod(0o644)
    largest.write_bytes(data)
    made.bind(empty, "/mnt/team/preheat")


def _slow_remote(made: Container, empty: Path) -> None:
    """A directory whose first file never answers, as a mount that hangs."""
    (empty / "shop").mkdir()
    os.mkfifo(empty / "shop" / "FORMAT")
    made.bind(empty, "/mnt/team/preheat")
    set_(made, prolog_seconds="4")


def _no_preheat(made: Container, empty: Path) -> None:
    made.bind(empty, "/opt/preheat")


def _broken_preheat(made: Container, empty: Path) -> None:
    set_(made, preheat="/usr/bin/false")


def _no_account(made: Container, empty: Path) -> None:
    set_(made, account="nobody-has-this-name")


def _no_settings(made: Container, empty: Path) -> None:
    made.at("/etc/preheat/slurm.conf").unlink()


def _wrong_settings(made: Container, empty: Path) -> None:
    made.write("/etc/preheat/slurm.conf", "names=(shop\n")


def _no_configuration(made: Container, empty: Path) -> None:
    made.at("/etc/preheat/shop.toml").unlink()


def _store_of_somebody_else(made: Container, empty: Path) -> None:
    made.at(STORE).mkdir(parents=True)
    made.own(STORE, "alice")


TROUBLES: dict[str, tuple[Callable[[Container, Path], None], str]] = {
    "no remote": (_no_remote, r"There is no store at .*|the pull ended with code 7"),
    "a damaged remote": (_damaged_remote, r"the pull ended with code 7"),
    "a remote that hangs": (_slow_remote, r"not done after 4 s"),
    "no preheat": (_no_preheat, r"/opt/preheat/bin/preheat is not there"),
    "a preheat that fails": (_broken_preheat, r"the pull ended with code 1"),
    "no account": (_no_account, r"cannot be made|code \d+"),
    "no settings": (_no_settings, r"slurm.conf cannot be used"),
    "settings that are no shell": (_wrong_settings, r"slurm.conf cannot be used"),
    "no configuration": (_no_configuration, r"the pull ended with code 2"),
    "a store of somebody else": (_store_of_somebody_else, r"the pull ended with code [25]"),
}

# Of troubles that end in a pull that fails, CI tries one.
ALIKE = ("no remote", "no configuration", "a store of somebody else")


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(one, marks=[IN_FULL] if one in ALIKE else []) for one in TROUBLES],
)
def test_the_prolog_fails_open(trouble: str, another: Container, tmp_path: Path) -> None:
    if trouble in ("a store of somebody else", "no account") and not IS_ROOT:
        pytest.skip("accounts need root")
    (tmp_path / "empty").mkdir()
    change, words = TROUBLES[trouble]
    change(another, tmp_path / "empty")
    done = prolog(another)
    assert done.returncode == 0
    assert any(re.search(words, line) for line in lines(done)), done
    refs = another.at(STORE) / "v1" / "refs"
    assert not refs.is_dir() or not [path for path in refs.rglob("*") if path.is_file()]


def test_nothing_can_be_written(another: Container) -> None:
    done = prolog(another, read_only=True)
    assert done.returncode == 0
    assert any("cannot be made" in line for line in lines(done)), done


def test_ended_from_outside(another: Container) -> None:
    """As slurmd does after PrologEpilogTimeout. Nothing is left, and the code is 0."""
    another.write("/opt/slow", "#!/bin/sh\necho $$ >> /run/slow\nexec sleep 1000\n", 0o755)
    another.write("/run/slow", "", 0o666)
    set_(another, preheat="/opt/slow")
    script = """
        /etc/slurm/preheat-prolog.sh & child=$!
        while [ ! -s /run/slow ]; do sleep 0.1; done
        kill -TERM $child; wait $child; echo "code $?"
        for i in 1 2 3 4 5 6 7 8 9; do kill -0 $(cat /run/slow) 2>/dev/null || break; sleep 0.5; done
        kill -0 $(cat /run/slow) 2>/dev/null && echo "still there"
        true
    """
    done = another.run("bash", "-c", script)
    assert done.stdout == "code 0\n", done
    assert "ended from outside" in done.stderr


@IN_FULL
def test_two_jobs_begin_at_once(another: Container) -> None:
    one = "/etc/slurm/preheat-prolog.sh"
    script = f"{one} & {one} & wait -n; echo $?; wait -n; echo $?"
    done = another.run("bash", "-c", script)
    assert done.stdout == "0\n0\n"
    assert done.stderr.count("imported") == 1, done
    assert done.stderr.count("warm already") == 1, done
