"""The walk of one batch through the code, as the architecture page has it, stays short and true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_FILES_OF_A_BATCH = 12


def section(title: str) -> str:
    text = (ROOT / "docs" / "architecture.md").read_text()
    return text.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def files_of_a_batch() -> set[str]:
    return set(re.findall(r"`(heterps_hpc/[\w/]+\.py)`", section("One batch")))


def imported(file: str) -> set[str]:
    """The files of the package that a file names in its imports."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heterps_hpc."):
            found.add(f"{str(node.module).replace('.', '/')}.py")
    return found


def test_a_batch_passes_through_few_files() -> None:
    files = files_of_a_batch()
    assert "heterps_hpc/runtime/training.py" in files
    assert len(files) <= MAX_FILES_OF_A_BATCH, sorted(files)


def test_the_files_of_a_batch_hang_together() -> None:
    """Every one is reached from the loop by imports; packages count for their modules."""
    reached, todo = set[str](), ["heterps_hpc/runtime/training.py"]
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
    assert files_of_a_batch() <= reached
