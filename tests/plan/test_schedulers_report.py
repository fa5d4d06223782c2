"""What the schedulers benchmark writes of its answers: one line per method, goals apart."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks.record import Report
from benchmarks.render import render
from benchmarks.schedulers.__main__ import family_grid, goals, how_asked, overview
from benchmarks.schedulers.judge import RULES, Answer, Asked


def _answer(number: int, family: str, rl: float, *, proven: bool = True) -> Answer:
    """rl's plan costs that much, the optimum 1, the cheapest rule 2; greedy has no plan."""
    money = dict.fromkeys(RULES, 2.0) | {"greedy": math.inf, "exact": 1.0, "random": 3.0}
    money |= {"rl": rl, "rl 1 s": rl, "rl 10 s": rl, "rl zero-shot": rl + 0.2}
    seconds = 10.0 if family == "wide" else 1.0
    asked = Asked(family, number, seconds, 15.0, ("random", "rl"))
    pools = 64 if family == "wide" else 4
    return Answer(asked, 8, pools, 3, money, proven, 0.5, 1.0, (1.0,))


def test_a_family_is_a_table_with_a_row_for_each_method(tmp_path: Path) -> None:
    answers = [_answer(0, "wide", 1.0), _answer(1, "wide", 1.1), _answer(2, "wide", 1.5)]
    grid = family_grid("wide", answers)
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["rl 10 s"] == ("3", "10.00", "50.00", "50.00", "50.00", "0")
    assert rows["greedy"] == ("3", "–", "–", "–", "–", "3")
    assert "rl from nothing" not in rows  # was not asked
    report = Report("schedulers", "Schedulers", grids=[overview({"wide": answers}), grid])
    report.pictures["schedulers.png"] = "Time to schedule"
    report.finish(tmp_path / "schedulers.json")
    page = render(json.loads((tmp_path / "schedulers.json").read_text()))
    assert "| rl 10 s | 3 | 10.00 | 50.00 | 50.00 | 50.00 | 0 |" in page
    assert "![Time to schedule](results/schedulers.png)" in page
    assert "| wide: 20 layers on 64 pools | 3 | 3 of 3 | 0.5 | 3 | 45.00 | 30.00 | 10.00 |" in page


def test_goals_hold_for_all_families_together() -> None:
    report = Report("schedulers", "Schedulers")
    answers = [_answer(number, "limits", 1.0) for number in range(19)]
    answers += [_answer(19, "limits", 1.5, proven=False), _answer(0, "wide", 1.3)]
    answers[19].money.pop("rl 10 s")  # was not asked: what rl found in less counts
    goals(report, answers)
    values = {record.name: (record.value, record.met) for record in report.records}
    assert values["rl 1 s, 2 to 8 pools: questions within 1 %"] == (95.0, True)
    assert values["rl 10 s, 20 layers x 64 pools: questions within 1 %"] == (0.0, False)
    first, met = values["rl zero-shot: median gap of the worst family"]
    assert math.isclose(first, 50.0)
    assert not met
    name = "rl 10 s not above exact's incumbent where it ran out of time"
    assert values[name] == (0.0, False)
    by_family = {"limits": answers[:-1], "wide": answers[-1:]}
    assert how_asked(by_family).startswith("1 to 20 questions of each family")
