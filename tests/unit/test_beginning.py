"""``preheat init``: what is found in a project's files, and the configuration that is written."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

import pytest

from preheat.errors import ConfigurationError
from preheatd.beginning import configuration_text, look_through, module_of, write_configuration
from preheatd.config import load_config

FILES = {
    "app/__init__.py": "",
    "app/warm.py": """
        import preheat
        from preheat import target as mark

        @preheat.target
        def first(): ...

        @mark(name="named")
        def second(): ...

        def third(): ...
    """,
    "app/serve.py": """
        import torch
        from torch import compile as quick
        model = torch.compile(len, mode="default")
        @quick
        def fast(): ...
    """,
    "other.py": "import make\n@make.target\ndef all_of_it(): ...\n",
    "src/inner/__init__.py": "import preheat\n@preheat.target\ndef here(): ...\n",
    "broken.py": "import preheat\n@preheat.target\ndef (",
    ".hidden/x.py": "import preheat\n@preheat.target\ndef hidden(): ...\n",
    "env/pyvenv.cfg": "",
    "env/x.py": "import preheat\n@preheat.target\ndef installed(): ...\n",
    "not-a-module/x.py": "import preheat\n@preheat.target\ndef unreachable(): ...\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def test_targets_and_compiled_programs_are_found(project: Path) -> None:
    found = look_through(project)
    assert set(found.factories) == {"app.warm:first", "app.warm:second", "inner:here"}
    assert found.factories["app.warm:first"].file == "app/warm.py"
    lines = (project / "app/warm.py").read_text().splitlines()
    assert "def first" in lines[found.factories["app.warm:first"].line - 1]
    assert [(place.file, place.line) for place in found.compiled] == [
        ("app/serve.py", 4),
        ("app/serve.py", 5),
    ]
    assert found.roots == ("src",)


def test_the_configuration_can_be_used_at_once(project: Path) -> None:
    file, _ = write_configuration(project)
    config = load_config(file)
    assert {target.name for target in config.targets} == {"first", "named", "here"}
    assert config.targets[0].env == {"PYTHONPATH": "src"}
    assert "app/serve.py, line 4" in file.read_text()


def test_one_that_is_there_stays(project: Path) -> None:
    (project / "preheat.toml").write_text("mine")
    with pytest.raises(ConfigurationError, match="there already"):
        write_configuration(project)
    assert (project / "preheat.toml").read_text() == "mine"


def test_a_project_without_anything(tmp_path: Path) -> None:
    text = configuration_text(look_through(tmp_path))
    assert tomllib.loads(text) == {}
    assert '# targets = ["package.module:function"]' in text


@pytest.mark.parametrize(
    ("file", "has_init", "wanted"),
    [
        ("warm.py", False, ("warm", "")),
        ("app/warm.py", True, ("app.warm", "")),
        ("app/__init__.py", True, ("app", "")),
        ("src/app/warm.py", False, ("app.warm", "src")),
        ("src/warm.py", True, ("src.warm", "")),
        ("lib.py", False, ("lib", "")),
        ("my-app/warm.py", False, ("", "")),
        ("__init__.py", False, ("", "")),
    ],
)
def test_a_file_is_imported_by_its_path(file: str, has_init: bool, wanted: tuple[str, str]) -> None:
    assert module_of(Path(file), has_init=has_init) == wanted
