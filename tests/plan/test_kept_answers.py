"""The schedulers benchmark takes hours: a run that was stopped asks nothing twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.schedulers import answers as benchmark
from benchmarks.schedulers.answers import Answers
from benchmarks.schedulers.judge import Answer, Asked


def _answer(question: Asked, *, proven: bool = True) -> Answer:
    money = {"rl": 1.0 + question.number, "greedy": math.inf}
    return Answer(question, 4, 2, 1, money, proven, 0.1, 1.0, (1.0, 1.5))


def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def ask(question: Asked) -> Answer:
        asked.append(question.number)
        if asked == [0, 1, 2]:
            raise KeyboardInterrupt
        return _answer(question)

    monkeypatch.setattr(benchmark, "ask", ask)
    questions = [Asked("limits", number, 1.0, 5.0, ("rl",)) for number in range(3)]
    kept = Answers(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        kept.ask(questions)
    assert [answer.asked.number for answer in kept.kept(questions)] == [0, 1]
    answers = kept.ask(questions)
    assert asked == [0, 1, 2, 2]
    assert [answer.asked for answer in answers] == questions
    assert answers[1].money == {"rl": 2.0, "greedy": math.inf}


def test_only_what_is_missing_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More time for exact matters where it had no proof, another search everywhere."""
    again: list[tuple[int, tuple[str, ...], float]] = []

    def ask_again(answer: Answer, methods: Sequence[str], exact_seconds: float) -> Answer:
        again.append((answer.asked.number, tuple(methods), exact_seconds))
        asked = answer.asked
        if "exact" in methods:
            asked = replace(asked, exact_seconds=exact_seconds)
        new = dict.fromkeys(methods, 3.0)
        return replace(answer, asked=asked, money=answer.money | new)

    monkeypatch.setattr(benchmark, "ask", lambda q: _answer(q, proven=q.number != 1))
    monkeypatch.setattr(benchmark, "ask_again", ask_again)
    kept = Answers(tmp_path / "kept")
    kept.ask([Asked("limits", number, 1.0, 5.0, ("rl",)) for number in range(3)])
    longer = [Asked("limits", number, 1.0, 60.0, ("rl",)) for number in range(3)]
    for _ in range(2):  # once is enough
        answers = kept.ask(longer)
        assert again == [(1, ("exact",), 60.0)]
    assert [answer.asked.exact_seconds for answer in answers] == [5.0, 60.0, 5.0]
    again.clear()
    kept.ask([replace(asked, searches=("rl", "random")) for asked in longer[:2]])
    assert again == [(0, ("random",), 60.0), (1, ("random",), 60.0)]
    again.clear()
    kept.ask_again("rl", longer)
    assert again == [(0, ("rl",), 5.0), (1, ("rl",), 60.0), (2, ("rl",), 5.0)]
    assert kept.kept(longer)[0].money == {"rl": 3.0, "greedy": math.inf, "random": 3.0}
