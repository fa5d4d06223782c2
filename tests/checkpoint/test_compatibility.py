"""A checkpoint continues under the settings that it was made with; others are named."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterps_hpc.checkpoint import Checkpoint
from heterps_hpc.checkpoint.compatibility import check_match, must_match
from heterps_hpc.config import DataSpec, Job, ModelSpec, TrainSpec
from heterps_hpc.errors import UserError
from tests.checkpoint.made import make_checkpoint


def make_job(**tables: Any) -> Job:
    train = TrainSpec.model_validate({"batch_size": 64, "tables": {"counters": True, **tables}})
    data = DataSpec(train=Path("/data"))
    return Job(name="made up", model=ModelSpec(name="ctrdnn"), data=data, train=train)


def made_with(folder: Path, settings: dict[str, Any]) -> Checkpoint:
    found = make_checkpoint(folder)
    return replace(found, manifest=found.manifest.model_copy(update={"must_match": settings}))


def match(checkpoint: Checkpoint, job: Job) -> None:
    manifest = checkpoint.manifest
    check_match(checkpoint, job, manifest.model_fingerprint, manifest.data_fingerprint)


@pytest.mark.parametrize("changed", [{"evict_every": 7}, {"show_weight": 0.5}, {"click_weight": 2}])
def test_what_decides_which_rows_are_kept_must_be_the_same(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    checkpoint = made_with(tmp_path, must_match(make_job()))
    match(checkpoint, make_job())
    ((name, value),) = changed.items()
    with pytest.raises(UserError, match=rf"train\.tables\.{name} is {re.escape(str(value))}"):
        match(checkpoint, make_job(**changed))


def test_a_setting_that_is_kept_since_a_later_version_does_not_refuse_older_checkpoints(
    tmp_path: Path,
) -> None:
    settings = must_match(make_job())
    del settings["train.tables.show_weight"]
    match(made_with(tmp_path, settings), make_job())
