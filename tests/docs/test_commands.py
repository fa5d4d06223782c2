"""Every command that a page mentions exists, with every option that it gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from data_prep import SOURCES
from heterps_hpc.checkpoint.command import app as checkpoint_app
from heterps_hpc.cli import app
from tests.docs.pages import PAGES, ROOT, commands, name_of

MODULES = ("benchmarks", "data_prep", "heterps_hpc", "tools", "slurm", "tests")


@cache
def heterps() -> Any:
    """The command tree."""
    return typer.main.get_command(app)


def wrong_with_heterps(words: Sequence[str]) -> str | None:
    """What is wrong with the words after `heterps`, or None."""
    command = heterps()
    rest = list(words)
    while rest and isinstance(command, TyperGroup):
        if rest[0].startswith("-") or rest[0].isupper():
            break
        found = command.commands.get(rest[0])
        if found is None:
            return f"no verb {rest[0]!r}"
        command = found
        verb = rest.pop(0)
        if verb == "checkpoint":  # hands its words on to an app of its own
            command = typer.main.get_command(checkpoint_app)
        elif verb == "prepare":
            known = (*SOURCES, "SOURCE", "--help")
            return None if not rest or rest[0] in known else f"no source {rest[0]!r}"
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    for word in rest:
        option = word.split("=")[0]
        if word.startswith("-") and option not in known | {"--help"}:
            return f"no option {option!r}"
    return None


@cache
def make_names() -> tuple[set[str], set[str]]:
    """Targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, flags=re.MULTILINE))
    benches = re.search(r"^BENCHES := (.*)$", text, flags=re.MULTILINE)
    targets |= {f"bench-{name}" for name in (benches[1].split() if benches else ())}
    return targets, set(re.findall(r"^(?:#\s+)?(?:Variables: )?([A-Z_]+)\b", text, re.MULTILINE))


def wrong_with_make(words: Sequence[str]) -> str | None:
    """What is wrong with the words after `make`, or None."""
    targets, variables = make_names()
    for word in words:
        if "=" in word:
            name = word.split("=")[0]
            if name not in variables and not name.startswith("HOROVOD_"):
                return f"no variable {name!r}"
        elif not word.startswith("-") and word not in targets:
            return f"no target {word!r}"
    return None


def wrong_with_python(words: Sequence[str]) -> str | None:
    """What is wrong with the words after `python`, or None."""
    if len(words) > 1 and words[0] == "-m" and words[1].split(".")[0] in MODULES:
        name = words[1].rstrip(".")
        if name.split(".")[-1].isupper():  # a placeholder
            return None
        return None if find_spec(name) else f"no module {name!r}"
    return None


CHECKS = {
    "heterps": wrong_with_heterps,
    "make": wrong_with_make,
    "python": wrong_with_python,
    "python3": wrong_with_python,
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    wrong = []
    for command in commands(page.read_text()):
        program, *words = command.words
        check = CHECKS.get(program)
        problem = check(words) if check else None
        if program.startswith("slurm/") and not (ROOT / program).exists():
            problem = "no such program"
        if problem:
            wrong.append(f"{name_of(page)}:{command.line}: {' '.join(command.words)}: {problem}")
    assert wrong == []


def test_every_verb_is_on_the_page_of_verbs() -> None:
    """docs/cli.md leaves nothing out."""
    text = (ROOT / "docs" / "cli.md").read_text()
    tree = heterps()
    assert isinstance(tree, TyperGroup)
    expected = []
    for name, command in tree.commands.items():
        inner = command.commands if isinstance(command, TyperGroup) else {}
        if name == "checkpoint":
            sub = typer.main.get_command(checkpoint_app)
            assert isinstance(sub, TyperGroup)
            inner = sub.commands
        expected += [f"heterps {name} {verb}" for verb in inner] or [f"heterps {name}"]
    assert [verb for verb in expected if verb not in text] == []


def test_every_exit_code_is_on_the_page_of_verbs() -> None:
    from heterps_hpc.exit_codes import ExitCode

    text = (ROOT / "docs" / "cli.md").read_text()
    assert [code for code in ExitCode if f"| {int(code)} |" not in text] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("`heterps fly job.yaml`", "no verb 'fly'"),
        ("`heterps run job.yaml --faster`", "no option '--faster'"),
        ("`heterps data tail x`", "no verb 'tail'"),
        ("`heterps checkpoint burn x`", "no verb 'burn'"),
        ("    cd x && make tset  # a comment", "no target 'tset'"),
        ("```sh\nmake setup MIP=openmpi\n```", "no variable 'MIP'"),
        ("```\n$ .venv/bin/python -m benchmarks.nothing --quick\n```", "no module"),
    ],
)
def test_the_checks_can_fail(line: str, problem: str) -> None:
    found = commands("\n" + line + "\n")
    results = [CHECKS[c.words[0]](c.words[1:]) for c in found if c.words[0] in CHECKS]
    assert any(problem in (result or "") for result in results)
