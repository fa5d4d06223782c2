"""A run's own times as a further measurement: the profile, corrected by what the run really took.

Which quantity which time gives:

    OCT of embeddings      phases pull and push of the stages on a pool: one factor per pool
    OCT of dense layers    phases forward, backward and update: one factor per pool
    keys' loading          phase read of the ranks with tables: one factor per pool
    F                      what is left of a batch besides these, messages, summing and waiting
    moving data            the seconds of a whole batch: once computing is right, what prediction
                           and run still differ by is one factor on links, messages and summing, as
                           a rank's waiting does not show which of them it waited for

A factor holds for all layers of its kind on that pool. Layers of a kind that the pool did not run
get the factor of all that it did run: an error is more often of the node than of a layer. Pools
that the run did not use keep their times.

How terms add up to a prediction is the planner's, so it is asked (`predict`), and a term's part is
what the prediction loses when the term is taken away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from heterps_hpc.layout import Estimate, Stage
from heterps_hpc.phases import OUTSIDE_TRAINING, Phase
from heterps_hpc.profile import PoolTiming, Profile, Timing
from heterps_hpc.run_times import RankTimes

Predict = Callable[[Profile], Estimate]

TABLE_PHASES = (Phase.PULL, Phase.PUSH)
DENSE_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
FIXED_PHASES = (Phase.READ, Phase.CLIP)
AWAY = 1e-9  # a layer that takes no time is refused
MAX_MOVING = 4.0  # the most that links may be thought wrong; what is left then is computing's


def corrected(
    profile: Profile,
    stages: Sequence[Stage],
    times: Sequence[RankTimes],
    predict: Predict,
    name: str,
) -> Profile:
    """The profile with which the run's own plan is predicted as it ran."""
    notes = []
    for pool in dict.fromkeys(stage.pool for stage in stages):
        profile, text = _computing(profile, stages, times, predict, pool)
        notes.append(text)
    profile, text = _moving(profile, stages, batch_seconds(times), predict)
    steps = min(each.steps for each in times)
    note = f"corrected by {steps} batches of run {name}: {'; '.join([*notes, text])}"
    return _as_measured(profile, stages).model_copy(update={"notes": (*profile.notes, note)})


def batch_seconds(times: Sequence[RankTimes]) -> float:
    """What a batch took; ranks wait for each other, so that all took about as long."""
    return sum(each.training_seconds / each.steps for each in times) / len(times)


def _computing(
    profile: Profile,
    stages: Sequence[Stage],
    times: Sequence[RankTimes],
    predict: Predict,
    pool: str,
) -> tuple[Profile, str]:
    """Correct OCT, loading and F of one pool; what dense stages read is in F, and all reading of a
    run too short for the prediction to have any."""
    profile = _with_term(profile, pool, "tables_batch_seconds", None)
    mine = [index for index, stage in enumerate(stages) if stage.pool == pool]

    def predicted(without: Profile) -> float:
        """What the pool's stages lose if something takes no time."""
        full, less = predict(profile).stages, predict(without).stages
        return sum(full[i].compute_seconds - less[i].compute_seconds for i in mine)

    def measured(of: Callable[[RankTimes], float]) -> float:
        """The sum over the pool's stages of the mean over a stage's ranks."""
        by_stage = ([of(t) for t in times if t.stage == index] for index in mine)
        return sum(sum(values) / len(values) for values in by_stage)

    loading = predicted(_with_term(profile, pool, "read_key_seconds", 0.0))
    if loading > 0:
        factor = measured(_loading) / loading
        now = profile.pool(pool).read_key_seconds * factor
        profile = _with_term(profile, pool, "read_key_seconds", now)
    kinds = (True, False)  # embeddings, dense layers
    took = {
        True: measured(lambda times: times.per_step(*TABLE_PHASES)),
        False: measured(lambda times: times.per_step(*DENSE_PHASES)),
    }
    thought = {kind: predicted(_scaled(profile, pool, {kind: AWAY})) for kind in kinds}
    ran = [kind for kind in kinds if took[kind] > 0 and thought[kind] > 0]
    if not ran:
        return profile, f"{pool}: no computing seen"
    overall = sum(took[kind] for kind in ran) / sum(thought[kind] for kind in ran)
    factors = {kind: took[kind] / thought[kind] if kind in ran else overall for kind in kinds}
    besides = measured(_fixed) - (measured(_loading) if loading > 0 else 0.0)
    fixed = besides - predicted(_with_fixed(profile, pool, 0.0, without_micro=True))
    now = profile.pool(pool).batch_seconds + fixed / len(mine)
    profile = _with_fixed(_scaled(profile, pool, factors), pool, max(0.0, now))
    text = f"{pool}: tables ×{factors[True]:.3g}, dense layers ×{factors[False]:.3g}"
    return profile, f"{text}, {max(0.0, now):.3g} s per batch otherwise"


def _fixed(times: RankTimes) -> float:
    """Seconds of a batch that no layer, message or wait accounts for."""
    elsewhere = {*FIXED_PHASES, *OUTSIDE_TRAINING}
    known = [phase for phase in Phase if phase not in elsewhere]
    return max(0.0, times.training_seconds / times.steps - times.per_step(*known))


def _loading(times: RankTimes) -> float:
    """Seconds of a batch that a rank with tables waits for its keys."""
    return times.per_step(Phase.READ) if times.per_step(*TABLE_PHASES) > 0 else 0.0


def _moving(
    profile: Profile, stages: Sequence[Stage], seconds: float, predict: Predict
) -> tuple[Profile, str]:
    """Correct what moves, so that a batch is predicted to take so many seconds."""
    pools = {stage.pool for stage in stages}
    moving = solve(lambda x: predict(_moved(profile, pools, x)).seconds_per_batch, seconds)
    profile = _moved(profile, pools, moving)

    def compute(factor: float) -> Profile:
        found = profile
        for pool in pools:
            found = _scaled(found, pool, {True: factor, False: factor})
            found = _with_fixed(found, pool, found.pool(pool).batch_seconds * factor)
        return found

    rest = solve(lambda x: predict(compute(x)).seconds_per_batch, seconds)
    text = f"moving data ×{moving:.3g}"
    return compute(rest), text if abs(rest - 1) < 1e-3 else f"{text}, computing ×{rest:.3g}"


def solve(rising: Callable[[float], float], wanted: float) -> float:
    """The factor within bounds where a rising function is nearest to a value; 1 if it is flat."""
    low, high = -math.log(MAX_MOVING), math.log(MAX_MOVING)
    if rising(math.exp(high)) <= rising(math.exp(low)) * (1 + 1e-9):
        return 1.0
    if rising(1.0) <= wanted:
        low = 0.0
    else:
        high = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) < wanted else (low, middle)
    return math.exp((low + high) / 2)


def _scaled(profile: Profile, pool: str, factors: dict[bool, float]) -> Profile:
    """OCT of a pool's embeddings (True) and dense layers (False) times their factors."""
    tables = {layer.name for layer in profile.layers if layer.is_embedding}

    def scale(timing: Timing) -> Timing:
        factor = factors.get(timing.layer in tables, 1.0) if timing.pool == pool else 1.0
        return timing.model_copy(update={"compute_seconds": timing.compute_seconds * factor})

    return profile.model_copy(update={"timings": tuple(scale(each) for each in profile.timings)})


def _with_pool(profile: Profile, timing: PoolTiming) -> Profile:
    others = tuple(each for each in profile.pools if each.pool != timing.pool)
    return profile.model_copy(update={"pools": (*others, timing)})


def _with_term(profile: Profile, pool: str, name: str, value: float | None) -> Profile:
    return _with_pool(profile, profile.pool(pool).model_copy(update={name: value}))


def _with_fixed(
    profile: Profile, pool: str, seconds: float, *, without_micro: bool = False
) -> Profile:
    changes = {"batch_seconds": seconds} | ({"micro_batch_seconds": 0.0} if without_micro else {})
    return _with_pool(profile, profile.pool(pool).model_copy(update=changes))


def _moved(profile: Profile, pools: set[str], factor: float) -> Profile:
    """Links among some pools, and what their ranks pay for messages and sums, times a factor."""
    links = tuple(
        link.model_copy(
            update={
                "latency_seconds": link.latency_seconds * factor,
                "bytes_per_second": link.bytes_per_second / factor,
            }
        )
        if set(link.pools) <= pools
        else link
        for link in profile.links
    )
    found = profile.model_copy(update={"links": links})
    for pool in pools:
        timing = found.pool(pool)
        terms = (
            "reduce_seconds_per_byte",
            "reduce_latency_seconds",
            "message_seconds_per_byte",
            "cut_seconds_per_byte",
            "message_seconds",
        )
        known = {name: getattr(timing, name) for name in terms}
        scaled = {name: value * factor for name, value in known.items() if value is not None}
        found = _with_pool(found, timing.model_copy(update=scaled))
    return found


def _as_measured(profile: Profile, stages: Sequence[Stage]) -> Profile:
    """What ran is measured now, with so many ranks, even if a data sheet described it before."""
    ran = {(layer, stage.pool): stage for stage in stages for layer in stage.layers}
    used = {stage.pool for stage in stages}

    def mark(timing: Timing) -> Timing:
        stage = ran.get((timing.layer, timing.pool))
        if stage is None:
            return timing
        counts = tuple(sorted({*timing.rank_counts, stage.num_ranks}))
        return timing.model_copy(update={"rank_counts": counts, "estimated": False})

    pools = tuple(
        each.model_copy(update={"estimated": each.estimated and each.pool not in used})
        for each in profile.pools
    )
    timings = tuple(mark(each) for each in profile.timings)
    return profile.model_copy(update={"timings": timings, "pools": pools})
