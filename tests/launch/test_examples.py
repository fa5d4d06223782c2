"""The cluster files for typical sites: all load, and all render to valid scripts."""

import subprocess
from pathlib import Path

import pytest

from heterps_hpc.cluster import Cluster
from heterps_hpc.launch.slurm.script import render
from tests.launch.values import ROOT, make_job, make_layout

EXAMPLES = sorted((ROOT / "slurm/examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_renders(path: Path, tmp_path: Path) -> None:
    cluster = Cluster.load(path)
    layout = make_layout(cluster, *((pool.name, 3) for pool in cluster.pools))
    script = tmp_path / "job.sbatch"
    script.write_text(render(layout, cluster, make_job(), tmp_path, flavour="openmpi"))
    subprocess.run(["bash", "-n", script], check=True, timeout=20)
    text = script.read_text()
    assert text.count("#SBATCH hetjob\n") == len(cluster.pools) - 1
    for pool in cluster.pools:
        if pool.device == "cuda":
            assert "--gres=gpu" in text or "--gpus-per-node=" in text


def test_examples_are_all_listed() -> None:
    readme = (ROOT / "slurm/examples/README.md").read_text()
    assert EXAMPLES
    for path in EXAMPLES:
        assert f"({path.name})" in readme
