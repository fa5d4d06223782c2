"""`heterps init`: a commented job and cluster file to start from, and a recipe for your data."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
from pathlib import Path

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.errors import UserError
from heterps_hpc.launch.slurm.partitions import Partition, partitions

log = logging.getLogger(__name__)

_JOB = """\
# What to train. `heterps explain KEY` explains a key, docs/reference.md lists them all.
name: {name}
model: {{name: ctrdnn, embedding_dim: 16, hidden: [256, 128, 64]}}   # or {{file: my_model.py}}
data:
{data}
train:
  batch_size: 4096
  epochs: 1
  staleness: 1                  # 0: tables are updated before the next batch is read
  sparse: {{optimizer: adagrad, lr: 0.05}}    # the tables
  dense: {{optimizer: adam, lr: 0.001}}       # the other layers
goal: {{min_fraction_of_best: 0.8}}           # or {{min_samples_per_second: 20000}}
cluster: cluster.yaml
# checkpoint: {{every_minutes: 30}}           # without it, only at the end and when stopped
"""
_GENERATED = """\
  train: data/train
  test: data/test
  # generated, if the two are not there: delete this line when you have data of your own
  synthetic: {train_rows: 200000, test_rows: 20000, num_slots: 26, cardinality: 10000}"""
_PREPARED = """\
  # made by: {prepare}
  train: data/train
  test: data/test"""
_CLUSTER = """\
# What you can use and what it costs. The goal of planning is money: put in your own prices.
name: {name}
pools:
{pools}"""


def init(folder: Path, csv_file: Path | None, delimiter: str = ",") -> list[Path]:
    """Write the files, none of which may exist; returns their paths."""
    texts = {"job.yaml": job_text(folder, csv_file, delimiter), "cluster.yaml": cluster_text()}
    if csv_file is not None:
        from data_prep.draft import draft_recipe

        texts["recipe.yaml"] = draft_recipe(csv_file, delimiter)
    paths = [folder / name for name in texts]
    for path in paths:
        if path.exists():
            raise UserError(f"{path}: exists already; give another directory")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths


def job_text(folder: Path, csv_file: Path | None, delimiter: str) -> str:
    """A job on generated data, or on what the CSV file will be prepared to."""
    data = _GENERATED
    if csv_file is not None:
        data = _PREPARED.format(prepare=_prepare_command(csv_file, delimiter))
    name = (
        csv_file.name.split(".")[0] if csv_file else Path(os.path.realpath(folder)).name
    ) or "job"
    return _JOB.format(name=json.dumps(name), data=data)


def next_commands(folder: Path, csv_file: Path | None, delimiter: str = ",") -> list[str]:
    """What to type now, from where the user is."""
    go = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    prepare = [] if csv_file is None else [_prepare_command(csv_file, delimiter)]
    return [*go, *prepare, "heterps run job.yaml"]


def _prepare_command(csv_file: Path, delimiter: str) -> str:
    source = "parquet" if csv_file.suffix in (".parquet", ".pq") else "csv"
    words = ["heterps", "prepare", source, str(csv_file.resolve()), "--recipe", "recipe.yaml"]
    words += ["--out", "data", "--split", "hash"]
    return shlex.join(words if delimiter == "," else [*words, "--delimiter", delimiter])


def cluster_text() -> str:
    """The partitions of Slurm where there is one, else this machine."""
    try:
        found = partitions() if shutil.which("sinfo") is not None else []
    except UserError:  # what sinfo prints then is long and of no use here
        log.info("sinfo is here but no Slurm answers it; cluster.yaml describes this machine")
        found = []
    if found:
        return _CLUSTER.format(name="slurm", pools="".join(map(_partition_text, found)))
    pool = Cluster.this_machine().pools[0]
    return _CLUSTER.format(name="this-machine", pools=_machine_text(pool))


def _machine_text(pool: Pool) -> str:
    return f"""\
  - name: {pool.name}
    price_per_hour: 1.0         # of a core: money then counts core-hours
    max_nodes: 1
    cores_per_node: {pool.cores_per_node}
    memory_per_node_gb: {pool.memory_per_node_gb}
"""


def _partition_text(partition: Partition) -> str:
    gpus = f"""\
    device: cuda                # `cpu` if its GPUs are not to be used
    gpus_per_node: {partition.gpus_per_node}
"""
    unit = "GPU" if partition.gpus_per_node else "core"
    return f"""\
  - name: {json.dumps(partition.name)}
    partition: {json.dumps(partition.name)}
    price_per_hour: 1.0         # YOUR PRICE of a rank: a {unit}
    billing: rank               # or node, as your site charges
    max_nodes: {partition.num_nodes}
    cores_per_node: {partition.cores_per_node}
    memory_per_node_gb: {partition.memory_per_node_gb}
{gpus if partition.gpus_per_node else ""}"""
