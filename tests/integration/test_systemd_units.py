"""The units as `make install-systemd` installs them: systemd reads them, and they are well closed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DROP_INS = ("cpu-only", "network", "notify-reload", "resources", "signing")
ANALYZE = shutil.which("systemd-analyze") or ""
needs_systemd = pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not installed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation below a directory, with a program that stands for preheat."""
    root = tmp_path_factory.mktemp("installed")
    bin_directory = root / "bin"
    bin_directory.mkdir()
    (bin_directory / "preheat").symlink_to("/bin/true")
    subprocess.run(
        ["make", "install-systemd", f"DESTDIR={root}", f"SYSTEMD_BINDIR={bin_directory}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return root


def unit(installed: Path, name: str, directory: Path, *drop_ins: str) -> Path:
    """A unit with drop-ins, as one that could be started."""
    folder = "user" if name == "preheatd.service" else "system"
    source = installed / "usr/local/lib/systemd" / folder / name
    path = directory / name
    path.write_text(source.read_text())
    if drop_ins:
        more = directory / f"{name}.d"
        more.mkdir()
        for one in drop_ins:
            shutil.copy(installed / f"usr/local/share/preheat/systemd/{one}.conf", more)
    return path


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ANALYZE, *words], capture_output=True, text=True, check=False)


def test_everything_is_installed_and_nothing_is_left_to_fill_in(installed: Path) -> None:
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert files - {"bin/preheat"} == {
        "usr/local/lib/systemd/system/preheatd@.service",
        "usr/local/lib/systemd/system/preheatd@.socket",
        "usr/local/lib/systemd/system/preheat-warm@.service",
        "usr/local/lib/systemd/user/preheatd.service",
        "usr/local/lib/sysusers.d/preheat.conf",
        "usr/local/lib/sysctl.d/50-preheat.conf",
        *(f"usr/local/share/preheat/systemd/{name}.conf" for name in DROP_INS),
    }
    for name in files - {"bin/preheat"}:
        assert "@BINDIR@" not in (installed / name).read_text(), name


@needs_systemd
@pytest.mark.parametrize("name", ["preheatd@.service", "preheat-warm@.service", "preheatd.service"])
def test_a_unit_is_read_without_a_complaint(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = unit(installed, name, tmp_path)
    if "@" in name:
        path = path.rename(tmp_path / name.replace("@", "@models"))
    kind = ("--user",) if name == "preheatd.service" else ()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = analyze(*kind, "verify", str(path))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_the_socket_is_read_without_a_complaint(installed: Path, tmp_path: Path) -> None:
    """With the service that it starts."""
    paths = []
    for name in ("preheatd@.socket", "preheatd@.service"):
        path = unit(installed, name, tmp_path)
        paths.append(str(path.rename(tmp_path / name.replace("@", "@models"))))
    done = analyze("verify", *paths)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("drop_in", DROP_INS)
def test_a_drop_in_is_read_without_a_complaint(
    installed: Path, tmp_path: Path, drop_in: str
) -> None:
    path = unit(installed, "preheatd@.service", tmp_path, drop_in)
    done = analyze("verify", str(path))
    said = (done.stdout + done.stderr).strip()
    old = int(re.findall(r"\d+", analyze("--version").stdout)[0]) < 253
    if drop_in == "notify-reload" and old:
        # Why it is a drop-in: older ones do not know it, and go on with what the unit says.
        assert "notify-reload" in said
        return
    assert (done.returncode, said) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("name", "drop_ins", "most"),
    [
        ("preheatd@.service", (), 1.0),
        ("preheat-warm@.service", (), 1.0),
        ("preheatd@.service", ("cpu-only",), 0.8),
        ("preheatd@.service", ("network",), 2.0),
    ],
)
def test_a_unit_is_well_closed(
    installed: Path, tmp_path: Path, name: str, drop_ins: tuple[str, ...], most: float
) -> None:
    path = unit(installed, name, tmp_path)
    for one in drop_ins:
        more = installed / f"usr/local/share/preheat/systemd/{one}.conf"
        path.write_text(path.read_text() + more.read_text())
    done = analyze("security", "--offline=true", "--no-pager", str(path))
    found = re.search(r"exposure level for .*: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= most, done.stdout


def test_the_unit_asks_for_what_the_command_has() -> None:
    """A renamed option would keep the service from starting."""
    for file in ("systemd/preheatd@.service", "systemd/user/preheatd.service"):
        text = (ROOT / file).read_text()
        for line in re.findall(r"^Exec\w+=@BINDIR@/preheat (.*)$", text, re.MULTILINE):
            command, *options = line.split()
            said = subprocess.run(
                [sys.executable, "-m", "preheatd", command, "--help"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert said.returncode == 0
            for option in options:
                assert not option.startswith("--") or option in said.stdout, option


def test_the_static_account_is_the_unit_s() -> None:
    account = (ROOT / "systemd/sysusers.d/preheat.conf").read_text()
    assert "\nu preheat " in account
    for name in ("preheatd@.service", "preheat-warm@.service"):
        assert "\nUser=preheat\n" in (ROOT / "systemd" / name).read_text()
    socket = (ROOT / "systemd/preheatd@.socket").read_text()
    assert "\nSocketUser=preheat\nSocketGroup=preheat\nSocketMode=0660\n" in socket
