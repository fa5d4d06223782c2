"""Labels, times and files as people have them: mapped by the recipe, or refused with the remedy."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.csv_source import CsvSource
from data_prep.hashing import integer_of, keys_of_integers
from data_prep.libsvm import LibsvmSource
from data_prep.options import PrepareOptions
from data_prep.originals import Originals
from data_prep.pool import Meter, _progress
from data_prep.prepare import prepare
from data_prep.recipe import Recipe
from data_prep.table import table_source
from heterps_hpc.config import Job, ModelSpec
from heterps_hpc.dataset import (
    ColumnSelection,
    Dataset,
    Keys,
    Order,
    Reader,
    SampleRows,
    Schema,
    SlotSpec,
)
from heterps_hpc.dataset.show import head as heterps_head
from heterps_hpc.dataset.write import DatasetWriter
from heterps_hpc.errors import UserError
from heterps_hpc.models import build_model
from tests.data.samples import write_mixed

SITE: list[dict[str, Any]] = [{"column": "site"}]


def labels_of(tmp_path: Path, label: dict[str, Any], values: list[str]) -> list[float]:
    """The labels that a CSV file gives under a recipe."""
    rows = "\n".join(f'"{value}",s{number}' for number, value in enumerate(values))
    (tmp_path / "a.csv").write_text(f"y,site\n{rows}\n")
    recipe = Recipe.parse({"labels": [{"column": "y", **label}], "slots": SITE}, "recipe")
    prepare(CsvSource([tmp_path / "a.csv"], recipe), PrepareOptions(tmp_path / "out"))
    return read_labels(tmp_path / "out")


def read_labels(path: Path) -> list[float]:
    dataset = Dataset.open(path)
    order = Order(dataset, dataset.manifest.num_rows, shuffle=False)
    with Reader(dataset, order, ColumnSelection(labels=True), num_epochs=1) as reader:
        labels = next(reader).labels
    assert labels is not None
    return list(labels[:, 0].tolist())


@pytest.mark.parametrize(
    ("label", "values", "expected"),
    [
        ({}, ["yes", "No", "TRUE", "false", "1", "0", "0.25"], [1, 0, 1, 0, 1, 0, 0.25]),
        ({"positive": ["bought", "kept"]}, ["bought", "seen", "kept"], [1, 0, 1]),
        ({"positive": [1]}, ["-1", "+1", "1.0", "7"], [0, 1, 1, 0]),
        ({"positive": [True]}, ["yes", "no", "True"], [1, 0, 1]),
        ({"at_least": 4}, ["5", "3.5", "4"], [1, 0, 1]),
        ({"any_number": True}, ["7", "-2.5"], [7, -2.5]),
    ],
)
def test_labels_of_all_kinds(
    tmp_path: Path, label: dict[str, Any], values: list[str], expected: list[float]
) -> None:
    assert labels_of(tmp_path, label, values) == expected


@pytest.mark.parametrize("value", ["-1", "7", "maybe", "", "nan"])
def test_other_labels_are_refused_with_the_remedy(tmp_path: Path, value: str) -> None:
    with pytest.raises(UserError, match=r"line 3: column 1 \(y\): expected .*label|positive"):
        labels_of(tmp_path, {}, ["0", value])


def test_parquet_labels(tmp_path: Path) -> None:
    columns = {"y": [True, False], "z": ["yes", "no"], "w": [0, 1], "site": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for name, expected in (("y", [1, 0]), ("z", [1, 0]), ("w", [0, 1])):
        recipe = Recipe.parse({"labels": [{"column": name}], "slots": SITE}, "recipe")
        source = table_source([tmp_path / "a.parquet"], recipe)
        prepare(source, PrepareOptions(tmp_path / name))
        assert read_labels(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("time", "values"),
    [
        ("t", ["300", "100", "200"]),
        ("t", ["2024-03-01T10:00:00", "2023-01-01", "2024-02-29 23:59:59.5"]),
        ("t", ["2024-03-01T10:00:00Z", "2023-01-01T00:00:00Z", "2024-03-01T11:00:00+02:00"]),
        ({"column": "t", "format": "%d/%m/%Y %H:%M"}, ["02/01/2024 10:00", "01/02/2023 09:00",
                                                     "01/01/2024 10:00"]),
    ],
)  # fmt: skip
def test_times_of_all_kinds(tmp_path: Path, time: Any, values: list[str]) -> None:
    """The second row is the oldest, the first the newest: it becomes the test set."""
    rows = "\n".join(f"0.{number},x,{value}" for number, value in enumerate(values))
    (tmp_path / "a.csv").write_text(f"y,site,t\n{rows}\n")
    recipe = Recipe.parse({"labels": [{"column": "y"}], "slots": SITE, "time": time}, "recipe")
    options = PrepareOptions(tmp_path / "out", split="time", test_fraction=0.34)
    prepare(CsvSource([tmp_path / "a.csv"], recipe), options)
    assert read_labels(tmp_path / "out" / "test") == [0.0]
    assert read_labels(tmp_path / "out" / "train") == pytest.approx([0.1, 0.2])


def test_a_time_that_is_none_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,site,t\n0,x,2024-01-01\n1,x,01/02/2024\n")
    recipe = Recipe.parse({"labels": [{"column": "y"}], "slots": SITE, "time": "t"}, "recipe")
    with pytest.raises(UserError, match=r"line 3: column 3 \(t\): expected a time .*format"):
        prepare(CsvSource([tmp_path / "a.csv"], recipe), PrepareOptions(tmp_path / "out"))


LIBSVM = b"+1 3:0.5 10:1\n-1 qid:7 3:2 # a comment\n1\n"


def test_libsvm(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(LIBSVM)
    prepare(LibsvmSource([tmp_path / "a"], groups=True), PrepareOptions(tmp_path / "out"))
    dataset = Dataset.open(tmp_path / "out")
    selection = ColumnSelection(("features",), labels=True, group=True)
    with Reader(dataset, Order(dataset, 3, shuffle=False), selection, num_epochs=1) as reader:
        batch = next(reader)
    keys = batch.slots["features"]
    assert batch.labels is not None
    assert batch.group is not None
    assert keys.offsets is not None
    assert keys.weights is not None
    assert batch.labels[:, 0].tolist() == [1, 0, 1]
    assert keys.offsets.tolist() == [0, 2, 3, 3]
    assert keys.weights.tolist() == [0.5, 1, 2]
    assert keys.keys[0] == keys.keys[2] != keys.keys[1]
    assert batch.group.tolist() == [0, 7, 0]


def test_libsvm_with_other_labels(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"3 1:1\n5 1:1\n")
    with pytest.raises(UserError, match="line 1: expected a label -1, 0 or 1; --positive"):
        prepare(LibsvmSource([tmp_path / "a"]), PrepareOptions(tmp_path / "out"))
    prepare(LibsvmSource([tmp_path / "a"], (3.0,)), PrepareOptions(tmp_path / "out"))
    assert read_labels(tmp_path / "out") == [1, 0]


@pytest.mark.parametrize("line", [b"1 3:x", b"1 :1", b"1 3", b"1 -3:1", b"1 3:inf", b"x 3:1"])
def test_libsvm_bad_rows(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a").write_bytes(b"0 1:1\n" + line + b"\n")
    with pytest.raises(UserError, match="line 2: expected"):
        prepare(LibsvmSource([tmp_path / "a"]), PrepareOptions(tmp_path / "out"))
    made = prepare(
        LibsvmSource([tmp_path / "a"]), PrepareOptions(tmp_path / "kept", on_bad_row="skip")
    )
    assert made["train"].num_rows == 1


def test_a_failed_preparation_does_not_block_the_corrected_one(tmp_path: Path) -> None:
    """The bad row comes late, so that segments before it are finished."""
    good = "".join(f"{number % 2},site{number}\n" for number in range(2000))
    (tmp_path / "a.csv").write_text(f"y,site\n{good}7,last\n")
    wrong = Recipe.parse({"labels": [{"column": "y"}], "slots": SITE}, "recipe")
    options = PrepareOptions(tmp_path / "out", segment_mb=0.002)
    with pytest.raises(UserError, match="expected a label"):
        prepare(CsvSource([tmp_path / "a.csv"], wrong), options)
    assert list((tmp_path / "out").glob("shard-*.h5"))
    right = Recipe.parse({"labels": [{"column": "y", "positive": [1]}], "slots": SITE}, "recipe")
    made = prepare(CsvSource([tmp_path / "a.csv"], right), options)["train"]
    assert made.num_rows == 2001
    assert {shard.file for shard in made.shards} == {
        path.name for path in (tmp_path / "out").glob("shard-*.h5")
    }
    Dataset.open(tmp_path / "out", "checksums")


def write_labels(path: Path, labels: list[float]) -> Dataset:
    schema = Schema(slots=(SlotSpec(name="a"), SlotSpec(name="b")))
    keys = Keys(np.arange(len(labels), dtype=np.uint64))
    with DatasetWriter(path, schema) as writer:
        writer.append(SampleRows({"a": keys, "b": keys}, labels=np.array([labels]).T))
    return Dataset.open(path)


@pytest.mark.parametrize("labels", [[-1.0, 1.0], [0.0, 7.0]])
@pytest.mark.parametrize("name", ["ctrdnn", "nce", "matchnet", "two_embedding"])
def test_training_refuses_labels_that_its_loss_does_not_allow(
    tmp_path: Path, name: str, labels: list[float]
) -> None:
    dataset = write_labels(tmp_path / "d", labels)
    with pytest.raises(UserError, match=r"label 'label' goes from .*needs 0 to 1.*positive"):
        build_model(ModelSpec(name=name), dataset.manifest)
    assert build_model(ModelSpec(name=name), write_labels(tmp_path / "e", [0.0, 1.0]).manifest)


def test_the_test_set_is_held_to_the_same_labels(tmp_path: Path) -> None:
    from heterps_hpc.commands.prepare import ready_data

    write_labels(tmp_path / "train", [0, 1])
    write_labels(tmp_path / "test", [-1, 1])
    job = Job.parse(
        {
            "name": "j",
            "model": {"name": "ctrdnn"},
            "data": {"train": str(tmp_path / "train"), "test": str(tmp_path / "test")},
            "train": {"batch_size": 2},
        },
        "job",
    )
    with pytest.raises(UserError, match="test: label 'label' goes from -1 to 1"):
        ready_data(job)


def test_a_changed_byte_is_found_before_a_run(tmp_path: Path) -> None:
    from heterps_hpc.commands.prepare import check_bytes

    dataset = write_labels(tmp_path / "d", [0, 1])
    check_bytes(dataset)
    shard = next((tmp_path / "d").glob("shard-*.h5"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UserError, match="its checksum is"):
        check_bytes(dataset)


@pytest.mark.parametrize("label", [np.nan, np.inf])
def test_labels_given_to_the_writer_are_finite(tmp_path: Path, label: float) -> None:
    with pytest.raises(ValueError, match=r"label 'label' is (nan|inf) in row 1"):
        write_labels(tmp_path / "d", [0, label])
    assert not (tmp_path / "d" / "manifest.json").exists()


@pytest.mark.parametrize("weight", [np.nan, np.inf, -0.5])
def test_sample_weights_given_to_the_writer_can_be_summed(tmp_path: Path, weight: float) -> None:
    schema = Schema(slots=(), labels=("click",), has_weight=True)
    weights = np.array([1, 0, weight], np.float32)
    rows = SampleRows(labels=np.zeros((3, 1), np.float32), weight=weights)
    with (
        pytest.raises(ValueError, match=rf"weight is {weight} in row 2; it must be"),
        DatasetWriter(tmp_path / "d", schema) as writer,
    ):
        writer.append(rows)


def test_a_dataset_without_label_ranges_is_still_read(tmp_path: Path) -> None:
    dataset = write_labels(tmp_path / "d", [0, 1])
    path = tmp_path / "d" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["label_ranges"]
    for slot in manifest["slots"]:
        del slot["sampled_keys"], slot["missing_rate"]
    path.write_text(json.dumps(manifest))
    older = Dataset.open(tmp_path / "d")
    assert older.manifest.fingerprint() == dataset.manifest.fingerprint()
    assert build_model(ModelSpec(name="nce"), older.manifest)


def test_the_bar_ends_at_100_percent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    meter = Meter(1000, "writing")
    with _progress(meter, show=True):
        meter.add(10, 540)  # Parquet counts bytes otherwise than its files
    assert "100 %" in capsys.readouterr().err


def test_a_pipe_gets_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_prep.pool._FIRST_SECONDS", 0.0)
    meter = Meter(1000, "writing")
    with _progress(meter, show=True) as refresh:
        meter.add(12345, 540)
        refresh()
        refresh()  # too soon for another
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("writing · 54 % · 12,345 rows · ")


def test_head_cuts_no_value_in_a_narrow_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    rows = write_mixed(tmp_path / "d", 5)
    console = Console(width=60, record=True, file=io.StringIO())
    heterps_head(tmp_path / "d", 5, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 60
    assert all(f"{int(key):016x}" in text for key in rows.slots["many"].keys)
    assert "row 4" in text


def test_info_marks_estimates_and_shows_missing_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from heterps_hpc.dataset.show import info

    rows = "".join(f"{n % 2},user{n},{'' if n % 4 else 'x'}\n" for n in range(6000))
    (tmp_path / "a.csv").write_text(f"y,user,site\n{rows}")
    slots = [{"column": "user"}, {"column": "site"}]
    recipe = Recipe.parse({"labels": [{"column": "y"}], "slots": slots}, "recipe")
    options = PrepareOptions(tmp_path / "out", segment_mb=0.02)  # several segments to add up
    manifest = prepare(CsvSource([tmp_path / "a.csv"], recipe), options)["train"]
    assert [slot.missing_rate for slot in manifest.slots] == [0, 0.75]
    info(tmp_path / "out")
    shown = capsys.readouterr().out
    assert "75.00 %" in shown
    assert f"≈ {manifest.slots[0].cardinality:,}" in shown  # more than 4,096 are estimated
    assert "from 0 to 1" in shown


def test_head_shows_original_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Integers, logarithms, ids and missing values have a way back; texts have none."""
    (tmp_path / "a.csv").write_text("y,site,item,price,row\n1,x,4711,99.5,r-1\n0,y,,0,r-2\n")
    recipe = Recipe.parse(
        {
            "labels": [{"column": "y"}],
            "slots": [{"column": "site"}, {"column": "item", "integer": True}],
            "dense": [{"column": "price", "transform": "log"}],
            "id": "row",
        },
        "recipe",
    )
    prepare(CsvSource([tmp_path / "a.csv"], recipe), PrepareOptions(tmp_path / "out"))
    heterps_head(tmp_path / "out", originals=Originals)
    shown = capsys.readouterr().out
    for value in ("4711", "99.5", "(missing)", "r-1", "r-2"):
        assert value in shown
    heterps_head(tmp_path / "out")
    assert "4711" not in capsys.readouterr().out


def test_the_way_back_from_integers(tmp_path: Path) -> None:
    integers = np.array([0, 1, 77, 2**32 - 1, 2**63 - 1], np.uint64)
    assert integer_of("s", keys_of_integers("s", integers)).tolist() == integers.tolist()
