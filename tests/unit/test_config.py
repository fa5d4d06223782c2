"""Job files: readable ones are accepted, wrong ones are refused with file, key, got and remedy."""

from pathlib import Path

import pytest
import yaml

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError

README_JOB = """
name: ctr-small
model: {name: ctrdnn, embedding_dim: 16, hidden: [512, 256, 128]}
data:  {train: data/train, test: data/test}
train: {batch_size: 4096, micro_batches: 4, staleness: 1, epochs: 1,
        sparse: {optimizer: adagrad, lr: 0.05}, dense: {optimizer: adam, lr: 0.001}}
goal:  {min_samples_per_second: 20000}
cluster: cluster.yaml
plan:  {scheduler: rl, seconds: 10}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def test_the_job_of_the_readme_is_read_with_paths_next_to_it(tmp_path: Path) -> None:
    job = Job.load(write(tmp_path, README_JOB))
    assert job.data.train == tmp_path / "data/train"
    assert job.cluster == tmp_path / "cluster.yaml"
    assert job.model.parameters == {"embedding_dim": 16, "hidden": [512, 256, 128]}


def test_a_saved_job_is_the_same_job(tmp_path: Path) -> None:
    job = Job.load(write(tmp_path, README_JOB))
    job.save(tmp_path / "job.json")
    assert Job.parse_saved(tmp_path / "job.json") == job


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trian": {}}, ["trian", "did you mean 'train'"]),
        ({"goal": {"min_sample_per_second": 3}}, ["goal", "did you mean 'min_samples_per_second'"]),
        ({"goal": {}}, ["goal", "at least one of"]),
        ({"train": {"batch_size": 0}}, ["train.batch_size", "greater than 0", "got 0"]),
        ({"train": {}}, ["train.batch_size", "missing"]),
        ({"train": {"batch_size": 4, "micro_batches": 5}}, ["5 micro-batches", "use fewer"]),
        ({"train": {"batch_size": 4, "sparse": {"lr": float("nan")}}}, ["train.sparse.lr", "nan"]),
        ({"model": {}}, ["model", "exactly one of `name`"]),
        ({"name": "a\nb"}, ["name", "control characters"]),
        ({"version": 2}, ["version"]),
        ({"train": {"batch_size": 4, "tables": {"hot_bytes": 5}}}, ["spill_dir"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: dict[str, object], words: list[str]) -> None:
    data = yaml.safe_load(README_JOB) | change
    path = write(tmp_path, yaml.safe_dump(data))
    with pytest.raises(UserError) as caught:
        Job.load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    text = "name: !!python/object/apply:os.system ['touch hacked']\n"
    with pytest.raises(UserError, match="not valid"):
        Job.load(write(tmp_path, text))
    assert not Path("hacked").exists()


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "just words", "a: [1, 2"])
def test_files_that_are_no_mapping_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"job\.yaml"):
        Job.load(write(tmp_path, text))


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Job.load(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="is a directory"):
        Job.load(tmp_path)


POOL = {"name": "cpu", "price_per_hour": 0.04, "max_ranks": 4, "cores_per_node": 4}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"price_per_hour": 0}, "greater than"),
        ({"price_per_hour": -1}, "greater than"),
        ({"max_ranks": None}, "`max_ranks` or `max_nodes`"),
        ({"cores_per_rank": 8}, "exceeds"),
        ({"device": "cuda"}, "gpus_per_node is 0"),
        ({"name": ""}, "printable"),
    ],
)
def test_pools_that_cannot_be_are_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(UserError, match=word):
        Cluster.parse({"pools": [POOL | change]}, "cluster.yaml")


def test_a_pool_bills_by_rank_or_by_whole_nodes() -> None:
    by_rank, by_node = Cluster.parse(
        {
            "pools": [
                POOL | {"max_ranks": None, "max_nodes": 2},
                POOL | {"name": "node", "billing": "node", "price_per_hour": 1},
            ]
        },
        "cluster.yaml",
    ).pools
    assert by_rank.rank_limit == 8
    assert by_rank.hourly_price(3) == pytest.approx(0.12)
    assert by_node.hourly_price(3) == 1
    assert by_node.hourly_price(5) == 2
