"""The page: complete, self-contained, safe against hostile names, and open to half a run."""

import json
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.report import charts, write_report
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.outcome import sentences
from heterps_hpc.rundir import RunDir
from tests.report.made_up import job, layout, planning, profile, summary, write_run
from tests.report.reading import Page

FILES = (
    "job.json", "cluster.json", "profile.json", "layout.json", "planning.json", "metrics.jsonl",
    "summary.json", "trace.json",
)  # fmt: skip


def page_of(run: RunDir) -> Page:
    return Page(write_report(run).read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose page is written once, for the tests that only look at it."""
    run = write_run(tmp_path_factory.mktemp("whole") / "run")
    write_report(run)
    return run


@pytest.fixture
def charted(tmp_path: Path) -> RunDir:
    """A run whose page has curves, which take most of the time."""
    return write_run(tmp_path / "run")


@pytest.fixture
def run(charted: RunDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(charts, "available", lambda: False)
    return charted


def test_a_scheduler_without_its_pool_did_not_miss_the_floor(run: RunDir) -> None:
    planning = json.loads(run.schedulers.read_text())
    planning["why_no_plan"] = {"cpu-only": "no CPU pool"}
    run.schedulers.write_text(json.dumps(planning))
    text = " ".join(sentences(read_run(run), None))
    assert "1 had no CPU pool" in text
    assert "meets the floor" not in text


def test_the_outcome_answers_what_a_reader_asks(whole: RunDir) -> None:
    text = Page(whole.report.read_text()).text
    for expected in (
        "which is the certified optimum",
        "20 % below the floor it would cost 3.1 times less.",
        "Predicted 61,000 samples/s, measured 62,000: +1.6 %.",
        "none found as cheap a plan, 3 a more expensive one (greedy +34.3 % … gpu-only 4.7 ×)",
        "1 found no plan that meets the floor",
        "gpu (estimated)",
        "AUC 0.7375",
        "horovod",
        "It was started 2 times",
        "failed: a rank or a node died (exit code 4)",
        "2 tables hold 3,000 rows, 40 evicted.",
        "123 kB",  # the checkpoint
        "rl looked at 12,345 placements in 1.40 s.",
        "cpu-only no plan that meets the floor",
        "worked 82 % of the time: 48 % backward and 25 % forward",
    ):
        assert expected in text


def test_shows_what_was_nearly_chosen_and_how_full_memory_is(whole: RunDir) -> None:
    text = Page(whole.report.read_text()).text
    more = f"{100 * (0.00221 / layout().plan.estimate.money - 1):+.1f} %".replace("-", "−")
    row = f"next best placement cpu×2 → gpu×1 $0.00221 {more} takes 1.7 % longer and costs 8.1 %"
    assert row in text
    stages = "0 · cpu tables 3.00 GB, snapshot 1.00 GB, dense 500 MB 4.50 GB 8.00 GB – –"
    assert stages in text
    assert "1 · gpu – 0 B 4.00 GB 2.00 GB unknown" in text


def test_memory_of_other_stages_is_not_shown(run: RunDir) -> None:
    planned = planning()
    planned["memory"], planned["runners_up"] = planned["memory"][:1], []
    run.schedulers.write_text(json.dumps(planned))
    text = page_of(run).text
    assert "Memory of one rank" not in text
    assert "Runner-up plans" not in text


def test_a_whole_run_lacks_nothing(whole: RunDir) -> None:
    page = Page(whole.report.read_text())
    assert "Not in this report" not in page.text
    # the plan in a row and in a column, the timeline, and the charts
    assert page.elements["svg"] == 3 + len(charts.NAMES)


def test_loads_nothing_and_runs_nothing(whole: RunDir) -> None:
    page = Page(whole.report.read_text())
    assert page.loads() == []
    assert page.elements["script"] == 0
    policy = [value for _, name, value in page.attributes if name == "content"]
    assert any(value.startswith("default-src 'none'") for value in policy)
    assert not re.search(r"url\((?!#)|@import", whole.report.read_text())


def test_ids_are_unique_and_every_reference_has_one(whole: RunDir) -> None:
    page = Page(whole.report.read_text())
    assert len(page.ids) == len(set(page.ids))
    text = whole.report.read_text()
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert {first or second for first, second in used} <= set(page.ids)


def test_pictures_are_well_formed(whole: RunDir) -> None:
    for svg in re.findall(r"<svg.*?</svg>", whole.report.read_text(), flags=re.DOTALL):
        ET.fromstring(svg)


def test_same_run_same_bytes(whole: RunDir) -> None:
    first = whole.report.read_bytes()
    assert write_report(whole).read_bytes() == first


HOSTILE = "<script>alert(1)</script><img src=//e.example onerror=x>\"'&amp;{{7*7}} $\\frac{1}$ ]]>"


def hostile_run(path: Path) -> RunDir:
    """Every text that a person or another program chose is hostile."""
    run = write_run(path, HOSTILE)

    def rename(text: str) -> str:
        for word in ("cpu", "gpu", "greedy", "embed", "rows", "mpirun", "c1", "wait inputs"):
            text = text.replace(f'"{word}"', json.dumps(f"{word}{HOSTILE}"))
        return text

    for name in (*FILES[1:], "history.jsonl"):
        file = path / name
        file.write_text(rename(file.read_text()))
    wrong, right = f'"device": {json.dumps("cpu" + HOSTILE)}', '"device": "cpu"'
    for file in (run.layout, run.cluster):  # a device is not a name
        file.write_text(file.read_text().replace(wrong, right))
    (run.checkpoints / "<b>9").mkdir()
    return run


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    page = page_of(run)
    assert page.elements["script"] == 0
    assert page.elements["img"] == 0
    assert page.elements["b"] == 6  # one per tile
    assert page.loads() == []
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in page.text
    assert f"greedy{HOSTILE}" in page.text
    assert "Not in this report" not in page.text


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_reported_and_the_rest_is_shown(run: RunDir, name: str) -> None:
    (run.path / name).unlink()
    page = page_of(run)
    assert f"no {name}" in page.text
    assert page.elements["section"] >= 8


@pytest.mark.parametrize("keep", FILES[:1] + FILES[3:4] + FILES[5:7])
def test_one_file_is_enough(run: RunDir, keep: str) -> None:
    for name in (*FILES, "history.jsonl"):
        if name != keep:
            (run.path / name).unlink()
    page = page_of(run)
    assert page.text.count("no ") > 3
    assert "None" not in page.text


@pytest.mark.parametrize("name", [*FILES, "history.jsonl"])
def test_torn_files_never_break_it(run: RunDir, name: str) -> None:
    file = run.path / name
    whole = file.read_bytes()
    for cut in random.Random(name).sample(range(len(whole)), 4):
        file.write_bytes(whole[:cut])
        page_of(run)


def test_nonsense_of_the_right_shape_never_breaks_it(charted: RunDir) -> None:
    data = summary()
    data |= {"steps": 0, "samples": 0, "seconds": 0, "samples_per_second": 0, "evaluation": None}
    data["ranks"][0] |= {
        "stage": 99,
        "component": -5,
        "seconds": {},
        "bytes_sent": {"ROWS": {"x": 1}},
    }
    charted.summary.write_text(json.dumps(data))
    charted.trace.write_text(
        '[{"ph": "X", "ts": "soon"}, {"ph": "X", "ts": 1, "dur": 0, "pid": 7}, 3, '
        '{"name": 5, "ph": "X", "ts": 1, "dur": 0, "pid": 7, "args": []}]'
    )
    charted.metrics.write_text(
        '{"kind": "train", "loss": NaN, "step": 1}\n[]\n{"kind": "train", "loss": NaN}\n'
    )
    charted.history.write_text(
        '{"event": "start", "time": "yesterday"}\n{"event": "end", "time": 1e99}\n'
    )
    page_of(charted)


def test_without_matplotlib_it_explains_how_to_get_curves(run: RunDir) -> None:
    assert "heterps-hpc[report]" in page_of(run).text


def test_a_missing_evaluation_is_reported(run: RunDir) -> None:
    lines = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join(line for line in lines if "evaluation" not in line))
    run.summary.write_text(json.dumps(summary() | {"evaluation": None}))
    text = page_of(run).text
    assert "There was no evaluation on test data." in text
    assert "no evaluation in metrics.jsonl" in text


@pytest.mark.parametrize("content", [None, "empty", "other"])
def test_what_is_not_a_run_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "run"
    if content:
        path.mkdir()
    if content == "other":
        (path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match="run"):
        write_report(RunDir(path))
    assert not (path / "report.html").exists()


def test_a_big_run_stays_a_page(run: RunDir) -> None:
    """600 ranks of 60 layers, a long history: the page has a size that opens at once."""
    small = layout()
    num = 600
    data = json.loads(small.to_json())
    layers = [f"layer_{i}_with_a_rather_long_name" for i in range(60)]
    data["stages"] = [{"pool": "cpu", "layers": layers, "num_ranks": num}]
    data["components"] = [
        data["components"][0] | {"num_ranks": num, "num_nodes": num // 3, "ranks_per_node": 3}
    ]
    place = {"stage": 0, "component": 0, "sparse": False, "dense": True, "shards": []}
    data["ranks"] = [data["ranks"][0] | place | {"rank": i, "replica": i} for i in range(num)]
    data["plan"] = None
    Layout.model_validate(data).save(run.layout)
    entry = summary()["ranks"][0]
    ranks = [entry | {"rank": i, "bytes_sent": {"ROWS": {"0": 1.0}}} for i in range(num)]
    run.summary.write_text(json.dumps(summary() | {"ranks": ranks}))
    with run.history.open("a") as file:
        file.writelines('{"event": "rank_end", "time": 5, "rank": 1}\n' for _ in range(5000))
    page = page_of(run)
    assert run.report.stat().st_size < 1_000_000
    assert "more ranks are in summary.json" in page.text
    assert "54 more" in page.text  # layers


def test_bound_is_called_a_bound(run: RunDir) -> None:
    data = json.loads(run.layout.read_text())
    data["plan"] |= {"gap": 0.021, "gap_is_bound": True, "optimum_money": 0.00197}
    run.layout.write_text(json.dumps(data))
    text = page_of(run).text
    assert "no plan can cost less than $0.00197, so the gap is at most 2.1 %" in text
    assert "certified optimum" not in text
    budget = {"optimum_money": None, "optimum_samples_per_second": 61_000.4}
    data["plan"] |= budget | {"gap": 0.0004}
    run.layout.write_text(json.dumps(data))
    assert "no plan within the budget exceeds 61,001 samples/s" in page_of(run).text


def test_needs_neither_torch_nor_mpi(charted: RunDir) -> None:
    code = (
        "import sys; from heterps_hpc.report import write_report;"
        "from heterps_hpc.rundir import RunDir; write_report(RunDir(sys.argv[1]));"
        "sys.exit(bool({'torch', 'mpi4py', 'horovod'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, charted.path], timeout=60, check=False)
    assert done.returncode == 0


def test_made_up_values_are_valid() -> None:
    """The fixture itself follows the value types."""
    assert job().train.batch_size == profile().batch_size
    assert {entry["scheduler"] for entry in planning()["alternatives"]} >= {"greedy", "gpu-only"}
