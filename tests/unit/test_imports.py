"""The import rules: imports go down only, and heavy libraries stay in their part.

A module belongs to a part: a sub-package of heterps_hpc, `data_prep`, `cli`, or else it is
one of the value types. The tables below say which parts and which libraries each part may import,
anywhere in the file; they are the rules of the architecture, written so that a machine reads
them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "values": {"values"},
    "core": set[str](),
    "checkpoint": {"values"},
    "dataset": {"values"},
    "models": {"values"},
    "plan": {"values"},
    "launch": {"values"},
    "runtime": {"values", "core", "checkpoint", "dataset", "models", "profiling"},
    "report": {"values"},
    "data_prep": {"values", "dataset"},
    "profiling": {"values"},
    "serving": {"values", "checkpoint", "dataset", "models", "data_prep"},
    "slurm_templates": set[str](),
}
LIBRARY_ONLY_IN = {
    "mpi4py": {"runtime"},
    "horovod": {"runtime"},
    "torch": {"runtime", "models", "plan", "serving"},
}
SEES_ALL = {"cli", "commands"}


def part_of(module: str) -> str:
    """Part of a dotted module name of ours."""
    words = module.split(".")
    if words[0] == "data_prep":
        return "data_prep"
    if len(words) == 1:
        return "values"
    folder = ROOT / "heterps_hpc" / words[1]
    return words[1] if folder.is_dir() or words[1] in SEES_ALL else "values"


def modules() -> Iterator[tuple[str, Path]]:
    for top in ("heterps_hpc", "data_prep"):
        for path in sorted((ROOT / top).rglob("*.py")):
            words = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(words[:-1] if words[-1] == "__init__" else words), path


def imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module named by an import statement, with its line."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from heterps_hpc import layout` names a module, not an attribute
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").is_file()
                is_package = (ROOT / inner.replace(".", "/")).is_dir()
                ours = base.split(".")[0] in ("heterps_hpc", "data_prep")
                yield (inner if ours and (is_module or is_package) else base), node.lineno


FILES = list(modules())


@pytest.mark.parametrize(("module", "path"), FILES, ids=[name for name, _ in FILES])
def test_imports_go_down_only(module: str, path: Path) -> None:
    part = part_of(module)
    # the package itself is the front door of the Python interface, which imports when it is used
    if part in SEES_ALL or module in ("heterps_hpc", "heterps_hpc.__main__", "data_prep.__main__"):
        return
    assert part in MAY_IMPORT, f"{module}: a new part; say in MAY_IMPORT what it may import"
    wrong = []
    for imported, line in imports(module, path):
        top = imported.split(".")[0]
        if top in ("heterps_hpc", "data_prep"):
            other = part_of(imported)
            if other != part and other not in MAY_IMPORT[part]:
                wrong.append(f"{path.name}:{line}: {part} may not import {imported} ({other})")
        elif top in LIBRARY_ONLY_IN and part not in LIBRARY_ONLY_IN[top]:
            wrong.append(f"{path.name}:{line}: {part} may not import {top}")
    assert wrong == []


def test_the_rules_can_fail(tmp_path: Path) -> None:
    """The walker sees lazy, relative and attribute-style imports."""
    sample = tmp_path / "local.py"
    sample.write_text(
        "from heterps_hpc import layout\nfrom ..plan import cost\n"
        "def f():\n    import mpi4py.MPI\n    from . import mpi\n"
    )
    found = [name for name, _ in imports("heterps_hpc.launch.local", sample)]
    assert found[0] == "heterps_hpc.layout"
    assert found[1].startswith("heterps_hpc.plan")
    assert found[2] == "mpi4py.MPI"
    assert found[3].startswith("heterps_hpc.launch")
