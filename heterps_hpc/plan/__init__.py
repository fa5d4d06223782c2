"""Planning: profile + cluster + goal → which layers run on which pool, and by how many ranks.

Read in this order: problem.py (the question), cost_model.py (the equations), planner.py (the way
from a profile to a plan), schedulers.py (who may decide), policy.py (the learned scheduler) with
search.py and scorer.py, baselines.py, exact/solver.py (the certified optimum), explain.py.
"""
