"""One name, one class: what a newcomer searches for is found in one place."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("heterps_hpc", "data_prep", "benchmarks", "slurm", "tools")


def class_names(folders: list[Path]) -> dict[str, list[str]]:
    """The files in which each class name is defined."""
    found = defaultdict[str, list[str]](list)
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path))
    return found


def twice(folders: list[Path]) -> dict[str, list[str]]:
    return {name: files for name, files in class_names(folders).items() if len(files) > 1}


def test_no_class_name_is_used_twice() -> None:
    assert twice([ROOT / folder for folder in FOLDERS]) == {}


def test_the_check_can_fail(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Same:\n    pass\n")
    assert list(twice([tmp_path])) == ["Same"]
