"""`heterps init` writes files that run as they are, or nearly."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from data_prep.draft import draft_recipe
from data_prep.recipe import Recipe
from data_prep.table import main as prepare_table
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands import init as commands
from heterps_hpc.commands.init import init, next_commands
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.launch.slurm.partitions import parse

SINFO = """\
cpu|2|4|1500|(null)
gpu|1|2+|1500|gpu:fake:2
gpu|3|8|3000+|gpu:a100:4(S:0-1),shard:8
"""


def rows(num_rows: int = 60) -> str:
    lines = ["request_id,when,user,item_id,tags,price,age group,no,clicked"]
    for n in range(num_rows):
        tags = "|".join(f"t{k}" for k in range(n % 4))
        stamp = f"2026-01-{n % 28 + 1:02d}T10:00:00"
        price = f"{n * 1.25}" if n % 9 else ""
        flag = "yes" if n % 3 == 0 else "no"
        lines.append(f"r{n},{stamp},u{n % 7},{n % 11},{tags},{price},{n % 5},{n * 7},{flag}")
    return "\n".join(lines) + "\n"


def test_without_slurm_it_is_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    init(tmp_path, None)
    job = Job.load(tmp_path / "job.yaml")
    assert job.cluster == tmp_path / "cluster.yaml"
    cluster, machine = Cluster.load(job.cluster), Cluster.this_machine()
    assert [pool.rank_limit for pool in cluster.pools] == [machine.pools[0].rank_limit]
    assert job.data.synthetic is not None


def test_partitions_become_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(commands, "partitions", lambda: parse(SINFO))
    init(tmp_path, None)
    cpu, gpu = Cluster.load(tmp_path / "cluster.yaml").pools
    assert (cpu.name, cpu.partition, cpu.max_nodes, cpu.cores_per_node) == ("cpu", "cpu", 2, 4)
    assert (cpu.device, cpu.memory_per_node_gb) == ("cpu", 1.5)
    assert (gpu.device, gpu.max_nodes, gpu.gpus_per_node) == ("cuda", 4, 2)
    assert (gpu.cores_per_node, gpu.memory_per_node_gb) == (2, 1.5)


def test_a_recipe_is_drafted_that_prepares_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my clicks.csv"
    file.write_text(rows())
    paths = init(tmp_path / "new", file)
    assert [path.name for path in paths] == ["job.yaml", "cluster.yaml", "recipe.yaml"]
    recipe = Recipe.load(tmp_path / "new" / "recipe.yaml")
    assert [label.column for label in recipe.labels] == ["clicked"]
    slots = {slot.column: (slot.integer, slot.separator) for slot in recipe.slots}
    assert slots == {
        "user": (False, None),
        "item_id": (True, None),
        "tags": (False, "|"),
        "age group": (True, None),
    }
    assert [column.column for column in recipe.dense] == ["price", "no"]
    assert (recipe.id, recipe.time) == ("request_id", "when")
    job = Job.load(tmp_path / "new" / "job.yaml")
    go, prepare, run = next_commands(tmp_path / "new", file)
    assert (shlex.split(go), run) == (["cd", str(tmp_path / "new")], "heterps run job.yaml")
    assert f"made by: {prepare}" in paths[0].read_text()
    monkeypatch.chdir(tmp_path / "new")
    assert prepare_table([*shlex.split(prepare)[3:], "--no-progress"]) == 0
    assert next_commands(Path(), None) == [run]
    assert (job.data.train / "manifest.json").exists()


@pytest.mark.parametrize(
    ("text", "label", "remark"),
    [
        ("a,rating\nx,4\ny,5\nx,2\n", "a", "NOT 0 or 1"),
        ("a,response\nx,4\ny,5\nx,2\n", "response", "NOT 0 or 1"),
        ("flag,a\n1,x\n0,y\n1,x\n", "flag", ""),
    ],
)
def test_a_label_is_guessed_and_a_doubtful_one_is_marked(
    tmp_path: Path, text: str, label: str, remark: str
) -> None:
    (tmp_path / "x.csv").write_text(text)
    drafted = draft_recipe(tmp_path / "x.csv")
    found: dict[str, Any] = yaml.safe_load(drafted)
    assert found["labels"] == [{"column": label}]
    assert ("NOT 0 or 1" in drafted) == bool(remark)


def test_nothing_is_overwritten_and_no_file_is_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        init(tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.yaml"]
    (tmp_path / "x.csv").write_text("a;b\n1;2\n")
    with pytest.raises(UserError, match="--delimiter"):
        init(tmp_path / "new", tmp_path / "x.csv")
    assert not (tmp_path / "new").exists()


def test_a_file_without_lines_is_refused_soon() -> None:
    with pytest.raises(UserError, match="/dev/zero: no end of line"):
        draft_recipe(Path("/dev/zero"))


def test_a_slurm_that_does_not_answer_is_one_short_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise UserError("sinfo: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host")

    monkeypatch.setattr(commands.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(commands, "partitions", fail)
    with caplog.at_level("INFO"):
        init(tmp_path, None)
    assert [record.message for record in caplog.records] == [
        "sinfo is here but no Slurm answers it; cluster.yaml describes this machine"
    ]


def test_odd_headers_are_drafted_so_that_they_prepare(tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    header = ',Event Time (UTC),user#id,Tags/Labels,"Device; OS",hour,Price €,Clicked?'
    body = [
        f"{n},2026-01-{n % 28 + 1:02d}T10:00:00,u{n % 7},a|b,Web,{n % 24},{n * 1.5},{n % 2}"
        for n in range(60)
    ]
    file.write_text("\n".join([header, *body]) + "\n")
    drafted = draft_recipe(file)
    assert "# left out: a column without a name" in drafted
    assert "Price €" in drafted
    (tmp_path / "recipe.yaml").write_text(drafted)
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    assert recipe.time == "Event Time (UTC)"
    assert [slot.slot for slot in recipe.slots] == ["user#id", "Tags_Labels", "Device; OS", "hour"]
    words = [str(file), "--recipe", str(tmp_path / "recipe.yaml"), "--no-progress"]
    assert prepare_table([*words, "--out", str(tmp_path / "out")]) == 0


def test_a_recipe_is_drafted_from_parquet_too(tmp_path: Path) -> None:
    when = [datetime(2026, 1, 1, n % 24, tzinfo=UTC) for n in range(60)]
    columns = {
        "ts": when,
        "user": [f"u{n % 7}" for n in range(60)],
        "tags": [["a", "b"][: n % 3] for n in range(60)],
        "price": [n * 1.5 if n % 5 else None for n in range(60)],
        "click": [n % 2 for n in range(60)],
    }
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), file)
    init(tmp_path / "new", file)
    recipe = Recipe.load(tmp_path / "new" / "recipe.yaml")
    assert [(slot.column, slot.many) for slot in recipe.slots] == [("user", False), ("tags", True)]
    assert ([column.column for column in recipe.dense], recipe.time) == (["price"], "ts")
    _, prepare, _ = next_commands(tmp_path / "new", file)
    assert prepare.startswith(f"heterps prepare parquet {file} --recipe recipe.yaml")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.csv", "a;b\n1;2\n", "1 column separated by ','; is it --delimiter ';'?"),
        ("x.csv", "a\tb\n1\t2\n", "is it --delimiter tab?"),
        ("x.csv", "user,user,click\na,b,0\n", "columns appear twice: user; rename one of each"),
        ("x.parquet", "a,b\n1,2\n", "not a Parquet file that can be read"),
    ],
)
def test_a_file_that_gives_no_recipe_is_refused_with_a_remedy(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        draft_recipe(tmp_path / name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        ([{"column": "a/b"}], "slot name 'a/b' must be printable, without '/'"),
        ([{"column": "a"}, {"column": "a", "integer": True}], "slot names appear twice: a"),
    ],
)
def test_names_that_no_data_set_can_have_are_refused_with_the_recipe(
    slots: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.parse({"labels": [{"column": "click"}], "slots": slots}, "recipe.yaml")
    assert said in str(caught.value)
    assert "`name:` gives a slot another name" in str(caught.value)
