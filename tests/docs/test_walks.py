"""The walks of one batch and one plan through the code, as the architecture page has them, stay
short and true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# title of the section, its first file, and how many files it may pass through
WALKS = [
    ("One batch", "heterps_hpc/runtime/training.py", 12),
    ("One plan", "heterps_hpc/cli.py", 15),
]


def section(title: str) -> str:
    text = (ROOT / "docs" / "architecture.md").read_text()
    return text.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def files_of(title: str) -> set[str]:
    return set(re.findall(r"`(heterps_hpc/[\w/]+\.py)`", section(title)))


def imported(file: str) -> set[str]:
    """The files of the package that a file names in its imports."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heterps_hpc."):
            found.add(f"{str(node.module).replace('.', '/')}.py")
    return found


@pytest.mark.parametrize(("title", "first", "max_files"), WALKS)
def test_a_walk_passes_through_few_files(title: str, first: str, max_files: int) -> None:
    files = files_of(title)
    assert first in files
    assert len(files) <= max_files, sorted(files)


@pytest.mark.parametrize(("title", "first", "max_files"), WALKS)
def test_the_files_of_a_walk_hang_together(title: str, first: str, max_files: int) -> None:
    """Every one is reached from the first by imports; packages count for their modules."""
    reached, todo = set[str](), [first]
    while todo:
        file = todo.pop()
        if file in reached:
            continue
        reached.add(file)
        for name in imported(file):
            package = ROOT / name.removesuffix(".py") / "__init__.py"
            path = str(package.relative_to(ROOT)) if package.exists() else name
            if (ROOT / path).exists():
                todo.append(path)
    assert files_of(title) <= reached
