"""A folder in which the commands of the pages can be typed as printed: small files of their names.

examples/ slurm/                     as in the repository; ctr_small.yaml trains on less
job.yaml cluster.yaml recipe.yaml    a job on the rows below
rows.csv data/train data/test        rows, and what `heterps prepare` makes of them
train.txt train.gz ml-1m a9a …       public formats
runs/ctr-small                       what `heterps run examples/ctr_small.yaml` left
"""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
import yaml

from heterps_hpc.cli import app
from heterps_hpc.commands.prepare import default_run_dir
from heterps_hpc.config import Job
from tests.data.samples import write_criteo
from tests.data.test_sources import AVAZU_HEADER, avazu_line, write_movielens
from tests.docs.pages import ROOT
from tests.serving.test_predictor import write_csv
from tests.serving.trained import RECIPE, raw_columns

NUM_ROWS = 1500
SMALL: dict[str, Any] = {
    "name": "ctr-small",
    "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [8]},
    "data": {"train": "data/train", "test": "data/test"},
    "train": {"batch_size": 32, "metrics_every": 5, "tables": {"track_changes": True}},
    "goal": {"min_fraction_of_best": 0.3},
    "cluster": "cluster.yaml",
    "plan": {"scheduler": "greedy", "seconds": 1},
    "measure": {"batches": 2, "warmup": 1, "rank_counts": [1]},
    "launch": {"oversubscribe": True, "time_limit_minutes": 3},
}


class Sandbox:
    """The folder, and what was done in it; the test has made it its working directory."""

    def __init__(self, path: Path, *, measures: bool = True) -> None:
        """`measures`: else its pools are described by data sheets, which takes less time."""
        self.path = path
        self._num_outputs = 0
        shutil.copytree(ROOT / "examples", path / "examples", ignore=_results)
        (path / "slurm").symlink_to(ROOT / "slurm")
        for copy in (path / "cluster.yaml", path / "examples" / "cluster_local.yaml"):
            cluster = yaml.safe_load((ROOT / "examples" / "cluster_local.yaml").read_text())
            for pool in [] if measures else cluster["pools"]:
                pool["data_sheet"] = "cpu_core"
            copy.write_text(yaml.safe_dump(cluster))
        self._write_raw_files()
        self._write_jobs()

    def _write_raw_files(self) -> None:
        path = self.path
        ids = [f"r{number}" for number in range(NUM_ROWS)]
        columns = {**raw_columns(NUM_ROWS), "request": ids}
        write_csv(path / "rows.csv", columns)
        (path / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "id": "request"}))
        for part in (1, 2):
            with gzip.open(path / f"clicks-{part}.csv.gz", "wb") as file:
                file.write((path / "rows.csv").read_bytes())
            pq.write_table(pa.table(columns), path / f"part-{part}.parquet")
        write_criteo(path / "train.txt", 60)
        with gzip.open(path / "train.gz", "wt") as text:
            text.write(AVAZU_HEADER)
            text.writelines(
                avazu_line(n, n % 2, f"1410{n % 9 + 10:02d}0{n % 9}") for n in range(90)
            )
        write_movielens(path / "ml-1m", "1m")
        (path / "a9a").write_text("-1 3:1 11:0.5\n+1 2:1 5:0.25\n")
        heterps(
            "prepare csv rows.csv --recipe recipe.yaml --out data --split hash "
            "--test-fraction 0.2 --no-progress --processes 1"
        )

    def _write_jobs(self) -> None:
        (self.path / "job.yaml").write_text(yaml.safe_dump(SMALL))
        example = self.path / "examples"
        data = {name: f"../data/{name}" for name in ("train", "test")}
        small = {**SMALL, "data": data, "cluster": "cluster_local.yaml"}
        (example / "ctr_small.yaml").write_text(yaml.safe_dump(small))

    def train(self) -> None:
        """The first command of the tutorial; everything else looks at what it leaves."""
        heterps("run examples/ctr_small.yaml")
        (self.path / "runs").mkdir()
        for name in ("ctr-small", "ctr", "first"):
            (self.path / "runs" / name).symlink_to(self.path / "examples/runs/ctr-small")
        shutil.copy(self.path / "examples/runs/ctr-small/profile.json", self.path)

    def planned(self) -> Path:
        """A run that was planned and not started."""
        self._num_outputs += 1
        run = self.path / "runs" / f"planned-{self._num_outputs}"
        run.mkdir(parents=True)
        for name in ("job.json", "cluster.json", "profile.json", "layout.json", "planning.json"):
            shutil.copy(self.path / "examples/runs/ctr-small" / name, run)
        return run

    def measured(self, words: list[str]) -> None:
        """`heterps measure JOB`, without measuring: the first run's profile stands for it."""
        job = Path(words[2])
        if "--run-dir" in words:
            run = Path(words[words.index("--run-dir") + 1])
        else:
            run = default_run_dir(job.resolve().parent, Job.load(job))
        run.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.path / "profile.json", run)

    def fill_in(self, words: list[str]) -> list[str]:
        """Placeholders of the pages replaced: RUN, JOB, DATASET, a new OUT each time."""
        trains = words[:2] == ["heterps", "launch"] and "--dry-run" not in words
        self._num_outputs += 1
        values = {
            "RUN": str(self.planned()) if trains and "RUN" in words else "runs/ctr-small",
            "RUN_DIR": "runs/ctr-small",
            "JOB": "job.yaml",
            "DATASET": "data/test",
            "OUT": f"out-{self._num_outputs}",
        }
        filled = [values.get(word, word) for word in words]
        return [found for word in filled for found in self._expanded(word)]

    def _expanded(self, word: str) -> list[str]:
        if "*" not in word:
            return [word]
        return sorted(str(path.relative_to(self.path)) for path in self.path.glob(word)) or [word]


@contextmanager
def trained_sandbox(path: Path, *, measures: bool) -> Iterator[Sandbox]:
    """A sandbox with its run, as the working directory."""
    before = Path.cwd()
    os.chdir(path)
    try:
        made = Sandbox(path, measures=measures)
        made.train()
        yield made
    finally:
        os.chdir(before)


def heterps(command: str | list[str]) -> None:
    """One command line in this process, where torch is loaded already; an error is raised."""
    words = shlex.split(command) if isinstance(command, str) else command
    try:
        code = typer.main.get_command(app).main(words, prog_name="heterps", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except typer.Exit as end:
        code = end.exit_code
    if code not in (None, 0):
        raise AssertionError(f"heterps {' '.join(words)}: exit code {code}")


def _results(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("runs", "data", "__pycache__")}
