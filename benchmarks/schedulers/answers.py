"""Answers to the benchmark's questions, kept in a file: a stopped run continues where it was."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.schedulers.judge import Answer, Asked, ask, ask_again

_Left = TypeVar("_Left")


@dataclass(frozen=True)
class Answers:
    """The answers of a run, kept in a file if there is one."""

    path: Path | None = None
    jobs: int = 1  # as many cores are used, one for each question

    def ask(self, questions: list[Asked]) -> list[Answer]:
        """All answers, those that were kept first; others are kept as they come.

        A kept answer lacks what was not asked then: some searches, and a proof where exact has more
        time now. Only these are asked again.
        """
        kept = self._read()
        new = [asked for asked in questions if _key(asked) not in kept]
        kept |= {_key(answer.asked): answer for answer in self._keep(self._each(ask, new))}
        lacking = [(kept[_key(asked)], asked) for asked in questions]
        lacking = [(answer, asked) for answer, asked in lacking if answer.missing(asked)]
        kept |= {_key(answer.asked): answer for answer in self._keep(self._each(_fill, lacking))}
        return [kept[_key(asked)] for asked in questions]

    def kept(self, questions: list[Asked]) -> list[Answer]:
        """The answers that there are, however long exact had."""
        kept = self._read()
        return [kept[_key(asked)] for asked in questions if _key(asked) in kept]

    def ask_again(self, method: str, questions: list[Asked]) -> None:
        """Ask one method that has changed again, where there is an answer."""
        left = [(answer, method) for answer in self.kept(questions)]
        for _ in self._keep(self._each(_again, left)):
            pass

    def _keep(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        for answer in answers:
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps(asdict(answer)) + "\n")
            yield answer

    def _each(self, call: Callable[[_Left], Answer], left: list[_Left]) -> Iterator[Answer]:
        if self.jobs == 1:
            yield from map(call, left)
            return
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.jobs, mp_context=spawn) as pool:
            yield from pool.map(call, left)

    def _read(self) -> dict[tuple[str, int, float], Answer]:
        """What was written; of several answers to a question the last one counts."""
        if self.path is None or not self.path.exists():
            return {}
        answers = {}
        for line in self.path.read_text().splitlines():
            values = json.loads(line)
            asked = values["asked"]
            asked = Asked(**asked | {"searches": tuple(asked["searches"])})
            answer = Answer(**values | {"asked": asked, "ratios": tuple(values["ratios"])})
            answers[_key(asked)] = answer
        return answers


def _fill(lacking: tuple[Answer, Asked]) -> Answer:
    answer, asked = lacking
    return ask_again(answer, answer.missing(asked), asked.exact_seconds)


def _again(left: tuple[Answer, str]) -> Answer:
    answer, method = left
    return ask_again(answer, [method], answer.asked.exact_seconds)


def _key(asked: Asked) -> tuple[str, int, float]:
    return asked.family, asked.number, asked.seconds
