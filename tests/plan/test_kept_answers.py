"""The schedulers benchmark takes hours: a run that was stopped asks nothing twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.schedulers import __main__ as benchmark
from benchmarks.schedulers.judge import Answer, Asked


def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def ask(question: Asked) -> Answer:
        asked.append(question.number)
        if asked == [0, 1, 2]:
            raise KeyboardInterrupt
        money = {"rl": 1.0 + question.number, "greedy": math.inf}
        return Answer(question, 4, 2, 1, money, True, 0.1, 1.0, (1.0, 1.5))

    monkeypatch.setattr(benchmark, "ask", ask)
    questions = [Asked("limits", number, 1.0, 5.0) for number in range(3)]
    with pytest.raises(KeyboardInterrupt):
        benchmark.ask_all(questions, 1, tmp_path / "kept")
    answers = benchmark.ask_all(questions, 1, tmp_path / "kept")
    assert asked == [0, 1, 2, 2]
    assert [answer.asked for answer in answers] == questions
    assert answers[1].money == {"rl": 2.0, "greedy": math.inf}
