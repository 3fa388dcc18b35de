"""Change programs in many small ways, run them, and look for a package that would be used wrongly.

``python -m conformance.mutations [MOST] [BASE ...]``, run in ``tests``, mutates every file of every
program of ``source_edits.json`` and ``more_programs.json``, or of the bases that are named (MOST: so
many mutants of each file, chosen at random). It reports each mutant that the rule takes for unchanged
although its output differs. Takes minutes. A mutant that no longer runs at all is no wrong hit: a
worker fails before it loads anything.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.source_edits import load, record, write
from preheat.sources.check import check
from preheat.sources.locate import project_locator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MORE = Path(__file__).with_name("more_programs.json")
RUN_SECONDS = 20
FAILED = "failed: "


@dataclasses.dataclass(frozen=True)
class WrongHit:
    """A mutant that would be served with the old package, and answers differently."""

    base: str
    file: str
    what: str
    output: str


def mutants(text: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """What is done, and what makes the text; each differs from the original in one place."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    names = sorted({node.id for node in nodes if isinstance(node, ast.Name)})
    attributes = sorted({node.attr for node in nodes if isinstance(node, ast.Attribute)})
    for index, node in enumerate(nodes):
        for what, changed in _changed(node, names, attributes):
            make = functools.partial(_with_change, tree, index, changed)
            yield f"{what} in line {getattr(node, 'lineno', 1)}", make
    words = [*names, *attributes, "len", "train", "__getattr__", "forward"]
    for word in dict.fromkeys(words):
        yield from _with_more(tree, word)


def _with_change(tree: ast.Module, index: int, changed: dict[str, Any]) -> str:
    other = copy.deepcopy(tree)
    target = list(ast.walk(other))[index]
    for field, value in changed.items():
        setattr(target, field, value)
    return ast.unparse(other)


def _changed(
    node: ast.AST, names: list[str], attributes: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            yield f"constant {node.value}", {"value": node.value + 1}
        elif isinstance(node.value, str):
            yield f"constant {node.value}", {"value": f"{node.value}z"}
    elif isinstance(node, ast.BinOp):
        yield "operator", {"op": ast.Add() if isinstance(node.op, ast.Sub) else ast.Sub()}
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from ((f"name {node.id} to {one}", {"id": one}) for one in names if one != node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        others = [one for one in attributes if one != node.attr]
        yield from ((f"attribute {node.attr} to {one}", {"attr": one}) for one in others)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        for index in range(len(body)):
            rest = [*body[:index], *body[index + 1 :]]
            yield f"deletion {index}", {"body": rest or [ast.Pass()]}
            yield f"move to the end {index}", {"body": [*rest, body[index]]}
            yield f"move to the start {index}", {"body": [body[index], *rest]}


def _with_more(tree: ast.Module, word: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Something new under a name that is already in use."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for text in (f"{word} = 7.0", f"def {word}(*args, **kwargs):\n    return 0.5"):
        for place in (0, len(tree.body)):
            yield f"new {text!r} at {place}", functools.partial(_inserted, tree, text, place)
        for index, node in enumerate(classes):
            make = functools.partial(_inserted_in_class, tree, text, index)
            yield f"new {text!r} in {node.name}", make


def _inserted(tree: ast.Module, text: str, place: int) -> str:
    other = copy.deepcopy(tree)
    other.body[place:place] = ast.parse(text).body
    return ast.unparse(other)


def _inserted_in_class(tree: ast.Module, text: str, index: int) -> str:
    other = copy.deepcopy(tree)
    classes = [one for one in ast.walk(other) if isinstance(one, ast.ClassDef)]
    classes[index].body += ast.parse(text).body
    return ast.unparse(other)


def output_of(base: dict[str, Any], project: Path, answer: Path) -> str:
    """What a program computes, in a forked process; torch must have been imported here."""
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            signal.alarm(RUN_SECONDS)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            answer.write_text(_run(base, project))
        os._exit(0)
    os.waitpid(child, 0)
    return answer.read_text() if answer.exists() else FAILED + "no answer"


def _run(base: dict[str, Any], project: Path) -> str:
    import torch

    sys.dont_write_bytecode = True
    sys.path.insert(0, str(project))
    os.environ.update(base.get("env") or {})
    try:
        module = __import__(base["entry_module"])
        function, arguments = getattr(module, base["entry"])()
        torch.manual_seed(1)
        output = function(*arguments)
        if hasattr(module, "post"):
            output = module.post(function, arguments, output)
        return _flat(output)
    except Exception as error:
        return f"{FAILED}{type(error).__name__}"


def _flat(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor)
        return repr((value.dtype, value.shape, plain.tolist()))
    if isinstance(value, (tuple, list)):
        return repr([_flat(one) for one in value])
    return repr(value)


def wrong_hits(
    bases: list[dict[str, Any]], directory: Path, most: int | None = None
) -> Iterator[WrongHit]:
    """The wrong hits of some programs. ``most``: of each file, so many mutants chosen at random."""
    import torch  # noqa: F401 - so that children need not

    for base, sources in zip(bases, record(bases, directory), strict=True):
        before = ""
        for name, text in base["files"].items():
            if not name.endswith(".py") or not text.strip():
                continue
            chosen = list(mutants(text))
            if most is not None and len(chosen) > most:
                chosen = random.Random(name + text).sample(chosen, most)  # noqa: S311
            for what, make in chosen:
                project = Path(tempfile.mkdtemp(dir=directory))
                write(project, base["files"])
                write(project, {name: make()})
                locate = project_locator(project)
                if check(sources, locate, project=project, environ={**os.environ}):
                    continue
                now = output_of(base, project, directory / "answer")
                if not before:
                    original = Path(tempfile.mkdtemp(dir=directory))
                    write(original, base["files"])
                    before = output_of(base, original, directory / "answer")
                if now != before and not now.startswith(FAILED):
                    yield WrongHit(base["base"], name, what, now[:200])


def programs() -> list[dict[str, Any]]:
    """All programs that there are."""
    return [*load(), *json.loads(MORE.read_text())]


def main() -> None:
    """Report wrong hits; exits with 1 when there is one."""
    arguments = sys.argv[1:]
    most = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else None
    wanted = set(arguments)
    bases = [base for base in programs() if not wanted or base["base"] in wanted]
    found = 0
    with tempfile.TemporaryDirectory() as directory:
        for hit in wrong_hits(bases, Path(directory), most):
            found += 1
            sys.stdout.write(f"{hit}\n")
    sys.stdout.write(f"{found} wrong hits in {len(bases)} programs\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
