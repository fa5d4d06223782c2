"""The paper's two static rules for ranks, as `plan.provisioning` selects them."""

from __future__ import annotations

import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.plan.planner import make_plan
from heterps_hpc.planning_result import PlanningResult
from tests.plan.test_make import small_cluster, small_job, small_model, small_profile


def plan(rule: str, **goal: float) -> PlanningResult:
    model = small_model()
    job = small_job(**(goal or {"min_samples_per_second": 100_000.0}))
    chosen = job.plan.model_copy(update={"provisioning": rule, "scheduler": "heuristic"})
    job = job.model_copy(update={"plan": chosen})
    return make_plan(job, small_cluster(max_ranks=40), small_profile(model), model, 1e6)


@pytest.mark.parametrize(("rule", "ratio"), [("StaRatio", 8), ("StaPSRatio", 4)])
def test_a_static_rule_gives_ranks_in_its_ratio_and_its_plan_is_kept(rule: str, ratio: int) -> None:
    result = plan(rule)
    tables, dense = result.plan.stages
    assert (tables.pool, dense.pool) == ("cpu", "gpu")
    assert tables.num_ranks == ratio * dense.num_ranks
    assert result.plan.estimate.samples_per_second >= result.floor
    assert result.plan.scheduler == "heuristic"
    least = plan("least-money").plan.estimate.money
    assert result.plan.estimate.money > least
    assert result.plan.gap == pytest.approx(result.plan.estimate.money / least - 1)


def test_a_static_rule_that_has_no_plan_is_refused() -> None:
    with pytest.raises(UserError, match="'StaRatio' gives ranks for a throughput floor"):
        plan("StaRatio", max_money=1.0)
