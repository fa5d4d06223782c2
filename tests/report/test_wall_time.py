"""Where a user's time went, how to do it again, and the page on a phone and in the dark."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.config import Job
from heterps_hpc.events import Ended, Started, TaskEnded, TrainingBegan
from heterps_hpc.profile import Profile
from heterps_hpc.report import charts, picture, write_report
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.page import tiles, without_model
from heterps_hpc.report.wall_time import wall_times
from heterps_hpc.rundir import RunDir
from tests.report.made_up import summary, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run")


def test_the_parts_add_up_to_what_a_user_waited(run: RunDir) -> None:
    """Two starts of 10 and 30 s, of which 4 and 6 s until training; saving took 2 s."""
    run.history.unlink()
    for event in (
        TaskEnded(task="measure", seconds=20.0),
        TaskEnded(task="plan", seconds=5.0),
        Started(time=1000.0),
        TrainingBegan(time=1004.0),
        Ended(code=4, time=1010.0),
        Started(time=1100.0),
        TrainingBegan(time=1106.0),
        Ended(code=0, time=1130.0),
    ):
        events.record(run, event)
    totals = summary()
    totals["ranks"][0]["seconds"] |= {"save": 1.5, "wait for save": 0.5}
    run.summary.write_text(json.dumps(totals))
    found = {row.what: row.seconds for row in wall_times(read_run(run))}
    assert found == pytest.approx(
        {"measuring": 20, "planning": 5, "starting ranks": 10, "training": 28, "saving": 2}
    )


def test_the_command_to_repeat_a_run_reads_its_own_files(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "available", lambda: False)
    found = re.search(r"<pre>(heterps run [^<]*)</pre>", write_report(run).read_text())
    assert found is not None
    words = shlex.split(found[1])
    Job.load(Path(words[2]))
    Profile.load(Path(words[words.index("--profile") + 1]))


def test_the_least_to_beat_is_the_mean_rate(run: RunDir) -> None:
    totals = summary()
    totals["evaluation"] = {"auc": 0.8, "log_loss": 0.46, "normalised_entropy": 0.8}
    run.summary.write_text(json.dumps(totals))
    assert "AUC 0.5000 and log loss 0.5750" in without_model(read_run(run))
    run.baseline.write_text(json.dumps({"feature": "slot user", "auc": 0.612345}))
    recorded = read_run(run)
    assert "slot user has the best AUC, 0.6123" in without_model(recorded)
    assert "slot user alone has 0.6123" in next(
        tile.note for tile in tiles(recorded, None) if tile.title == "AUC"
    )


def test_the_plan_is_drawn_in_a_row_and_in_a_column(run: RunDir) -> None:
    """No card lies on another, and all of them and their arrows are inside the picture."""
    for vertical in (False, True):
        found = picture.draw(read_run(run), vertical=vertical)
        assert found is not None
        corners = [(card.x, card.y) for card in found.cards]
        assert len(corners) == 3
        steps = [b[vertical] - a[vertical] for a, b in itertools.pairwise(corners)]
        size = found.cards[0].height if vertical else picture.CARD_WIDTH
        assert min(steps) > size
        for card in found.cards:
            assert card.x + picture.CARD_WIDTH <= found.width
            assert card.y + card.height <= found.height
        numbers = [float(n) for arrow in found.arrows for n in re.findall(r"[\d.]+", arrow.path)]
        assert numbers
        assert max(numbers) <= max(found.width, found.height)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_phone_shows_the_whole_width(run: RunDir, tmp_path: Path) -> None:
    """In a real browser, 400 px wide: nothing but a table or a timeline is scrolled sideways."""
    page = write_report(run)
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<iframe id=f src='file://{page}' style='border:0;width:400px;height:800px'></iframe>"
        "<script>f.onload = () => document.title = f.contentDocument.documentElement.scrollWidth"
        " + ' ' + getComputedStyle(f.contentDocument.querySelector('.plan.row')).display"
        "</script>"
    )
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [*command, "--allow-file-access-from-files", f"file://{frame}"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    found = re.search(r"<title>(\d+) (\w+)</title>", done.stdout)
    assert found is not None, done.stdout[:500] + done.stderr[-500:]
    assert int(found[1]) <= 400
    assert found[2] == "none"
