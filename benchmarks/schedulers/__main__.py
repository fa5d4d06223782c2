"""Schedulers on families of questions, on the paper's models, and the certificates.

    python -m benchmarks.schedulers [--quick] [--json FILE] [--questions N] [--jobs N]
                                    [--exact-seconds S] [--certificates N]
                                    [--families NAME …] [--searches NAME …] [--no-paper]
                                    [--answers FILE [--only-report | --again METHOD]]

Each family (families.py) asks questions that the policy was not trained on. Every search has one
second of one core (ten on more than 8 pools) and knows neither the rules' plans nor the optimum.
Gaps are above the certified optimum, or above the cheapest plan that any method found where the
exact solver ran out of time. `--quick` asks a few questions of three families. All of it takes
hours; with `--answers` a stopped run continues where it was. More searches, and more
`--exact-seconds` where exact had no proof, are added to the answers that are kept; `--only-report`
reports on these, and `--again` first asks one method again that has changed. "rl 10 s" is asked
where rl was not at the certified optimum before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from benchmarks.record import Grid, Report, standard_options
from benchmarks.schedulers.answers import Answers
from benchmarks.schedulers.certificates import wrong_certificates
from benchmarks.schedulers.families import FAMILIES
from benchmarks.schedulers.judge import (
    LONG,
    LONGER,
    QUICK_SEARCHES,
    RULES,
    SEARCHES,
    Answer,
    Asked,
    not_above,
    quantiles,
    share,
)
from benchmarks.schedulers.paper import paper_models
from benchmarks.schedulers.plots import plot

QUICK_FAMILIES = ("two-pools", "gpu-kinds", "limits")
SHORT = 1.0  # seconds of a search on up to 8 pools; on more it has LONG
FEW_POOLS = 8
ENOUGH = 50  # questions of each family that the goals are meant for
METHODS = ("exact", *RULES, *SEARCHES[:-2], "rl zero-shot", "rl 1 s", LONGER)
NONE = "–"  # no plan
PICTURE = "Money above the optimum and time to schedule, against models, layers and pools"
EQUAL_TIME = ("random", "brute-force", "genetic")


def questions_of(
    names: tuple[str, ...], num: int, exact: float, searches: tuple[str, ...]
) -> list[Asked]:
    """The questions of these families, one of each in turn."""
    return [
        Asked(name, number, LONG if FAMILIES[name].pools[1] > FEW_POOLS else SHORT, exact, searches)
        for number in range(num)
        for name in names
    ]


def gaps_of(method: str, answers: list[Answer]) -> list[float]:
    """Its gaps, where it was asked."""
    return [answer.gap(method) for answer in answers if method in answer.money]


def overview(by_family: dict[str, list[Answer]]) -> Grid:
    """How hard each family is, and what rl made of it."""
    rows = []
    for family, answers in by_family.items():
        proofs = sorted(answer.exact_seconds for answer in answers if answer.proven)
        stages = sorted(answer.num_stages for answer in answers)
        row = [
            f"{family}: {FAMILIES[family].why}",
            str(len(answers)),
            f"{len(proofs)} of {len(answers)}",
            f"{proofs[len(proofs) // 2]:.2g}" if proofs else NONE,
            str(stages[len(stages) // 2]),
        ]
        saved = -quantiles([-saving(answer) for answer in answers])[0]
        first, last = (percent(quantiles(gaps_of(m, answers))[0]) for m in ("rl zero-shot", "rl"))
        rows.append((*row, percent(saved), first, last))
    columns = ("family", "questions", "proven", "s to the proof", "stages", "rl saves on rules, %")
    return Grid(
        "Families: medians of the time to the proof, stages of the best plan, the money that rl "
        "saves on the cheapest rule (100 % where none has a plan), and gaps",
        (*columns, "gap of rl zero-shot, %", "gap of rl, %"),
        tuple(rows),
    )


def family_grid(family: str, answers: list[Answer]) -> Grid:
    """Quantiles of the gaps of every method."""
    rows = []
    for method in METHODS:
        gaps = gaps_of(method, answers)
        if gaps:
            without = str(sum(math.isinf(gap) for gap in gaps))
            rows.append((method, str(len(gaps)), *map(percent, quantiles(gaps)), without))
    columns = ("method", "questions", "50 %", "90 %", "95 %", "worst", "no plan")
    return Grid(f"{family}: quantiles of the gap in %", columns, tuple(rows))


def percent(gap: float) -> str:
    """A gap in a table; of two digits, as all gaps stand below each other."""
    return NONE if math.isinf(gap) else f"{gap:,.2f}"


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
        # where only the shorter search was asked it counts: more time makes no plan dearer
        longer = [a.money.get(LONGER, a.money["rl"]) for a in open_]
        good = share([not_above(x, a.money["exact"]) for x, a in zip(longer, open_, strict=True)])
        what = "rl 10 s not above exact's incumbent where it ran out of time"
        report.add(what, good, "%", ">= 90")
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
    parser.add_argument("--questions", type=int, default=ENOUGH, help="of each family")
    parser.add_argument("--jobs", type=int, default=1, help="questions at a time, a core each")
    parser.add_argument("--exact-seconds", type=float, default=60.0, help="for the exact solver")
    parser.add_argument("--certificates", type=int, default=1000, help="to check by enumeration")
    parser.add_argument("--answers", type=Path, help="keep answers here, and ask for no kept one")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES), choices=SEARCHES)
    parser.add_argument("--no-paper", action="store_true", help="leave out the paper's models")
    parser.add_argument("--only-report", action="store_true", help="on the answers that are kept")
    parser.add_argument("--again", metavar="METHOD", help="ask this one again where it answered")
    options = parser.parse_args()
    names = QUICK_FAMILIES if options.quick else tuple(options.families)
    num = 3 if options.quick else options.questions
    exact = 2.0 if options.quick else options.exact_seconds
    report = Report("schedulers", "Schedulers: money above the best plan")
    searches = QUICK_SEARCHES if options.quick else tuple(options.searches)
    questions = questions_of(names, num, exact, searches)
    kept = Answers(options.answers, options.jobs)
    if options.again is not None:
        kept.ask_again(options.again, questions)
    answers = kept.kept(questions) if options.only_report else kept.ask(questions)
    if not answers:
        parser.error(f"{options.answers} has no answer to these questions")
    if not all("rl" in answer.money for answer in answers):
        parser.exit(message="answers were kept; a report needs those of rl\n")
    goals(report, answers)
    checked, proven, wrong = wrong_certificates(100 if options.quick else options.certificates)
    report.add(f"wrong certificates of {checked} enumerated questions", wrong, "", "<= 0")
    report.add("of these proven", proven, "questions")
    by_family = {name: [a for a in answers if a.asked.family == name] for name in names}
    by_family = {name: part for name, part in by_family.items() if part}
    report.grids.append(overview(by_family))
    report.grids.extend(family_grid(name, part) for name, part in by_family.items())
    if options.quick or options.no_paper:
        report.notes.append("The paper's models and the plot were left out.")
    else:
        sets = paper_models(report)
        if options.json is not None:
            picture = Path(options.json).with_suffix(".png")
            plot(sets, picture)
            report.pictures[picture.name] = PICTURE
    report.notes.append(how_asked(by_family))
    report.finish(options.json)


def how_asked(by_family: dict[str, list[Answer]]) -> str:
    """How many questions there were, and how long each method had."""
    num = _ends(len(part) for part in by_family.values())
    answers = [answer for part in by_family.values() for answer in part]
    exact = _ends(answer.asked.exact_seconds for answer in answers)
    every = all(set(SEARCHES) <= set(answer.money) for answer in answers)
    few = "" if every else ", not all put to every search: each table has its numbers"
    if min(map(len, by_family.values())) < ENOUGH:
        few += f"; the goals are meant for {ENOUGH} of each"
    return (
        f"{num} questions of each family, not seen in training{few}. A search had {SHORT:g} s of "
        f"a core ({LONG:g} s on more than {FEW_POOLS} pools), exact {exact} s, in CPU seconds. "
        "Gaps are above the certified optimum, or above the cheapest plan of any method where it "
        "was not proven."
    )


def _ends(values: Iterable[float]) -> str:
    """The least and the greatest of them."""
    ordered = sorted(values)
    return " to ".join(f"{value:g}" for value in dict.fromkeys((ordered[0], ordered[-1])))


if __name__ == "__main__":
    main()
