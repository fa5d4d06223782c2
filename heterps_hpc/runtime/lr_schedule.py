"""Learning-rate schedules: a factor on the base rate, a pure function of the step."""

from __future__ import annotations

import math

from heterps_hpc.config import LearningRate


def factor(schedule: LearningRate, step: int, total_steps: int) -> float:
    """The factor of a step (counted from 0) in a run of that many steps.

    Warm-up rises in equal parts and reaches 1 at its last step. Then: `constant` stays; `cosine`
    falls to `final_factor` at the last step and stays there; `step` is multiplied by
    `step_factor` every `step_every` steps.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    since = step - schedule.warmup_steps
    if schedule.kind == "cosine":
        length = max(1, (schedule.total_steps or total_steps) - 1 - schedule.warmup_steps)
        done = min(1.0, since / length)
        fall = 0.5 * (1 + math.cos(math.pi * done))
        return schedule.final_factor + (1 - schedule.final_factor) * fall
    if schedule.kind == "step":
        assert schedule.step_every is not None  # LearningRate refuses it
        return float(schedule.step_factor ** (since // schedule.step_every))
    return 1.0
