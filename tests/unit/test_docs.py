"""The documentation against the code: links, snippets, and every list that a program may rely on."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import tomllib
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pytest

from preheat import errors
from preheat.loaded import LoadReport
from preheat.manifest import Manifest
from preheat.policy import OnMiss
from preheat.spec import Spec
from preheat.store.collecting import Collected
from preheat.store.collection import (
    REASONS,
    CollectionPlan,
    Deletion,
    Held,
    Hold,
    Shortfall,
)
from preheat.verdict import Verdict
from preheatd import cli, events, probe
from preheatd.bench.edit_figures import (
    EDITS,
    PROGRAMS,
    EditFigures,
    EditResults,
    EditSample,
    ProgramResult,
)
from preheatd.bench.figures import (
    WAYS,
    CaseResult,
    Figures,
    ImageSize,
    Machine,
    Ratios,
    Results,
    Sample,
    Target,
)
from preheatd.builds import kind_of
from preheatd.collection.settings import CollectionTable
from preheatd.config import CONFIG_NAME, load_config
from preheatd.control import client, refusals, routes
from preheatd.control.settings import ControlTable
from preheatd.demo import DemoResult
from preheatd.flight.settings import FleetTable
from preheatd.plan import Action
from preheatd.politeness.settings import PolitenessTable
from preheatd.written import PYPROJECT_NAME, ConfigTable, TargetTable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "recipes" / "README.md",
]
SOURCES = [*sorted((ROOT / "lib").rglob("*.py")), *sorted((ROOT / "daemon").rglob("*.py"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def snippets(language: str) -> list[Any]:
    """Every fenced block of a language on any page, each as a test parameter."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match[2], id=f"{page.name}:{line}"))
    return found


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_place_of_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"/(?:work|root|home)/\S*|/tmp/\S+", text) == []


@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_snippets_compile(snippet: str) -> None:
    ast.parse(snippet)


@pytest.mark.parametrize("snippet", snippets("json"))
def test_json_snippets_parse(snippet: str) -> None:
    try:
        json.loads(snippet)
    except json.JSONDecodeError:
        for line in snippet.splitlines():  # events: one object a line
            json.loads(line)


@pytest.mark.parametrize("snippet", snippets("toml"))
def test_configuration_snippets_load(snippet: str, tmp_path: Path) -> None:
    # Nothing is made outside of the test's own directory, wherever a page says that things are.
    snippet = re.sub(r'"(/[^"]*)"', lambda match: f'"{tmp_path}{match[1]}"', snippet)
    table = tomllib.loads(snippet)
    inside_pyproject = "tool" in table
    table = table["tool"]["preheat"] if inside_pyproject else table
    written = msgspec.convert(table, ConfigTable)
    if not (written.targets or written.target):
        return  # a part of a configuration, which cannot be loaded by itself
    _make_what_it_names(written, tmp_path)
    file = tmp_path / (PYPROJECT_NAME if inside_pyproject else CONFIG_NAME)
    file.write_text(snippet)
    config = load_config(file, environ={"PATH": ""})
    assert len(config.here().targets) == len(written.targets) + len(written.target)


def _make_what_it_names(written: ConfigTable, project: Path) -> None:
    for name in (*(written.watch or ()), written.cwd or "."):
        (project / name).mkdir(parents=True, exist_ok=True)
    if written.python is not None:
        program = project / written.python
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)


# Whose argument ``kind=`` or first argument is the kind of a reason or a failure.
_BY_KEYWORD = {"Change", "Failure", "FailedEvent", "Reason"}
_BY_POSITION = {"BuildFailed", "_reason", "difference", "differences"}


def reason_and_failure_kinds() -> Iterator[str]:
    """Every word that the code gives to a reason or a failure."""
    for path in SOURCES:
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in _BY_KEYWORD:
                    given = [one.value for one in node.keywords if one.arg == "kind"]
                elif name in _BY_POSITION:
                    given = node.args[:1]
                else:
                    continue
                for value in given:
                    yield from _words(value, tree)


def _words(value: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The constants that an expression may be; a name stands for all that the file assigns to it."""
    match value:
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp():
            yield from _words(value.body, tree)
            yield from _words(value.orelse, tree)
        case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(end))]):
            yield from (f"{stage}{end}" for stage in ("build", "proof"))
        case ast.Name(id=name):
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == name for target in node.targets
                ):
                    yield from _words(node.value, tree)


def error_classes() -> Iterator[type[errors.PreheatError]]:
    for module in (errors, cli, client, probe, refusals, routes):
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, errors.PreheatError):
                yield found


def test_the_kinds_are_found_in_the_code() -> None:
    assert {
        "module_edited",
        "data_deleted",
        "load_failed",
        "settings_differ",
        "out_of_memory",
        "proof_crashed",
        "timed_out",
    } <= set(reason_and_failure_kinds())


@pytest.mark.parametrize("kind", sorted(set(reason_and_failure_kinds())))
def test_every_kind_is_documented(kind: str) -> None:
    assert in_a_table(text_of("docs/cli.md"), kind)


@pytest.mark.parametrize(
    "error",
    sorted(set(error_classes()) - {errors.PreheatError}, key=repr),
    ids=repr,
)
def test_every_error_has_its_kind_and_exit_code_documented(
    error: type[errors.PreheatError],
) -> None:
    page = text_of("docs/cli.md")
    assert in_a_table(page, kind_of(error("")))
    assert re.search(rf"^\| {error.exit_code} \|", page, re.MULTILINE)


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name; a group stands for what is in it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands(cli.preheat))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    page = text_of("docs/cli.md")
    assert f"[`preheat {name}" in page
    options = {
        option
        for parameter in COMMANDS[name].params
        for option in parameter.opts
        if option.startswith("--")
    }
    assert [option for option in options if f"`{option}" not in page] == []


def test_every_word_of_the_output_is_documented() -> None:
    page = text_of("docs/cli.md")
    actions = [
        value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)
    ]
    words = [*Verdict, *Action, *actions, *events.Event.__struct_fields__]
    assert [word for word in words if not in_a_table(page, str(word))] == []
    assert [name for name in DemoResult.__struct_fields__ if f"`{name}`" not in page] == []
    results: list[Any] = [ImageSize, Sample, Figures, Ratios, Target, CaseResult, Machine, Results]
    results += [EditSample, EditFigures, ProgramResult, EditResults]
    fields = [name for one in results for name in one.__struct_fields__]
    assert [name for name in fields if f"`{name}`" not in page] == []
    assert [word for word in (*WAYS, *EDITS, *PROGRAMS) if not in_a_table(page, word)] == []


@pytest.mark.parametrize(
    "key",
    sorted(
        {
            *ConfigTable.__struct_fields__,
            *TargetTable.__struct_fields__,
            *PolitenessTable.__struct_fields__,
        }
    ),
)
def test_every_configuration_key_is_documented(key: str) -> None:
    assert in_a_table(text_of("docs/configuration.md"), key)


@pytest.mark.parametrize("key", ControlTable.__struct_fields__)
def test_every_key_of_control_is_documented(key: str) -> None:
    assert in_a_table(text_of("docs/configuration.md"), f"control.{key}")


@pytest.mark.parametrize("key", CollectionTable.__struct_fields__)
def test_every_key_of_collection_is_documented(key: str) -> None:
    assert in_a_table(text_of("docs/configuration.md"), f"collection.{key}")


@pytest.mark.parametrize("key", FleetTable.__struct_fields__)
def test_every_key_of_fleet_is_documented(key: str) -> None:
    assert in_a_table(text_of("docs/configuration.md"), f"fleet.{key}")


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_a_deletion_is_documented(reason: str) -> None:
    assert in_a_table(text_of("docs/store.md"), reason) or f"`{reason}` |" in text_of(
        "docs/store.md"
    )


def test_every_word_of_a_collection_is_documented() -> None:
    page = text_of("docs/cli.md")
    kinds: list[Any] = [CollectionPlan, Deletion, Shortfall, Held, Collected]
    words = [name for kind in kinds for name in kind.__struct_fields__] + [*typing.get_args(Hold)]
    assert [word for word in words if f"`{word}`" not in page and f'"{word}"' not in page] == []


@pytest.mark.parametrize("path", sorted({one.path for one in routes.ADDRESSES}))
def test_every_address_is_documented(path: str) -> None:
    page = text_of("docs/control.md")
    shown = path.replace("{target}", "TARGET")
    assert re.search(rf"^\| `(GET|POST) {re.escape(shown)}[`?]", page, re.MULTILINE)


def test_every_environment_variable_is_documented() -> None:
    page = text_of("docs/configuration.md")
    named = {
        name
        for path in SOURCES
        for name in re.findall(
            r'"((?:PREHEAT_[A-Z_]+|CACHE_DIRECTORY|STATE_DIRECTORY|RUNTIME_DIRECTORY))"',
            path.read_text(encoding="utf-8"),
        )
    }
    assert "PREHEAT_STORE" in named
    assert [name for name in sorted(named) if not in_a_table(page, name)] == []


def test_every_field_of_spec_and_report_is_documented() -> None:
    page = text_of("docs/targets.md")
    fields = [field.name for kind in (Spec, LoadReport) for field in dataclasses.fields(kind)]
    words = [*fields, *OnMiss.__args__]  # type: ignore[attr-defined]
    assert [word for word in words if not in_a_table(page, word)] == []


def test_every_field_of_a_manifest_is_documented() -> None:
    page = text_of("docs/store.md")
    assert [name for name in Manifest.__struct_fields__ if not in_a_table(page, name)] == []


def in_a_table(page: str, word: str) -> bool:
    """Whether ``word`` stands in code type in the first cell of a table's row."""
    cells = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    return any(re.search(rf"`{re.escape(word)}[` ]", cell) for cell in cells)
