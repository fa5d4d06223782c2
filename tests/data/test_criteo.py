"""Criteo logs: the fast parser against a plain one, bad rows, splits, resuming."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import criteo_rows
from data_prep.criteo import CriteoSource, main
from data_prep.hashing import keys_of_integers, missing_key, rare_key
from data_prep.options import PrepareOptions
from data_prep.prepare import prepare
from heterps_hpc.dataset import Batch, ColumnSelection, Dataset, Order, Reader, SampleRows
from heterps_hpc.errors import UserError
from tests.data.samples import assert_same_keys, write_criteo

CATEGORIES = criteo_rows.CATEGORIES


def plain_parse(lines: list[bytes]) -> tuple[list[int], list[list[float]], list[list[int]]]:
    """What the fast parser must agree with: one line at a time, in plain Python."""
    labels, dense, keys = [], [], []
    for line in lines:
        fields = line.rstrip(b"\n").split(b"\t")
        labels.append(int(fields[0]))
        dense.append([math.log1p(max(int(field or 0), 0)) for field in fields[1:14]])
        keys.append(
            [
                int(keys_of_integers(slot, np.array([int(field, 16)], np.uint64))[0])
                if field
                else missing_key(slot)
                for slot, field in zip(CATEGORIES, fields[14:], strict=True)
            ]
        )
    return labels, dense, keys


def assert_parsed(rows: SampleRows, lines: list[bytes]) -> None:
    labels, dense, keys = plain_parse(lines)
    assert rows.labels is not None
    assert rows.dense is not None
    assert rows.labels[:, 0].tolist() == labels
    np.testing.assert_allclose(rows.dense, dense, rtol=1e-6)
    got = np.stack([rows.slots[slot].keys for slot in CATEGORIES], axis=1)
    assert got.tolist() == keys


field_integers = st.one_of(
    st.just(b""),
    st.integers(-3, 10**8).map(lambda n: b"%d" % n),
    st.integers(10**8, 10**18 - 1).map(lambda n: b"%d" % n),
    st.integers(0, 999).map(lambda n: b"%06d" % n),
)
field_categories = st.one_of(st.just(b""), st.integers(0, 2**32 - 1).map(lambda n: b"%08x" % n))
criteo_lines = st.tuples(
    st.sampled_from([b"0", b"1"]),
    st.lists(field_integers, min_size=13, max_size=13),
    st.lists(field_categories, min_size=26, max_size=26),
).map(lambda parts: b"\t".join([parts[0], *parts[1], *parts[2]]) + b"\n")


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(criteo_lines, min_size=1, max_size=5))
def test_fast_parser_agrees_with_the_plain_one(lines: list[bytes]) -> None:
    rows = criteo_rows.parse(b"".join(lines))
    assert rows is not None
    assert_parsed(rows, lines)


@settings(max_examples=200, deadline=None)
@given(line=criteo_lines, data=st.data())
def test_fast_parser_refuses_exactly_what_is_wrong(line: bytes, data: st.DataObject) -> None:
    # one byte changed anywhere: taken if and only if the line is still well-formed
    place = data.draw(st.integers(0, len(line) - 2))
    byte = data.draw(st.sampled_from(b"0189afgxAF-+ .\t\xff"))
    changed = line[:place] + bytes([byte]) + line[place + 1 :]
    good, bad = criteo_rows.sift(changed)
    rows = criteo_rows.parse(changed)
    assert (rows is None) == bool(bad)
    if rows is not None:
        assert good == changed
        assert_parsed(rows, [changed])


def options(out: Path, **more: Any) -> PrepareOptions:
    return PrepareOptions(out, **{"block_rows": 64, **more})


def read_all(path: Path) -> Batch:
    dataset = Dataset.open(path, verify="checksums")
    want = ColumnSelection(CATEGORIES, dense=True, labels=True)
    order = Order(dataset, dataset.manifest.num_rows, shuffle=False)
    with Reader(dataset, order, want, num_epochs=1) as reader:
        return next(reader)


def as_rows(batch: Batch) -> SampleRows:
    return SampleRows(batch.slots, batch.dense, batch.labels)


def test_round_trip_of_several_files(tmp_path: Path) -> None:
    lines = write_criteo(tmp_path / "a.txt", 300, seed=1)
    lines += write_criteo(tmp_path / "b.txt", 200, seed=2)
    source = CriteoSource([tmp_path / "a.txt", tmp_path / "b.txt"])
    prepare(source, options(tmp_path / "out", segment_mb=0.02))
    assert len(Dataset.open(tmp_path / "out").manifest.shards) > 4
    assert_parsed(as_rows(read_all(tmp_path / "out")), lines)
    assert not (tmp_path / "out" / ".work").exists()


def test_plain_and_compressed_give_the_same_dataset(tmp_path: Path) -> None:
    write_criteo(tmp_path / "plain", 400)
    text = (tmp_path / "plain").read_bytes()
    (tmp_path / "gz").write_bytes(gzip.compress(text[:10_000]) + gzip.compress(text[10_000:]))
    (tmp_path / "bz2").write_bytes(bz2.compress(text))
    (tmp_path / "xz").write_bytes(lzma.compress(text))
    (tmp_path / "zst").write_bytes(pa.Codec("zstd").compress(text, asbytes=True))
    (tmp_path / "crlf").write_bytes(text.replace(b"\n", b"\r\n"))
    (tmp_path / "cut").write_bytes(text[:-1])  # no line end after the last row
    fingerprints = {}
    for name in ("plain", "gz", "bz2", "xz", "zst", "cut", "crlf"):
        size = 1.0 if name == "crlf" else 0.02  # line ends count as text
        made = prepare(
            CriteoSource([tmp_path / name]), options(tmp_path / f"out-{name}", segment_mb=size)
        )
        fingerprints[name] = made["train"].fingerprint()
    crlf = fingerprints.pop("crlf")
    assert len(set(fingerprints.values())) == 1
    whole = prepare(CriteoSource([tmp_path / "plain"]), options(tmp_path / "out-whole"))
    assert whole["train"].fingerprint() == crlf


def test_processes_do_not_change_the_result(tmp_path: Path) -> None:
    write_criteo(tmp_path / "a", 500)
    source = CriteoSource([tmp_path / "a"])
    made = [
        prepare(source, options(tmp_path / f"out{count}", segment_mb=0.02, processes=count))
        for count in (1, 2)
    ]
    assert made[0]["train"].fingerprint() == made[1]["train"].fingerprint()
    left, right = (Dataset.open(tmp_path / f"out{count}") for count in (1, 2))
    np.testing.assert_array_equal(left.key_sample("C2"), right.key_sample("C2"))


@pytest.mark.parametrize("kind", ["hash", "time"])
def test_split(tmp_path: Path, kind: Any) -> None:
    lines = write_criteo(tmp_path / "a", 2000)
    made = prepare(
        CriteoSource([tmp_path / "a"]),
        options(
            tmp_path / "out", split=kind, valid_fraction=0.2, test_fraction=0.3, segment_mb=0.1
        ),
    )
    counts = {part: manifest.num_rows for part, manifest in made.items()}
    assert sum(counts.values()) == 2000
    assert counts["valid"] == pytest.approx(400, abs=60)
    assert counts["test"] == pytest.approx(600, abs=60)
    parts = [as_rows(read_all(tmp_path / "out" / part)) for part in ("train", "valid", "test")]
    together = SampleRows.join(parts)
    if kind == "time":
        assert_parsed(together, lines)
    else:
        whole = criteo_rows.parse(b"".join(lines))
        assert whole is not None
        left, right = (np.sort(rows.slots["C2"].keys) for rows in (together, whole))
        np.testing.assert_array_equal(left, right)
        assert not np.array_equal(together.slots["C2"].keys, whole.slots["C2"].keys)


def test_rare_keys_become_one(tmp_path: Path) -> None:
    lines = write_criteo(tmp_path / "a", 600)
    source = CriteoSource([tmp_path / "a"])
    prepare(source, options(tmp_path / "out", min_count=5, segment_mb=0.02, processes=2))
    whole = criteo_rows.parse(b"".join(lines))
    assert whole is not None
    got = read_all(tmp_path / "out")
    for slot in ("C1", "C2"):
        keys = whole.slots[slot].keys
        distinct, counts = np.unique(keys, return_counts=True)
        frequent = np.isin(keys, distinct[counts >= 5])
        expected = np.where(frequent, keys, np.uint64(rare_key(slot)))
        np.testing.assert_array_equal(got.slots[slot].keys, expected)
    assert (got.slots["C2"].keys == rare_key("C2")).any()


def test_cap_on_keys(tmp_path: Path) -> None:
    write_criteo(tmp_path / "a", 600)
    made = prepare(CriteoSource([tmp_path / "a"]), options(tmp_path / "out", max_keys=7))
    assert all(slot.cardinality <= 7 for slot in made["train"].slots)
    assert made["train"].slot("C2").cardinality == 7


def line_of(fields: int = 40, **changes: bytes) -> bytes:
    parts = [b"1"] + [b"3"] * 13 + [b"0000000a"] * 26
    for place, text in changes.items():
        parts[int(place[1:])] = text
    return b"\t".join((parts + parts[-1:])[:fields]) + b"\n"


BAD = [
    (line_of(37), "40 tab-separated fields .*, got 37 fields"),
    (line_of(38), "got 38 fields"),
    (line_of(41), "got 41 fields"),
    (line_of(f2=b"x7"), r"column 3 \(I2\): expected an integer or nothing, got b'x7'"),
    (line_of(f2=b"1.5"), r"column 3 \(I2\)"),
    (line_of(f3=b"-"), r"column 4 \(I3\)"),
    (line_of(f0=b"2"), r"column 1 \(label\): expected a label, 0 or 1"),
    (line_of(f0=b""), r"column 1 \(label\)"),
    (line_of(f20=b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe"), r"column 21 \(C7\): expected 8 lower-case"),
    (line_of(f20=b"0000000"), r"column 21 \(C7\)"),
    (line_of(f39=b"0000000g"), r"column 40 \(C26\)"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_bad_row_stops_with_its_place(tmp_path: Path, bad: bytes, message: str) -> None:
    good = write_criteo(tmp_path / "a", 250)
    (tmp_path / "a").write_bytes(b"".join([*good[:170], bad, *good[170:]]))
    with pytest.raises(UserError, match=rf"a, line 171: .*{message}"):
        prepare(CriteoSource([tmp_path / "a"]), options(tmp_path / "out", segment_mb=0.01))
    with pytest.raises(UserError, match="did not finish"):
        Dataset.open(tmp_path / "out")


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    good = write_criteo(tmp_path / "a", 300)
    mixed = [*good[:100], BAD[0][0], *good[100:200], BAD[3][0], BAD[7][0], *good[200:]]
    (tmp_path / "a").write_bytes(b"".join(mixed))
    made = prepare(
        CriteoSource([tmp_path / "a"]),
        options(tmp_path / "out", on_bad_row="skip", max_bad=3, segment_mb=0.02),
    )
    assert made["train"].made["num_bad_rows"] == 3
    assert_parsed(as_rows(read_all(tmp_path / "out")), good)
    listed = (tmp_path / "out" / "bad_rows.txt").read_bytes().splitlines()
    assert [line.split(b":")[0] for line in listed] == [
        str(tmp_path / "a").encode() + b", line %d" % number for number in (101, 202, 203)
    ]
    assert listed[0].endswith(BAD[0][0].rstrip(b"\n"))


def test_too_many_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BAD[0][0] * 5)
    with pytest.raises(UserError, match="bad row number 3, more than --max-bad 2"):
        prepare(
            CriteoSource([tmp_path / "a"]), options(tmp_path / "out", on_bad_row="skip", max_bad=2)
        )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_criteo(tmp_path / "a", 100)
    arguments = [str(tmp_path / "a"), "--out", str(tmp_path / "out"), "--processes", "1"]
    assert main(arguments) == 0
    assert "100 rows in 1 shard," in capsys.readouterr().out
    assert main(arguments) == 2
    assert "there is a dataset already" in capsys.readouterr().err


def test_same_rows_as_one_block(tmp_path: Path) -> None:
    lines = write_criteo(tmp_path / "a", 50)
    prepare(CriteoSource([tmp_path / "a"]), options(tmp_path / "out"))
    whole = criteo_rows.parse(b"".join(lines))
    assert whole is not None
    batch = read_all(tmp_path / "out")
    for slot in CATEGORIES:
        assert_same_keys(batch.slots[slot], whole.slots[slot])
