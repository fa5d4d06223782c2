"""Avazu, MovieLens, CSV and Parquet: round trips of small files in the true formats."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from data_prep import SOURCES
from data_prep.avazu import AvazuSource
from data_prep.csv_source import CsvSource
from data_prep.hashing import keys_of_integers, keys_of_texts, missing_key, slot_base
from data_prep.movielens import MovieLensSource
from data_prep.options import PrepareOptions
from data_prep.prepare import prepare
from data_prep.recipe import DenseColumn, LabelColumn, Recipe, SlotColumn
from data_prep.table import main as table_main
from data_prep.table import table_source
from heterps_hpc.dataset import Batch, ColumnSelection, Dataset, Keys, Order, Reader
from heterps_hpc.errors import UserError


def read_all(path: Path) -> Batch:
    dataset = Dataset.open(path, verify="checksums")
    manifest = dataset.manifest
    want = ColumnSelection(
        tuple(slot.name for slot in manifest.slots),
        bool(manifest.dense_columns),
        True,
        manifest.has_weight,
        manifest.has_group,
    )
    order = Order(dataset, manifest.num_rows, shuffle=False)
    with Reader(dataset, order, want, num_epochs=1) as reader:
        return next(reader)


def text_key(slot: str, text: str) -> int:
    return int(keys_of_texts(slot, [text.encode()])[0])


def integer_key(slot: str, value: int) -> int:
    return int(keys_of_integers(slot, np.array([value], np.uint64))[0])


def groups(keys: Keys) -> list[list[int]]:
    assert keys.offsets is not None
    return [part.tolist() for part in np.split(keys.keys, keys.offsets[1:-1])]


def test_the_hash_is_the_documented_one() -> None:
    assert slot_base("C1") == xxhash.xxh3_64_intdigest(b"C1")
    assert text_key("site", "a1b2") == xxhash.xxh3_64_intdigest(b"a1b2", slot_base("site"))
    # SplitMix64's first output for the state 0 is mix64(golden ratio)
    value = (0x9E3779B97F4A7C15 - slot_base("x")) % 2**64
    assert integer_key("x", value) == 0xE220A8397B1DCDAF


AVAZU_HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
    "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
    "C14,C15,C16,C17,C18,C19,C20,C21\n"
)


def avazu_line(number: int, click: int, hour: str, site: str = "1fbe01fe") -> str:
    return (
        f"{10**18 + number},{click},{hour},1005,0,{site},f3845767,28905ebd,ecad2386,7801e8d9,"
        f"07d7df22,a99f214a,ddd2926e,44956a24,1,2,15706,320,50,1722,0,35,-1,79\n"
    )


@pytest.mark.parametrize("packed", [False, True])
def test_avazu(tmp_path: Path, packed: bool) -> None:
    lines = [avazu_line(n, n % 2, f"1410{21 + n // 24:02d}{n % 24:02d}") for n in range(60)]
    text = (AVAZU_HEADER + "".join(lines)).encode()
    path = tmp_path / "train.gz"
    path.write_bytes(gzip.compress(text) if packed else text)
    made = prepare(
        AvazuSource([path]), PrepareOptions(tmp_path / "out", split="time", test_fraction=0.2)
    )
    assert {part: manifest.num_rows for part, manifest in made.items()} == {
        "train": 48,
        "test": 12,
    }
    batch = read_all(tmp_path / "out" / "train")
    assert batch.labels is not None
    assert batch.labels[:, 0].tolist() == [n % 2 for n in range(48)]
    assert set(batch.slots["site_id"].keys.tolist()) == {text_key("site_id", "1fbe01fe")}
    assert set(batch.slots["C20"].keys.tolist()) == {text_key("C20", "-1")}
    hours = [integer_key("hour_of_day", n % 24) for n in range(48)]
    assert batch.slots["hour_of_day"].keys.tolist() == hours
    # 21 October 2014 was a Tuesday
    assert int(batch.slots["weekday"].keys[0]) == integer_key("weekday", 1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (avazu_line(0, 7, "14102100"), r"\(click\): expected a label from 0 to 1"),
        (avazu_line(0, 1, "14132100"), "an hour YYMMDDHH"),
        (avazu_line(0, 1, "x"), r"column 3 \(hour\): expected a time as a number"),
        ("1,0,14102100\n", "expected 24 fields separated by ',', got 3 fields"),
        (avazu_line(0, 1, "14102100", "\udcff"), "expected UTF-8 text, got byte 0xff"),
    ],
)
def test_avazu_bad_rows(tmp_path: Path, bad: str, message: str) -> None:
    text = AVAZU_HEADER + avazu_line(1, 0, "14102101") + bad
    (tmp_path / "a").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=f"a, line 3: .*{message}"):
        prepare(AvazuSource([tmp_path / "a"]), PrepareOptions(tmp_path / "out"))
    made = prepare(
        AvazuSource([tmp_path / "a"]), PrepareOptions(tmp_path / "skipped", on_bad_row="skip")
    )
    assert made["train"].num_rows == 1


RATINGS = [(1, 10, 5.0, 300), (2, 20, 3.0, 100), (1, 20, 4.0, 200), (3, 10, 1.0, 400)]


def write_movielens(directory: Path, kind: str) -> None:
    directory.mkdir()
    if kind == "1m":
        rows = [f"{u}::{i}::{r:.0f}::{t}\n" for u, i, r, t in RATINGS]
        (directory / "ratings.dat").write_text("".join(rows))
        (directory / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n")
        (directory / "movies.dat").write_bytes(
            "10::Misérables, Les (1995)::Drama|Musical\n20::Heat (1995)::Action\n".encode("latin-1")
        )
    elif kind == "100k":
        rows = [f"{u}\t{i}\t{r:.0f}\t{t}\n" for u, i, r, t in RATINGS]
        (directory / "u.data").write_text("".join(rows))
        (directory / "u.user").write_text("1|24|F|technician|85711\n2|53|M|other|94043\n")
        flags = {10: (8, 12), 20: (1,)}
        lines = [
            f"{item}|Título (1995)|01-Jan-1995||http://x|"
            + "|".join("1" if place in chosen else "0" for place in range(19))
            for item, chosen in flags.items()
        ]
        (directory / "u.item").write_bytes("\n".join(lines).encode("latin-1"))
    else:
        rows = [f"{u},{i},{r},{t}\n" for u, i, r, t in RATINGS]
        (directory / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(rows))
        (directory / "movies.csv").write_text(
            'movieId,title,genres\n10,"Misérables, Les (1995)",Drama|Musical\n'
            "20,Heat (1995),Action\n",
            encoding="utf-8",
        )


@pytest.mark.parametrize("kind", ["1m", "100k", "csv"])
def test_movielens(tmp_path: Path, kind: str) -> None:
    write_movielens(tmp_path / "ml", kind)
    prepare(MovieLensSource(tmp_path / "ml"), PrepareOptions(tmp_path / "out"))
    batch = read_all(tmp_path / "out")
    assert batch.labels is not None
    assert batch.labels[:, 0].tolist() == [1, 0, 1, 0]
    assert batch.slots["user"].keys.tolist() == [integer_key("user", u) for u, *_ in RATINGS]
    assert batch.slots["item"].keys.tolist() == [integer_key("item", i) for _, i, *_ in RATINGS]
    drama = [text_key("genres", "Drama"), text_key("genres", "Musical")]
    action = [text_key("genres", "Action")]
    assert groups(batch.slots["genres"]) == [drama, action, action, drama]
    assert batch.group is not None
    assert len(np.unique(batch.group)) == 3
    if kind == "csv":
        assert "gender" not in batch.slots
    else:
        female, male = text_key("gender", "F"), text_key("gender", "M")
        genders = [female, male, female, missing_key("gender")]
        assert batch.slots["gender"].keys.tolist() == genders


def test_movielens_split_by_time(tmp_path: Path) -> None:
    write_movielens(tmp_path / "ml", "csv")
    prepare(
        MovieLensSource(tmp_path / "ml"),
        PrepareOptions(tmp_path / "out", split="time", test_fraction=0.5),
    )
    test = read_all(tmp_path / "out" / "test")
    assert test.slots["user"].keys.tolist() == [integer_key("user", 1), integer_key("user", 3)]


def test_movielens_without_ratings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no ratings\.dat, ratings\.csv or u\.data"):
        MovieLensSource(tmp_path)


RECIPE = Recipe(
    labels=(LabelColumn(column="click"), LabelColumn(column="stars", at_least=3)),
    slots=(
        SlotColumn(column="site"),
        SlotColumn(column="item", integer=True),
        SlotColumn(column="tags", separator="|"),
    ),
    dense=(DenseColumn(column="price", transform="log"), DenseColumn(column="age")),
    weight="w",
    group="session",
    time="t",
)
TABLE: dict[str, list[Any]] = {
    "session": ["a", "a", "b", "c"],
    "click": [0, 1, 1, 0],
    "stars": [1.0, 3.0, 5.0, 2.5],
    "site": ["x, y", "ü", None, "x, y"],
    "item": [7, 0, 12345678901, None],
    "tags": ["p|q", "", "q", "q||q"],
    "price": [0.0, -3.0, 1.718281828, None],
    "age": [30.0, -1.0, None, 2.0],
    "w": [1.0, 0.5, 2.0, 1.0],
    "t": [4, 3, 2, 1],
    "unused": ["1", "2", "3", "4"],
}


def as_csv(table: dict[str, list[Any]]) -> str:
    def field(value: Any) -> str:
        text = "" if value is None else str(value)
        return f'"{text}"' if "," in text else text

    lines = [",".join(table)]
    lines += [",".join(field(value) for value in row) for row in zip(*table.values(), strict=True)]
    return "\n".join(lines) + "\n"


def check_table(batch: Batch) -> None:
    assert batch.labels is not None
    assert batch.dense is not None
    assert batch.weight is not None
    assert batch.group is not None
    assert batch.labels.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0]]
    np.testing.assert_allclose(batch.dense, [[0, 30], [0, -1], [1, 0], [0, 2]], rtol=1e-6)
    assert batch.weight.tolist() == [1, 0.5, 2, 1]
    site = [text_key("site", "x, y"), text_key("site", "ü"), missing_key("site")]
    assert batch.slots["site"].keys.tolist() == [*site, site[0]]
    item = [integer_key("item", value) for value in (7, 0, 12345678901)]
    assert batch.slots["item"].keys.tolist() == [*item, missing_key("item")]
    p, q = text_key("tags", "p"), text_key("tags", "q")
    assert groups(batch.slots["tags"]) == [[p, q], [], [q], [q, q]]
    assert batch.group[0] == batch.group[1] != batch.group[2]


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(as_csv(TABLE), encoding="utf-8")
    made = prepare(CsvSource([tmp_path / "a.csv"], RECIPE), PrepareOptions(tmp_path / "out"))
    check_table(read_all(tmp_path / "out"))
    rates = {slot.name: slot.missing_rate for slot in made["train"].slots}
    assert rates == {"site": 0.25, "item": 0.25, "tags": 0.25}


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table(TABLE), tmp_path / "a.parquet", row_group_size=3)
    source = table_source([tmp_path / "a.parquet"], RECIPE)
    prepare(source, PrepareOptions(tmp_path / "out", segment_mb=1e-6))
    assert len(Dataset.open(tmp_path / "out").manifest.shards) == 2
    check_table(read_all(tmp_path / "out"))


def test_parquet_lists_are_slots_of_many_keys(tmp_path: Path) -> None:
    table = pa.table(
        {"y": [0.0, 1.0, 1.0], "tags": [["p", "q"], [], None], "ids": [[1], [2, 3], []]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    recipe = Recipe(
        labels=(LabelColumn(column="y"),),
        slots=(
            SlotColumn(column="tags", many=True),
            SlotColumn(column="ids", many=True, integer=True),
        ),
    )
    prepare(table_source([tmp_path / "a.parquet"], recipe), PrepareOptions(tmp_path / "out"))
    batch = read_all(tmp_path / "out")
    assert groups(batch.slots["tags"]) == [[text_key("tags", "p"), text_key("tags", "q")], [], []]
    ids = [[integer_key("ids", value) for value in row] for row in ([1], [2, 3], [])]
    assert groups(batch.slots["ids"]) == ids


def test_table_split_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(as_csv(TABLE), encoding="utf-8")
    pq.write_table(pa.table(TABLE), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        out = tmp_path / f"out-{name}"
        prepare(
            table_source([tmp_path / name], RECIPE),
            PrepareOptions(out, split="time", test_fraction=0.25),
        )
        assert read_all(out / "test").weight.tolist() == [1]  # type: ignore[union-attr]
        assert read_all(out / "train").weight.tolist() == [0.5, 2, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("click", "", r"column 2 \(click\): expected a label in every row, got ''"),
        ("price", "cheap", r"column 7 \(price\): expected a number, got 'cheap'"),
        ("age", "inf", r"column 8 \(age\): expected a finite number"),
        ("item", "1.5", r"column 5 \(item\): expected an integer, got '1.5'"),
        ("item", "-4", "expected a row of the recipe's types"),
        ("click", "7", r"column 2 \(click\): expected a label from 0 to 1.*positive"),
        ("click", "-1", r"column 2 \(click\): expected a label from 0 to 1.*positive"),
        ("click", "maybe", r"column 2 \(click\): expected a finite number, yes/no"),
        ("w", "", r"column 9 \(w\): expected a number, got ''"),
        ("w", "-1", r"column 9 \(w\): expected a number, 0 or more, got '-1'"),
        ("t", "soon", r"column 10 \(t\): expected a time as a number or ISO 8601"),
        ("site", 'x"y', None),
        ("session", "a,b,c", None),
    ],
)
def test_csv_bad_rows(tmp_path: Path, column: str, value: str, message: str | None) -> None:
    table = {name: list(values) for name, values in TABLE.items()}
    table[column][2] = value
    (tmp_path / "a.csv").write_text(as_csv(table), encoding="utf-8")
    source = CsvSource([tmp_path / "a.csv"], RECIPE)
    if message is None:  # odd, but well-formed
        assert prepare(source, PrepareOptions(tmp_path / "out"))["train"].num_rows == 4
        return
    with pytest.raises(UserError, match=f"a.csv, line 4: {message}"):
        prepare(source, PrepareOptions(tmp_path / "out"))


def test_wrong_recipes_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(as_csv(TABLE), encoding="utf-8")
    recipe = RECIPE.model_copy(update={"weight": "wieght"})
    with pytest.raises(UserError, match="no column 'wieght'"):
        CsvSource([tmp_path / "a.csv"], recipe)
    head, *rest = as_csv(TABLE).splitlines()
    label = RECIPE.labels[0].column
    (tmp_path / "b.csv").write_text("\n".join([f"{label},{head}", *(f"1,{x}" for x in rest)]))
    with pytest.raises(UserError, match=f"2 columns are called '{label}'; rename all but one"):
        CsvSource([tmp_path / "b.csv"], RECIPE)
    (tmp_path / "r.yaml").write_text("labels: [{column: click}]\nslotz: []\n")
    with pytest.raises(UserError, match="slotz: unknown key; did you mean 'slots'"):
        Recipe.load(tmp_path / "r.yaml")


def test_the_table_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("1;x\n0;y\n")
    (tmp_path / "r.yaml").write_text("labels: [{column: y}]\nslots: [{column: site}]\n")
    code = table_main(
        f"{tmp_path}/a.csv --recipe {tmp_path}/r.yaml --out {tmp_path}/out --delimiter ; "
        "--columns y,site --no-progress".split()
    )
    assert code == 0, capsys.readouterr().err
    assert read_all(tmp_path / "out").slots["site"].keys.tolist() == [
        text_key("site", "x"),
        text_key("site", "y"),
    ]


def test_every_source_has_a_command() -> None:
    import importlib

    for module in SOURCES.values():
        assert callable(importlib.import_module(module).main)
