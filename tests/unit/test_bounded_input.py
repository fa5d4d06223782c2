"""What a user may write: bombs, endless numbers and odd paths are refused at once, in a line."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.validation import read_text

SOUND = """
name: job
model: {name: ctrdnn}
data: {train: data/train}
train: {batch_size: 64}
cluster: cluster.yaml
"""
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


def job(**changes: str) -> str:
    """The sound job with other texts for some of its keys."""
    lines = [line for line in SOUND.strip().splitlines() if line.split(":")[0] not in changes]
    return "\n".join([*lines, *(f"{key}: {text}" for key, text in changes.items())])


JOBS: dict[str, tuple[str, str]] = {
    "no text": ("", "expected a mapping of keys, got nothing"),
    "an open bracket": (
        "name: [x\n",
        r"line 2, column 1: expected ',' or '\]', .* \(while parsing a flow sequence in line 1",
    ),
    "yaml bomb": (BOMB, "aliases counted"),
    "a list that holds itself": (job(name="&a [*a]"), "not defined before it is used"),
    "3,000 nested lists": (job(name="[" * 3000 + "]" * 3000), "nested too deeply"),
    "an integer of 5,000 digits": (job(name="9" * 5000), "line 5: .*5,000 digits"),
    "a date that is none": (job(name="2024-13-45"), "line 5: '2024-13-45': month"),
    "a number that is octal": (
        job(train="{batch_size: 010}"),
        "line 5: '010': YAML reads it as 8;",
    ),
    "hours and minutes": (job(goal="{max_hours: 1:30}"), "line 6: '1:30': YAML reads it as 90;"),
    "a tag on text of another type": (job(train="{batch_size: !!bool maybe}"), "fit its tag"),
    "a tag on nothing": (job(train="{batch_size: !!int ''}"), "fit its tag"),
    "a tag that runs code": (job(train="!!python/object/apply:os.getpid []"), "not valid YAML"),
    "a key twice": (SOUND + "name: other\n", "'name' is there 2 times"),
    "more values than anyone writes": (job(goal=f"[{'1,' * 99_000}]"), "write less"),
    "a long merge": (
        job(train="{<<: [" + ",".join(f"{{a{n}: 1}}" for n in range(3000)) + "]}"),
        "train",
    ),
    "more text than anyone writes": (job(goal="#\n" * 200_000), "more than 262144 characters"),
    "a NUL in a path": (job(data='{train: "a\\0b"}'), "NUL"),
    "no such user": (job(data="{train: ~nouser/x}"), "no such user"),
    "a path of 5,000 characters": (job(data=f"{{train: {'x' * 5000}}}"), "cannot be a file"),
    "negative seed": (job(train="{batch_size: 64, seed: -1}"), "train.seed"),
    "a seed of 65 bits": (job(train=f"{{batch_size: 64, seed: {2**64}}}"), "train.seed"),
    "staleness": (job(train=f"{{batch_size: 64, staleness: {10**30}}}"), "train.staleness"),
    "too many slots": (
        job(data=f"{{train: x, synthetic: {{num_slots: {2**31}}}}}"),
        "data.synthetic.num_slots",
    ),
    "partitions": (
        job(train="{batch_size: 64, tables: {num_partitions: 1000000}}"),
        "train.tables.num_partitions",
    ),
    "rows that are expected": (
        job(train="{batch_size: 64, tables: {expected_rows: -1}}"),
        r"^\S+: train.tables.expected_rows.int: Input should be greater than 0; got -1$",
    ),
    "rows that are expected of a table": (
        job(train="{batch_size: 64, tables: {expected_rows: {user: -1}}}"),
        r"^\S+: train.tables.expected_rows.dict.user: Input should be greater than 0; got -1$",
    ),
    "rows that are expected, as text": (
        job(train="{batch_size: 64, tables: {expected_rows: []}}"),
        r"^\S+: train.tables.expected_rows.dict: .*; got \[\]$",
    ),
    "betas": (job(train="{batch_size: 64, dense: {betas: [2, 2]}}"), "train.dense.betas"),
    "a sketch with nothing to count": (
        job(train="{batch_size: 64, tables: {sketch_bytes: 4096}}"),
        "raise `admit_after`",
    ),
    "eviction by score without counters": (
        job(train="{batch_size: 64, tables: {evict_below_score: 0.1}}"),
        "counters: true",
    ),
    "a learning rate that no one wants": (
        job(train="{batch_size: 64, sparse: {lr: 1.0e30}}"),
        "train.sparse.lr",
    ),
    "a width that is not a number": (job(model="{name: ctrdnn, init_scale: .nan}"), "finite"),
}
POOL = "{{name: cpu, price_per_hour: 1, max_ranks: {0}, cores_per_node: {1}}}"
CLUSTERS: dict[str, tuple[str, str]] = {
    "2**63 ranks": (f"pools: [{POOL.format(2**63, 2)}]", "max_ranks"),
    "10**30 ranks": (f"pools: [{POOL.format(10**30, 2)}]", "max_ranks"),
    "a price that planning would divide by": (
        f"pools: [{POOL.format(4, 2).replace('hour: 1', 'hour: 1.0e-300')}]",
        "price_per_hour",
    ),
    "100,000 cores": (f"pools: [{POOL.format(4, 10**5)}]", "cores_per_node"),
}


def refused(load: Callable[[Path], object], path: Path, word: str) -> str:
    started = time.process_time()  # the machine may be busy
    with pytest.raises(UserError, match=word) as caught:
        load(path)
    assert time.process_time() - started < 5
    message = str(caught.value)
    assert len(message) < 4000
    return message


def test_the_sound_job_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(SOUND)
    assert Job.load(tmp_path / "job.yaml").train.batch_size == 64


@pytest.mark.parametrize("what", JOBS)
def test_a_job_is_refused_at_once(what: str, tmp_path: Path) -> None:
    text, word = JOBS[what]
    (tmp_path / "job.yaml").write_text(text)
    message = refused(Job.load, tmp_path / "job.yaml", word)
    assert len(message.splitlines()) <= 10  # each problem on its own line, and not all of them


@pytest.mark.parametrize("what", CLUSTERS)
def test_a_cluster_is_refused_at_once(what: str, tmp_path: Path) -> None:
    text, word = CLUSTERS[what]
    (tmp_path / "cluster.yaml").write_text(text)
    refused(Cluster.load, tmp_path / "cluster.yaml", word)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("a\0b.yaml", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        ("x" * 300 + ".json", "cannot be read"),
        ("/dev/null/x", "cannot"),
        ("/dev/zero", "more than 262144 characters"),
    ],
)
def test_a_path_that_cannot_be_a_file(path: str, word: str) -> None:
    refused(Job.load, Path(path), word)


def test_a_pipe_that_nobody_writes_to_is_refused_where_programs_write_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.json")
    refused(Job.load, tmp_path / "job.json", "is a pipe, expected a file")


def test_ordinary_aliases_are_welcome(tmp_path: Path) -> None:
    text = job(
        train="{batch_size: 64, sparse: {schedule: &s {kind: cosine}}, dense: {schedule: *s}}"
    )
    (tmp_path / "job.yaml").write_text(text)
    assert Job.load(tmp_path / "job.yaml").train.dense.schedule.kind == "cosine"


def test_deep_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("[" * 100_000 + "]" * 100_000)
    refused(Job.load, tmp_path / "job.json", "nested too deeply")


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """However large it may be: login nodes limit what a process takes."""
    path = tmp_path / "job.json"
    path.write_text("{}")
    tracemalloc.start()
    assert read_text(path) == "{}"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20
