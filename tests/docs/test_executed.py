"""Every command and every Python snippet of the pages is executed, as printed, in a sandbox.

In `make test`: what needs no more ranks than one small run, in this process. With HETERPS_FULL=1
(`make test-docs`): also what measures, trains and resumes. What needs Slurm is in
tests/slurm/test_documented_commands.py. A command that is executed nowhere stands below with the
reason; one that is in no list fails.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, commands, name_of
from tests.docs.sandbox import Sandbox, heterps, trained_sandbox

pytestmark = [pytest.mark.timeout(600), pytest.mark.ranks]
FULL = bool(os.environ.get("HETERPS_FULL"))

# program or beginning of a command -> why it is not executed here, or where it is
ELSEWHERE = {
    "sbatch": "tests/slurm/test_own_scripts.py",
    "srun": "a cut of what tests/slurm submits",
    "sinfo": "tests/slurm",
    "eval": "tests/slurm",
    "slurm/dev_cluster/cluster": "tests/slurm/test_dev_cluster.py",
    "heterps doctor": "ends by what this machine has: tests/launch/test_doctor.py",
    "heterps cancel": "tests/slurm/test_documented_commands.py",
    "mpirun": "tests/end_to_end/test_mpi_suite.py",
    "pip": "make test-wheel",
    "conda": "there is none here; the page says so",
    "module": "a site's own",
    "apt-get": "changes the machine",
    ".venv/bin/python -m benchmarks": "make bench",
    "python -m benchmarks": "make bench",
    "python": "named in passing",
}
NEEDS_SLURM = re.compile(r"--on slurm(?!.*--dry-run)|--in-allocation|--no-wait")
STARTS_RANKS = re.compile(r"heterps (measure|launch(?!.*--dry-run)|run|predict .*data/test)\b")


def typed(block: Block) -> Iterator[tuple[int, str]]:
    """The command lines of a block for a shell."""
    if block.language not in ("", "sh", "bash", "console"):
        return
    known = {command.line for command in commands("```sh\n" + block.text + "\n```")}
    for number, line in enumerate(block.text.replace("\\\n", "  ").splitlines()):
        plain = line.strip().removeprefix("$ ")
        if number + 2 in known and is_command(plain):
            yield block.line + number, re.sub(r"\[[^]]*\]", "", plain)


def is_command(line: str) -> bool:
    """Whether a line of a block without a language is one to type."""
    words = line.split()
    programs = {"heterps", "make", "cp", *(key.split()[0] for key in ELSEWHERE)}
    return bool(words) and words[0].removeprefix(".venv/bin/") in programs


def why_not(line: str) -> str | None:
    """Where a command is executed instead, if not here."""
    if NEEDS_SLURM.search(line):
        return "tests/slurm/test_documented_commands.py"
    bare = line.removeprefix(".venv/bin/")
    found = [key for key in ELSEWHERE if line.startswith(key) or bare.startswith(key)]
    return ELSEWHERE[found[0]] if found else None


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with trained_sandbox(tmp_path_factory.mktemp("pages"), measures=FULL) as made:
        yield made


CONSOLE_PAGES = [page for page in PAGES if any(list(typed(b)) for b in blocks(page.read_text()))]
PYTHON = {
    f"{name_of(page)}:{block.line}": block.text
    for page in PAGES
    for block in blocks(page.read_text())
    if block.language == "python"
}


@pytest.mark.parametrize("page", CONSOLE_PAGES, ids=name_of)
def test_commands_do_what_the_page_says(
    page: Path, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = []
    for block in blocks(page.read_text()):
        for line, command in typed(block):
            if why_not(command) is not None:
                continue
            try:
                execute(sandbox, command)
            except Exception as error:  # whatever a command ends with, the page is wrong
                failed.append(f"{name_of(page)}:{line}: {command}: {type(error).__name__}: {error}")
    assert failed == []


def execute(sandbox: Sandbox, command: str) -> None:
    """Type one command; long ones in their short form unless all is asked for."""
    words = shlex.split(command, comments=True)
    words[0] = words[0].removeprefix(".venv/bin/")
    if words[0] == "make":
        variables = [word for word in words[1:] if "=" in word]
        targets = [word for word in words[1:] if "=" not in word]
        dry = ["make", "-n", "-C", str(ROOT), *targets, *variables]
        subprocess.run(dry, check=True, capture_output=True, timeout=60)
    elif words[0] == "heterps":
        if words[1:3] == ["prepare", "synthetic"] and not FULL:
            words[words.index("--rows") + 1] = "1000"
        if FULL or not STARTS_RANKS.match(" ".join(words)):
            heterps(sandbox.fill_in(words)[1:])
        elif words[1] == "measure":
            sandbox.measured(words)
    elif words[:3] == ["python", "-m", "pytest"]:
        short = [] if FULL else ["--collect-only"]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *words[3:], *short],
            cwd=ROOT, check=True, capture_output=True, timeout=550,
        )  # fmt: skip
    else:
        subprocess.run(words, cwd=sandbox.path, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("place", PYTHON)
def test_python_runs(place: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    code = PYTHON[place]
    if place.startswith("docs/models.md"):
        build_and_use(code, sandbox)
        return
    if place.startswith("docs/testing.md"):
        run_as_a_test(code)
        return
    if place.startswith("docs/data.md"):
        heterps("prepare criteo train.txt --out snippet/criteo --split time --no-progress")
        code = code.replace("data/criteo/train", "snippet/criteo/train")
    if place.startswith("docs/python.md") and not FULL:
        code = code.replace('hp.run("job.yaml")', 'hp.Run(Path("runs/ctr-small"))')
    from tests.serving.trained import raw_columns

    exec(compile(code, place, "exec"), {"frame": raw_columns(20), "Path": Path})


def build_and_use(code: str, sandbox: Sandbox) -> None:
    """A model file: its layers are built and lead to a score."""
    import numpy as np
    import torch

    from heterps_hpc.config import ModelSpec
    from heterps_hpc.dataset import Dataset
    from heterps_hpc.models import build_model
    from heterps_hpc.models.layers import make_module
    from heterps_hpc.serving.score_module import ScoreModule

    file = sandbox.path / "snippet_model.py"
    file.write_text(code)
    model = build_model(ModelSpec(file=file), Dataset.open("data/train").manifest)
    weights = {
        f"{layer.name}.{name}": parameter.detach().numpy()
        for layer in model.layers
        if not layer.is_embedding
        for name, parameter in make_module(layer, 0, torch.float32).named_parameters()
    }
    width = sum(lookup.width(16) for layer in model.layers for lookup in layer.lookups)
    scores = ScoreModule(model, weights, torch.float32)(torch.ones(3, width))
    assert np.isfinite(scores.detach().numpy()).all()


def run_as_a_test(code: str) -> None:
    """On ranks in the long form; else what it imports must be there."""
    if not FULL:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        return
    file = ROOT / "tests" / "mpi" / "test_snippet_of_the_page.py"
    file.write_text(code)
    try:
        mpirun = Path(sys.executable).with_name("mpirun")
        ranks = [str(mpirun), "-n", "3", sys.executable, "-m", "mpi4py"]
        words = [*ranks, "-m", "pytest", "--with-mpi", "-q", str(file)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
        assert "3 passed" in done.stdout
    finally:
        file.unlink()


def test_every_command_is_executed_somewhere() -> None:
    """Lines that begin with a program nobody knows would be passed over silently."""
    shells = [
        (f"{name_of(page)}:{block.line}", line.removeprefix("$ "))
        for page in PAGES
        for block in blocks(page.read_text())
        if block.language in ("sh", "bash", "console")
        for line in block.text.splitlines()
        if line.strip() and line[0] not in "# "
    ]
    unknown = [(place, line) for place, line in shells if not is_command(line)]
    assert unknown == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("heterps data info nowhere", "no such dataset"),
        ("make no-such-target", "CalledProcessError"),
        ("heterps checkpoint verify nowhere", "nowhere"),
    ],
)
def test_the_check_can_fail(sandbox: Sandbox, command: str, said: str) -> None:
    with pytest.raises(Exception) as caught:
        execute(sandbox, command)
    assert said in f"{type(caught.value).__name__} {caught.value}"
