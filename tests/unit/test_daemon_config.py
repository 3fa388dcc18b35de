"""Configuration: what is read, and how bad input is explained."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from preheat.errors import ConfigurationError
from preheat.store import find_store
from preheatd.config import Config, load_config

if TYPE_CHECKING:
    from pathlib import Path


def load(path: Path, text: str, *, name: str = "preheat.toml") -> Config:
    file = path / name
    file.write_text(text)
    return load_config(file, environ={})


def test_the_shortest_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, 'targets = ["app.warm:encoder"]')

    (target,) = config.targets
    assert (target.name, target.factory, target.module) == (
        "encoder",
        "app.warm:encoder",
        "app.warm",
    )
    assert (target.python, target.cwd) == (sys.executable, tmp_path)
    assert (config.project, config.jobs, config.watch) == (tmp_path, 1, None)


def test_every_key_of_a_target(tmp_path: Path) -> None:
    for name in ("sub", "app", "data"):
        (tmp_path / name).mkdir()
    config = load(
        tmp_path,
        f"""
        watch = ["app", "data"]
        store = "~/packages"
        jobs = 3
        timeout = 5
        env = {{ A = "default", B = "default" }}
        [[target]]
        factory = "app.warm:encoder"
        name = "first"
        python = "{sys.executable}"
        env = {{ A = "own" }}
        cwd = "sub"
        jobs = 1
        device = "cuda"
        priority = 7
        tolerance = {{ float32 = [0.1, 0.2] }}
        """,
    )

    (target,) = config.targets
    assert (target.name, target.jobs, target.device, target.priority) == ("first", 1, "cuda", 7)
    assert target.env == {"A": "own", "B": "default"}
    assert target.timeout == 5.0
    assert target.cwd == tmp_path / "sub"
    assert target.tolerance == {"float32": (0.1, 0.2)}
    assert config.watch == (tmp_path / "app", tmp_path / "data")
    assert config.store.name == "packages"
    assert config.jobs == 3


def test_the_name_that_the_factory_declares_counts(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import preheat\n@preheat.target(name='declared')\ndef function(): ...\n"
    )

    config = load(tmp_path, 'targets = ["app:function", "app:other", "missing:third"]')

    assert [target.name for target in config.targets] == ["declared", "other", "third"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("targets = [", ["not valid TOML"]),
        ("", ["`targets` is empty"]),
        ('targets = ["app"]', ["`targets[0]`", "'app'", "package.module:function"]),
        ("targets = 3", ["`targets`", "expected `array`"]),
        ('target = ["a:b"]\n', ["`target[0]`", "expected `object`"]),
        ('targets = ["a:b"]\nwatsch = []', ["unknown key `watsch`", "`watch`"]),
        ('[[target]]\nfactory = "a:b"\ntimeuot = 1', ["`timeuot`", "target[0]", "`timeout`"]),
        ('[[target]]\nfactory = "a:b"\ntimeout = "1"', ["`target[0].timeout`", "got `str`"]),
        ('[[target]]\nfactory = "a:b"\ntimeout = 0', ["`target[0]`", "`timeout`", "above 0"]),
        ('[[target]]\nfactory = "a:b"\ntimeout = nan', ["`timeout`"]),
        ('[[target]]\nfactory = "a:b"\ndevice = "tpu"', ["`target[0].device`", "tpu"]),
        ('[[target]]\nname = "x"', ["`target[0]`", "`factory`"]),
        ('[[target]]\nfactory = "a:b"\nname = "../x"', ["`target[0]`", "'../x'"]),
        ('[[target]]\nfactory = "a:b"\ncwd = "nothing"', ["`target[0]`", "`cwd`"]),
        ('[[target]]\nfactory = "a:b"\nenv = { A = 1 }', ["`target[0].env", "got `int`"]),
        ('[[target]]\nfactory = "a:b"\nenv = { "A=B" = "1" }', ["`env`", "'A=B'"]),
        ('[[target]]\nfactory = "a:b"\ncwd = "a\\u0000"', ["NUL"]),
        ('targets = ["a:b"]\nwatch = ["nothing"]', ["`watch[0]`", "nothing"]),
        ('targets = ["a:b", "c:b"]', ["two targets", "`b`", "a:b", "c:b"]),
        ('targets = ["a:b"]\njobs = 0', ["`jobs`", "1 or more"]),
    ],
)
def test_bad_input_names_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)

    message = str(caught.value)
    assert all(word in message for word in [str(tmp_path / "preheat.toml"), *words]), message
    assert "\n" not in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("written", "path"), [("./nothing", "nothing"), ("nothing-3.11", "")])
def test_an_interpreter_that_is_missing_is_the_trouble_of_its_targets(
    tmp_path: Path, written: str, path: str
) -> None:
    """A configuration that cannot be used would stop the others."""
    target = f'[[target]]\nfactory = "a:b"\npython = "{written}"'
    config = load(tmp_path, f'targets = ["c:d"]\n{target}')
    assert config.targets[1].python == (str(tmp_path / path) if path else written)


def test_a_table_in_pyproject(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\n[tool.preheat]\ntargets = ["a:b"]'

    assert load(tmp_path, text, name="pyproject.toml").targets[0].name == "b"

    with pytest.raises(ConfigurationError, match=r"unknown key `foo` in \[tool.preheat\]"):
        load(tmp_path, "[tool.preheat]\nfoo = 1", name="pyproject.toml")
    with pytest.raises(ConfigurationError, match=r"no table \[tool.preheat\]"):
        load(tmp_path, "[tool.other]", name="pyproject.toml")


def test_the_nearest_file_upwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "preheat.toml").write_text('targets = ["x:far"]')
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]")
    monkeypatch.chdir(below)

    assert load_config(environ={}).targets[0].name == "far"

    (tmp_path / "a" / "pyproject.toml").write_text('[tool.preheat]\ntargets = ["x:near"]')
    assert load_config(environ={}).targets[0].name == "near"
    assert load_config(tmp_path, environ={}).targets[0].name == "far"


def test_no_configuration_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="--config"):
        load_config(environ={})
    with pytest.raises(ConfigurationError, match="no such file"):
        load_config(tmp_path / "absent.toml", environ={})


@pytest.mark.parametrize("variable", [None, "PREHEAT_STORE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("written", ["", 'store = "packages"\n', 'store = "~/packages"\n'])
def test_the_store_is_where_a_worker_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, written: str
) -> None:
    for name in ("PREHEAT_STORE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "from-variable"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "preheat.toml").write_text(f'{written}targets = ["a:b"]')

    assert load_config().store == find_store()


def test_selecting_targets(tmp_path: Path) -> None:
    config = load(tmp_path, 'targets = ["a:encoder", "a:decoder"]')

    assert [target.name for target in config.select(["decoder"]).targets] == ["decoder"]
    assert config.select([]) is config
    with pytest.raises(ConfigurationError, match="Did you mean `encoder`"):
        config.select(["encodr"])


@pytest.mark.parametrize(
    "text",
    [
        "jobs = 0x" + "9" * 100_000,
        f"targets = ['{'x' * 5000}:f']",
        f"targets = ['a:f']\ncwd = '{'x' * 5000}'",
        f"targets = ['a:f']\nwatch = ['{'x' * 5000}']",
        "targets = ['a:f']\ncwd = '~no-such-account/'",
        "targets = ['a:f']\n[control]\nsocket = '~no-such-account/s'",
        "a = " + "[" * 100_000,
        "a." * 100_000 + "b = 1",
        "a = '" + "x" * 2_000_000 + "'",
    ],
)
def test_values_that_no_system_call_takes_are_configuration_errors(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "preheat.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"preheat\.toml") as raised:
        load_config(tmp_path)
    assert len(str(raised.value)) < 2000
