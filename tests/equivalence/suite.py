"""Which cases the equivalence suite has: models × layouts × micro-batches × staleness × the rest.

The full product is long; `pairwise` picks a short list in which every pair of values of any two
dimensions still meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any
from zlib import crc32

from tests.equivalence.cases import (
    EXAMPLES,
    HALVES,
    LAYOUTS,
    MODELS,
    SKIPPING,
    SUMMED,
    VARIANTS,
    Case,
)

AXES: dict[str, list[Any]] = {
    "model": [name for name in MODELS if name not in EXAMPLES],
    "layout": list(LAYOUTS),
    "micro_batches": [1, 4],
    "staleness": [0, 1, 2],
    "precision": ["float64", "float32"],
    "variant": [name for name in VARIANTS if name not in SKIPPING | SUMMED | HALVES],
}
assert [*AXES, "wire"] == [field.name for field in fields(Case)]

# float64 in memory: a value is then never so near to a tie that the order of sums decides how it
# is rounded, and the comparison stays as tight as without rounding
ROUNDED: dict[str, list[Any]] = {
    "model": ["two_embedding", "matchnet", "mixed"],
    "layout": ["2", "1+2", "3+2", "cpu2-gpu1-cpu2", "tables last", "split slot", "stage per layer"],
    "micro_batches": [1, 4],
    "staleness": [0, 1],
    "precision": ["float64", "bf16"],
    "variant": ["plain", "clip", "weight"],
    "wire": ["bfloat16", "float16"],
}


def examples() -> list[Case]:
    """The examples of users' own models, each under two layouts."""
    return [
        Case(model, layout, 4, 1, precision, "plain")
        for model in EXAMPLES
        for layout, precision in (("1+2", "float32"), ("3", "float64"))
    ]


def skipping() -> list[Case]:
    """Models that read dense columns, one of which is NaN in one sample."""
    layouts = ["1", "3", "2+1", "cpu2-gpu1-cpu2", "tables last, 2+2"]
    return [
        Case(model, layout, 1 + 3 * (number % 2), number % 3, "float64", "nan")
        for number, (model, layout) in enumerate(zip(["ctrdnn", "late"] * 3, layouts, strict=False))
    ]


def summed() -> list[Case]:
    """Stages of two and of three replicas whose gradients torch.distributed sums."""
    return [
        Case("ctrdnn", "3", 1, 1, "float64", "torch"),
        Case("mixed", "cpu2-gpu1-cpu2", 4, 1, "float64", "torch"),
    ]


def halves() -> list[Case]:
    """Tables whose rows are rounded; a slot shared by ranks, and a stale one, among them."""
    return [
        Case("two_embedding", "split slot", 4, 1, "float32", "float16"),
        Case("ctrdnn", "3", 1, 0, "float32", "bfloat16"),
    ]


def full_product() -> list[Case]:
    """Every combination of model, layout, micro-batches, staleness and precision; variants, which
    have little to do with the layout, take turns."""
    *others, variants = AXES.values()
    # 17 layouts × 2 × 3 × 2 is no multiple of 5, so each variant meets every other value
    return [
        Case(*values, variants[number % len(variants)])
        for number, values in enumerate(product(*others))
    ]


def rounded(full: bool) -> list[Case]:
    """Cases with short numbers on the wire, in dense layers, or both."""
    if not full:
        only_inside = [case for case in pairwise(ROUNDED) if case.precision == "bf16"]
        return pairwise(ROUNDED) + [replace(case, wire="float32") for case in only_inside[::3]]
    kinds = [("float64", "bfloat16"), ("float64", "float16"), ("bf16", "float32")]
    others = product(AXES["model"], LAYOUTS, kinds)
    variants, number = ROUNDED["variant"], len(ROUNDED["variant"])
    return [
        Case(model, layout, (1, 4)[i % 2], i % 3, precision, variants[(i // 3) % number], wire)
        for i, (model, layout, (precision, wire)) in enumerate(others)
    ]


def pairwise(axes: dict[str, list[Any]] = AXES) -> list[Case]:
    """Few cases in which every two values of two axes meet at least once (greedy, repeatable)."""
    names = list(axes)
    open_pairs = {
        ((a, x), (b, y)) for a, b in combinations(names, 2) for x in axes[a] for y in axes[b]
    }
    order = sorted(open_pairs, key=repr)
    chosen = []
    while open_pairs:
        (a, x), (b, y) = next(pair for pair in order if pair in open_pairs)
        values = {a: x, b: y}
        for name in names:
            if name not in values:
                # ties go to a hash, so that what is left over falls on all values alike
                values[name] = max(
                    axes[name],
                    key=lambda value: (
                        _gain(values, name, value, open_pairs, names),
                        crc32(repr((sorted(values.items()), name, value)).encode()),
                    ),
                )
        items = [(name, values[name]) for name in names]
        open_pairs -= set(combinations(items, 2))
        chosen.append(Case(**values))
    return chosen


def _gain(
    values: dict[str, Any], name: str, value: Any, open_pairs: set[Any], names: Sequence[str]
) -> int:
    """How many open pairs a value closes with the values chosen so far."""
    gained = 0
    for other, known in values.items():
        pair = ((other, known), (name, value))
        if names.index(other) > names.index(name):
            pair = (pair[1], pair[0])
        gained += pair in open_pairs
    return gained
