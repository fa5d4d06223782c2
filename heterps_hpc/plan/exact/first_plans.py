"""Plans to start from: the better the best plan so far, the more the exact solver can rule out."""

from __future__ import annotations

import itertools
import math

import numpy as np

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.bounds import Incumbent
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.focus import offer_path
from heterps_hpc.plan.exact.graph import StageOptions, least_ways, shortest_path
from heterps_hpc.plan.local_search import descend
from heterps_hpc.plan.problem import Floats

LOCAL_SHARE = 0.1  # of the time that is left, for changes of placements


def first_plans(table: StageTable, options: StageOptions, incumbent: Incumbent) -> None:
    """Good plans to start from: shortest paths for many prices of money, few ranks per stage."""
    if not len(options):
        return
    limit = table.problem.pools.limit[options.pool]
    scale = float(np.median(options.ET) / np.median(options.per_hour))
    fastest = float(np.quantile(options.alone, 0.001))
    caps = [math.inf]  # where the slowest stage counts, try to do without slow ones
    if table.problem.micro_batches > 1:
        caps += list(np.geomspace(fastest, float(options.alone.max()), 10)[:-1])
    for share in (1, 2, 4):  # a share of each pool per stage, so that several stages fit
        modest = options.ranks <= np.maximum(1, limit // share)
        tries = [(math.inf, price) for price in (0.0, *np.geomspace(1e-3, 1e3, 13))]
        if not incumbent.with_money or incumbent.choices is None:
            tries += [(cap, 0.0) for cap in caps]
        for seconds, (cap, price) in itertools.product(_seconds_to_save(table, options), tries):
            weight = seconds + price * scale * options.per_hour
            weight = np.where(modest & (cap >= options.alone), weight, np.inf)
            path = shortest_path(options, weight, least_ways(options, weight))
            if path:
                offer_path(options, path, incumbent)


def _seconds_to_save(table: StageTable, options: StageOptions) -> list[Floats]:
    """What each option adds to T: to the chain, and where the loop may bind, to that too."""
    problem = table.problem
    if problem.staleness > 0 and not problem.floor:
        return [options.parts.chain_sum]
    m, lag = problem.micro_batches, problem.staleness + 1
    parts = options.parts
    loop = (m * parts.tables_max + 2 * parts.rows_max) / lag
    return [parts.chain_sum, parts.chain_sum + loop]


def local_plan(table: StageTable, incumbent: Incumbent, deadline: Deadline) -> None:
    """A better plan, or any at all, by small changes: where stages share limits or nodes, no
    shortest path may keep to them."""
    until = deadline.within(deadline.left * LOCAL_SHARE)
    if incumbent.choices is None:
        found = descend(table, None, lambda: until.over, any_plan=True)
        if found is not None:
            incumbent.offer(found)
    if incumbent.choices is not None and incumbent.with_money:
        improved = descend(table, incumbent.choices, lambda: until.over)
        if improved is not None:
            incumbent.offer(improved)
