"""`import heterps_hpc as hp`: typed, light, and listed on one page."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import heterps_hpc as hp

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
CLASSES = [name for name in hp.__all__ if inspect.isclass(getattr(hp, name))]
FUNCTIONS = [name for name in hp.__all__ if name not in CLASSES]


def call_of(function: object) -> str:
    """How a function is called, without types: `f(a, *, b=None)`."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(plain))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_typed_and_listed(name: str) -> None:
    function = getattr(hp, name)
    assert f"`hp.{name}{call_of(function)}`" in PAGE
    hints = inspect.get_annotations(function)
    assert set(hints) == {*inspect.signature(function).parameters, "return"}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_listed(name: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `hp.{name}` |"))
    cls = getattr(hp, name)
    if issubclass(cls, Exception):
        return
    own = [attribute for attribute in vars(cls) if not attribute.startswith("_")]
    inner = (
        {"batches", "score_rows", "tensors", "module_dtype", "load"}
        if name == "Predictor"
        else set()
    )
    for attribute in set(own) - inner:
        found = inspect.getattr_static(cls, attribute)
        shown = attribute + (call_of(found) if inspect.isfunction(found) else "")
        assert f"`{shown}`" in row, f"docs/python.md: hp.{name} lacks `{shown}`"


def test_nothing_is_listed_that_is_not_there() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `hp.")]
    listed = {row.split("`")[1].removeprefix("hp.").split("(")[0] for row in rows}
    assert listed == set(hp.__all__)


def test_the_import_is_light_and_parts_of_the_same_name_do_not_hide_functions() -> None:
    code = (
        "import sys; import heterps_hpc as hp\n"
        "assert not {'numpy', 'torch', 'pydantic'} & set(sys.modules)\n"
        "import heterps_hpc.plan, heterps_hpc.report\n"
        "from heterps_hpc.plan import provision\n"
        "assert callable(hp.plan) and callable(hp.report), (hp.plan, hp.report)\n"
        "assert not {'mpi4py', 'horovod', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = hp.lod  # type: ignore[attr-defined]


def test_hints_can_be_resolved() -> None:
    hints = typing.get_type_hints(hp.plan)
    assert hints["return"].__name__ == "PlanningResult"
