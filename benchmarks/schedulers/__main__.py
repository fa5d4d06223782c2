"""Schedulers on families of questions, on the paper's models, and the certificates.

    python -m benchmarks.schedulers [--quick] [--json FILE] [--questions N] [--jobs N]
                                    [--exact-seconds S] [--certificates N] [--answers FILE]

Each family (families.py) asks questions that the policy was not trained on. Every search has one
second of one core (ten on more than 8 pools) and knows neither the rules' plans nor the optimum.
Gaps are above the certified optimum, or above the cheapest plan that any method found where the
exact solver ran out of time. `--quick` asks a few questions of three families. All of it takes
hours; with `--answers` a stopped run continues where it was.
"""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.record import Report, standard_options
from benchmarks.schedulers.certificates import wrong_certificates
from benchmarks.schedulers.families import FAMILIES
from benchmarks.schedulers.judge import (
    QUICK_SEARCHES,
    RULES,
    SEARCHES,
    Answer,
    Asked,
    ask,
    not_above,
    quantiles,
    share,
)
from benchmarks.schedulers.paper import paper_models
from benchmarks.schedulers.plots import plot

QUICK_FAMILIES = ("two-pools", "gpu-kinds", "limits")
SHORT, LONG = 1.0, 10.0  # seconds of a search: on up to 8 pools, on more
FEW_POOLS = 8
METHODS = ("exact", *RULES, *SEARCHES[:-1], "rl zero-shot", "rl 1 s", "rl")
EQUAL_TIME = ("random", "brute-force", "genetic")


def questions_of(names: tuple[str, ...], num: int, exact: float, quick: bool) -> list[Asked]:
    """The questions of these families, one of each in turn."""
    searches = QUICK_SEARCHES if quick else SEARCHES
    return [
        Asked(name, number, LONG if FAMILIES[name].pools[1] > FEW_POOLS else SHORT, exact, searches)
        for number in range(num)
        for name in names
    ]


def ask_all(questions: list[Asked], jobs: int, kept: Path | None) -> list[Answer]:
    """All answers, those that were kept first; others are kept as they come."""
    answers = read_answers(kept)
    for answer in ask_each([asked for asked in questions if asked not in answers], jobs):
        answers[answer.asked] = answer
        if kept is not None:
            with kept.open("a") as file:
                file.write(json.dumps(asdict(answer)) + "\n")
    return [answers[asked] for asked in questions]


def ask_each(questions: list[Asked], jobs: int) -> Iterator[Answer]:
    """Several jobs use as many cores, each question only one."""
    if jobs == 1:
        yield from map(ask, questions)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        yield from pool.map(ask, questions)


def read_answers(path: Path | None) -> dict[Asked, Answer]:
    """What an earlier run wrote."""
    if path is None or not path.exists():
        return {}
    answers = {}
    for line in path.read_text().splitlines():
        values = json.loads(line)
        asked = values["asked"]
        asked = Asked(**asked | {"searches": tuple(asked["searches"])})
        answers[asked] = Answer(**values | {"asked": asked, "ratios": tuple(values["ratios"])})
    return answers


def show(family: str, answers: list[Answer]) -> None:
    """Quantiles of the gaps of every method."""
    proofs = [answer.exact_seconds for answer in answers if answer.proven]
    proven = f"{len(proofs)} of {len(answers)} proven"
    title = f"{family}: {FAMILIES[family].why} ({proven}); gap in %"
    grid = Table(title=title, title_justify="left")
    for name in ("method", "50 %", "90 %", "95 %", "worst", "no plan"):
        grid.add_column(name, justify="left" if name == "method" else "right")
    for method in METHODS:
        if method in answers[0].money:
            gaps = [answer.gap(method) for answer in answers]
            cells = ["–" if math.isinf(gap) else f"{gap:.2f}" for gap in quantiles(gaps)]
            grid.add_row(method, *cells, str(sum(math.isinf(gap) for gap in gaps)))
    Console(width=110).print(grid)


def record_family(report: Report, family: str, answers: list[Answer]) -> None:
    """Medians and 95th percentiles of every method, and how hard the family is."""
    for method in METHODS:
        if method not in answers[0].money:
            continue
        gaps = [answer.gap(method) for answer in answers]
        middle, _, high, worst = quantiles(gaps)
        for what, value in (("median", middle), ("95 %", high), ("worst", worst)):
            if math.isfinite(value):
                report.add(f"{family}: {method} gap, {what}", value, "%")
        if any(math.isinf(gap) for gap in gaps):
            report.add(
                f"{family}: {method} without a plan", sum(map(math.isinf, gaps)), "questions"
            )
    proofs = sorted(answer.exact_seconds for answer in answers if answer.proven)
    report.add(f"{family}: proven by exact", share([a.proven for a in answers]), "%")
    if proofs:
        report.add(f"{family}: exact, median time to the proof", proofs[len(proofs) // 2], "s")
    stages = sorted(answer.num_stages for answer in answers)
    report.add(f"{family}: stages of the best plan, median", stages[len(stages) // 2], "stages")


def goals(report: Report, answers: list[Answer]) -> None:
    """The goals over all families."""
    few = [a for a in answers if a.num_pools <= FEW_POOLS]
    wide = [a for a in answers if a.asked.family == "wide"]
    by_family: dict[str, list[Answer]] = {}
    for answer in answers:
        by_family.setdefault(answer.asked.family, []).append(answer)
    one = [a.gap("rl 1 s") for a in few]
    report.add("rl 1 s, 2 to 8 pools: median gap", quantiles(one)[0], "%", "<= 0")
    within = share([gap <= 1 for gap in one])
    report.add("rl 1 s, 2 to 8 pools: questions within 1 %", within, "%", ">= 95")
    if wide:
        ten = [a.gap("rl") for a in wide]
        within = share([gap <= 1 for gap in ten])
        report.add("rl 10 s, 20 layers x 64 pools: questions within 1 %", within, "%", ">= 95")
        worst = min(max(ten), 1e6)
        report.add("rl 10 s, 20 layers x 64 pools: worst gap", worst, "%", "<= 5")
    first = max(quantiles([a.gap("rl zero-shot") for a in part])[0] for part in by_family.values())
    report.add("rl zero-shot: median gap of the worst family", min(first, 1e6), "%", "<= 10")
    for name in EQUAL_TIME:
        asked = [a for a in answers if name in a.money]
        if asked:
            good = share([not_above(a.money["rl"], a.money[name]) for a in asked])
            report.add(f"rl not above {name} at equal time", good, "%", ">= 99")
    cheaper = sum(quantiles([-saving(a) for a in part])[0] <= -20 for part in by_family.values())
    goal = ">= 3" if len(by_family) > 3 else None
    report.add("families where rl saves 20 % on every rule, median", cheaper, "families", goal)
    open_ = [a for a in answers if not a.proven]
    if open_:
        good = share([not_above(a.money["rl"], a.money["exact"]) for a in open_])
        report.add("rl not above exact's incumbent where it ran out of time", good, "%", ">= 90")
        report.add("questions that exact left open", len(open_), "questions")
    ratios = sorted(ratio for a in answers for ratio in a.ratios)
    if ratios:
        middle, high, _, _ = quantiles(ratios)
        report.add("score / exactly provisioned, median", middle, "x", "<= 1.03")
        report.add("score / exactly provisioned, 90 %", high, "x", "<= 1.05")
        missed = share([math.isinf(ratio) for ratio in ratios])
        report.add("scored as invalid although a plan exists", missed, "%")


def saving(answer: Answer) -> float:
    """Per cent that rl's plan is cheaper than the cheapest of the rules; all if they have none."""
    rule = min(answer.money[name] for name in RULES)
    if math.isinf(rule):
        return 100.0 if math.isfinite(answer.money["rl"]) else 0.0
    return 100 * (1 - answer.money["rl"] / rule)


def main() -> None:
    """Run all experiments."""
    parser = standard_options(__doc__)
    parser.add_argument("--questions", type=int, default=50, help="of each family")
    parser.add_argument("--jobs", type=int, default=1, help="questions at a time, a core each")
    parser.add_argument("--exact-seconds", type=float, default=60.0, help="for the exact solver")
    parser.add_argument("--certificates", type=int, default=1000, help="to check by enumeration")
    parser.add_argument("--answers", type=Path, help="keep answers here, and ask for no kept one")
    options = parser.parse_args()
    names = QUICK_FAMILIES if options.quick else tuple(FAMILIES)
    num = 3 if options.quick else options.questions
    exact = 2.0 if options.quick else options.exact_seconds
    report = Report("schedulers", "Schedulers: money above the best plan")
    questions = questions_of(names, num, exact, options.quick)
    answers = ask_all(questions, options.jobs, options.answers)
    goals(report, answers)
    checked, proven, wrong = wrong_certificates(100 if options.quick else options.certificates)
    report.add(f"wrong certificates of {checked} enumerated questions", wrong, "", "<= 0")
    report.add("of these proven", proven, "questions")
    for name in names:
        part = [answer for answer in answers if answer.asked.family == name]
        show(name, part)
        record_family(report, name, part)
    if not options.quick:
        sets = paper_models(report)
        if options.json is not None:
            plot(sets, Path(options.json).with_suffix(".png"))
    report.notes.append(
        f"{num} questions of each family, not seen in training. Each search had {SHORT:g} s of one "
        f"core ({LONG:g} s on more than {FEW_POOLS} pools), counted in CPU seconds; exact had "
        f"{exact:g} s by the clock, so less of a core on a busy machine. Gaps are above the "
        "certified optimum, or above the cheapest plan of any method where it was not proven."
    )
    report.finish(options.json)


if __name__ == "__main__":
    main()
