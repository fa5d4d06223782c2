"""Every job and cluster file, in the examples and in the pages, is one that runs would accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep.recipe import Recipe
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from tests.docs.pages import PAGES, ROOT, blocks, name_of

FILES = sorted(
    path
    for folder in ("examples", "slurm/examples")
    for path in (ROOT / folder).rglob("*.yaml")
    if "runs" not in path.relative_to(ROOT).parts and "data" not in path.relative_to(ROOT).parts
)
SNIPPETS = [
    pytest.param(block.text, id=f"{name_of(page)}:{block.line}")
    for page in PAGES
    for block in blocks(page.read_text())
    if block.language in ("yaml", "yml")
]
WHOLE_JOB: dict[str, Any] = {
    "name": "job",
    "model": {"name": "ctrdnn"},
    "data": {"train": "train"},
    "train": {"batch_size": 1024},
}
WHOLE_CLUSTER: dict[str, Any] = {
    "pools": [
        {"name": name, "price_per_hour": 1.0, "max_ranks": 2} for name in ("cpu", "gpu", "fast")
    ]
}


def check(data: dict[str, Any], origin: str) -> None:
    """Accept a recipe, a whole job or cluster, or a piece of one put into a whole one."""
    if set(data) & {"pools", "site", "links"}:
        Cluster.parse(WHOLE_CLUSTER | data, origin)
        return
    if "slots" in data:
        Recipe.parse(data, origin)
        return
    whole = dict(WHOLE_JOB)
    for key, value in data.items():
        base = whole.get(key)
        is_piece = isinstance(base, dict) and isinstance(value, dict) and key != "model"
        whole[key] = {**base, **value} if is_piece else value
    Job.parse(whole, origin)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_example_files_are_valid(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    if "pools" in data:
        Cluster.load(path)
        return
    job = Job.load(path)
    Cluster.load(job.cluster)
    assert job.model.file is None or job.model.file.is_file()


def test_there_are_examples() -> None:
    assert {"examples/ctr_small.yaml", "examples/cluster_local.yaml"} <= set(map(name_of, FILES))


@pytest.mark.parametrize("text", SNIPPETS)
def test_snippets_in_pages_are_valid(text: str, request: pytest.FixtureRequest) -> None:
    for document in yaml.safe_load_all(text):
        assert isinstance(document, dict), "a snippet is a mapping"
        check(document, request.node.callspec.id)


@pytest.mark.parametrize(
    "text",
    [
        "train: {batch_sise: 3}",
        "goal: {min_samples_per_second: -1}",
        "pools: [{name: x}]",
        "slots: [{colum: x}]",
    ],
)
def test_the_check_can_fail(text: str) -> None:
    with pytest.raises(UserError):
        check(yaml.safe_load(text), "snippet")
