"""docs/reference.md is made from the code, and `heterps explain` finds every key."""

from __future__ import annotations

import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.reference import explain, keys, page
from tests.docs.pages import ROOT


def test_the_page_is_current() -> None:
    command = "python -m heterps_hpc.reference > docs/reference.md"
    assert (ROOT / "docs" / "reference.md").read_text() == page(), f"run: {command}"


def test_every_key_is_listed_once_with_its_kind_and_default() -> None:
    names = [(key.file, key.name) for key in keys()]
    assert len(set(names)) == len(names)
    assert {"train.on_nan", "train.tables.num_partitions", "pools[].price_per_hour"} <= {
        name for _, name in names
    }
    for key in keys():
        assert key.kind
        assert key.default
        assert key.note, f"{key.name}: say in a comment behind the field what it means"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train.on_nan", ["`stop` or `skip`", "loss is not a number"]),
        ("train.staleness", ["whole number ≥ 0 and ≤ 100", "`1`"]),
        ("on_stall", ["watch.on_stall"]),
        ("pools.price_per_hour", ["pools[].price_per_hour"]),
        ("pools.gpu.device", ["pools[].device"]),
        ("checkpoint", ["checkpoint.every_steps", "checkpoint.keep"]),
    ],
)
def test_a_key_is_explained(name: str, words: list[str]) -> None:
    text = explain(name)
    assert all(word in text for word in words), text


def test_a_section_lists_its_own_keys_in_a_line_each() -> None:
    lines = explain("train.").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  train.s")] == [
        "train.staleness",
        "train.steps",
        "train.seed",
        "train.sparse",
    ]
    assert not [line for line in lines if "train.sparse." in line]
    hint = explain("pools").splitlines()[-1]
    assert explain(hint.split("`")[1].split()[-1]).startswith("pools[].name")


def test_an_unknown_key_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean 'train\.on_nan'"):
        explain("train.on_nam")
