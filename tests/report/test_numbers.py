"""The numbers behind the page."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from heterps_hpc import format as fmt
from heterps_hpc.report import charts
from heterps_hpc.report.inputs import RecordedRun, read_run
from heterps_hpc.report.outcome import choices, prediction_error, sentences
from heterps_hpc.report.page import render
from heterps_hpc.report.phases import OTHER, legend, rank_times, stage_times
from heterps_hpc.report.spending import spending
from heterps_hpc.report.traffic import flows
from heterps_hpc.rundir import RunDir
from heterps_hpc.spending import attempts
from tests.report.made_up import EPOCH, history, planning, summary, write_run
from tests.report.reading import Page


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run")


@pytest.fixture
def run(run_dir: RunDir) -> RecordedRun:
    return read_run(run_dir)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (fmt.money(12.4), "$12.40"),
        (fmt.money(1234567.891), "$1,234,567.89"),
        (fmt.money(0.0020149), "$0.00201"),
        (fmt.money(0), "$0"),
        (fmt.money(3e-9), "< $0.000001"),
        (fmt.more(0.204), "+20.4 %"),
        (fmt.more(58.502), "60 ×"),
        (fmt.gap(0.0), "0.0 %"),
        (fmt.rate(61_951.4), "61,951"),
        (fmt.rate(12.3456), "12.3"),
        (fmt.seconds(0.000012), "12.0 µs"),
        (fmt.seconds(0.0336), "33.6 ms"),
        (fmt.seconds(16.1), "16.1 s"),
        (fmt.seconds(600), "10 min"),
        (fmt.seconds(7290), "2 h 02 min"),
        (fmt.seconds(float("nan")), "–"),
        (fmt.size(999), "999 B"),
        (fmt.size(1664), "1.66 kB"),
        (fmt.size(5.5e20), "550,000 PB"),
        (fmt.percent(0.343), "34.3 %"),
        (fmt.signed_percent(-0.03), "−3.0 %"),
        (fmt.plural(1, "rank"), "1 rank"),
        (fmt.plural(1200, "rank"), "1,200 ranks"),
        (fmt.shorten("abcdef", 4), "abc…"),
    ],
)
def test_numbers_as_text(text: str, expected: str) -> None:
    assert text == expected


def test_money_is_allocated_hours_times_prices_by_rank_and_by_node(run: RecordedRun) -> None:
    spent = spending(run)
    assert spent is not None
    assert spent.seconds == pytest.approx(10 + 20)  # the failed start is paid for as well
    by_pool = {pool.pool: pool for pool in spent.pools}
    assert by_pool["cpu"].money == pytest.approx(30 / 3600 * 3 * 0.04)  # three ranks
    assert by_pool["gpu"].money == pytest.approx(30 / 3600 * 1 * 2.42)  # one node
    assert spent.money == pytest.approx(sum(pool.money for pool in spent.pools))
    assert by_pool["gpu"].node_hours == pytest.approx(30 / 3600)


def test_money_without_history_counts_training_and_reports_it(run_dir: RunDir) -> None:
    run_dir.history.unlink()
    spent = spending(read_run(run_dir))
    assert spent is not None
    assert spent.seconds == pytest.approx(16.1)
    assert "from the first batch to the last" in spent.source


def test_a_start_without_an_end_lasts_until_it_was_last_heard_of() -> None:
    events = [event for event in history() if event["event"] != "end"]
    first, second = attempts(events)
    assert (first.seconds, first.code) == (9, None)
    assert (second.began, second.seconds, second.code) == (EPOCH + 12, 0, None)


def test_times_may_be_written_as_text() -> None:
    events = [
        {"event": "start", "time": "2026-09-21T14:13:20+00:00"},
        {"event": "end", "time": "2026-09-21T14:14:20Z", "exit_code": 3},
    ]
    (only,) = attempts(events)
    assert (only.seconds, only.code) == (60, 3)


@pytest.mark.parametrize("time", [math.inf, math.nan, 10**400, "yesterday", None, [1]])
def test_a_line_without_a_moment_costs_nothing(time: Any) -> None:
    events: list[dict[str, Any]] = [
        {"event": "launch", "time": EPOCH, "ranks": "all"},
        {"event": "start", "time": EPOCH},
        {"event": "checkpoint", "time": time},
        {"event": "start", "time": time},
        {"event": "end", "time": EPOCH + 60, "code": 0},
    ]
    (only,) = attempts(events)
    assert (only.seconds, only.ranks) == (60, None)


def test_time_that_no_phase_claims_is_other(run: RecordedRun) -> None:
    bars = rank_times(run)
    for bar, rank in zip(bars, summary()["ranks"], strict=True):
        assert sum(bar.seconds.values()) == pytest.approx(16.1)
        assert bar.seconds[OTHER] == pytest.approx(16.1 - sum(rank["seconds"].values()))
        assert list(bar.seconds)[-1] == OTHER
    assert bars[0].busy == pytest.approx((3.2 + 4.9 + 0.8 + 0.9) / 16.1)
    names = legend(bars)
    assert len(names) == len(set(names))
    assert names.index("push") < names.index("wait gradients") < names.index(OTHER)


def test_stages_are_judged_by_their_busiest_rank(run_dir: RunDir) -> None:
    data = summary()
    data["ranks"][1]["seconds"] = {"pull": 12.2, "wait gradients": 99.0}
    run_dir.summary.write_text(json.dumps(data))
    first, *_, last = stage_times(read_run(run_dir))
    assert first.measured == pytest.approx(12.2 / 244)
    assert first.predicted is not None
    assert first.error == pytest.approx(12.2 / 244 / first.predicted - 1)
    assert (first.binds, last.binds) == (False, True)


def test_an_accelerator_is_named_and_judged_by_its_own_seconds(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = summary()
    device = {"device": "cuda:1 (A100)", "device_seconds": {"forward": 6.1, "backward": 6.1}}
    data["ranks"][3] |= {"seconds": {"forward": 0.2, "wait gradients": 12.0}, **device}
    run_dir.summary.write_text(json.dumps(data))
    run = read_run(run_dir)
    monkeypatch.setattr(charts, "available", lambda: False)
    assert stage_times(run)[1].measured == pytest.approx(12.2 / 244)
    assert [bar.device_busy for bar in rank_times(run)] == ["", "", "", "cuda:1 (A100): 76 % busy"]
    text = Page(render(run)).text
    assert "1 × cuda (A100)" in text
    assert "rank 3 · dense · gpu · cuda:1 (A100): 76 % busy" in text


def test_every_byte_is_counted_once(run: RecordedRun) -> None:
    sent = sum(
        amount
        for rank in summary()["ranks"]
        for peers in rank["bytes_sent"].values()
        for amount in peers.values()
    )
    found = flows(run)
    assert sum(flow.total_bytes for flow in found) == pytest.approx(sent)
    assert [flow.total_bytes for flow in found] == sorted(
        (flow.total_bytes for flow in found), reverse=True
    )
    heaviest = found[0]
    assert (heaviest.source, heaviest.target) == ("stage 0 (cpu)", "stage 1 (gpu)")
    assert heaviest.crosses_pools
    assert heaviest.bytes_per_sample == pytest.approx(2 * 8.3e8 / 999_424)
    assert heaviest.messages_per_batch == pytest.approx(8)


def test_the_allreduce_is_counted_as_a_ring_sends_it(run_dir: RunDir) -> None:
    data = summary()
    last = max(rank["stage"] for rank in data["ranks"])
    replicas = [rank for rank in data["ranks"] if rank["stage"] == last]
    for rank in replicas:
        rank |= {"bytes_reduced": 1e6, "reductions": 244}
    run_dir.summary.write_text(json.dumps(data))
    found = [flow for flow in flows(read_run(run_dir)) if "allreduce" in flow.carries]
    if len(replicas) == 1:  # one replica has nobody to send to
        assert found == []
        return
    (flow,) = found
    assert flow.total_bytes == pytest.approx(2 * (len(replicas) - 1) * 1e6)
    assert flow.source == flow.target


def test_choices_are_sorted_and_the_floor_decides(run_dir: RunDir) -> None:
    data = planning()
    slow = json.loads(json.dumps(data["alternatives"][1]))
    slow["scheduler"] = "slow"
    slow["estimate"] |= {"money": 0.0001, "samples_per_second": 49_000.0}
    data["alternatives"].append(slow)
    run_dir.schedulers.write_text(json.dumps(data))
    rows = choices(read_run(run_dir))
    assert [row.scheduler for row in rows] == [
        "rl", "greedy", "heuristic", "gpu-only", "slow", "cpu-only",
    ]  # fmt: skip
    assert [row.is_chosen for row in rows] == [True, False, False, False, False, False]
    assert not rows[4].meets_floor
    assert rows[1].gap == pytest.approx(0.0027 / 0.00201 - 1)
    assert rows[5].money is None


def test_prediction_error_is_relative_to_the_prediction(run: RecordedRun) -> None:
    assert prediction_error(run) == pytest.approx(62 / 61 - 1)


def test_each_start_is_paid_for_by_the_ranks_of_its_own_layout(run_dir: RunDir) -> None:
    before = spending(read_run(run_dir))
    assert before is not None
    pools = [pool.pool for pool in before.pools]
    lines = [
        {"event": "launch", "time": EPOCH, "ranks": {pools[0]: 2}},
        {"event": "start", "time": EPOCH},
        {"event": "end", "time": EPOCH + 3600, "code": 3},
        {"event": "planned_again", "time": EPOCH + 3600, "ranks": {pools[1]: 1}},
        {"event": "start", "time": EPOCH + 3600},
        {"event": "end", "time": EPOCH + 3 * 3600, "code": 0},
    ]
    run_dir.history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(run_dir)
    assert run.cluster is not None
    spent = spending(run)
    assert spent is not None
    prices = {pool.name: pool.hourly_price for pool in run.cluster.pools}
    assert [pool.money for pool in spent.pools] == [
        pytest.approx(prices[pools[0]](2)),
        pytest.approx(2 * prices[pools[1]](1)),
    ]
    assert f"Nodes were gone, so that the rest was planned again on 1 of {pools[1]}." in sentences(
        run, spent
    )
