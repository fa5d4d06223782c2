"""Planning: which layers run on which pool, by how many ranks, at the least money.

    profile + cluster + job ─▶ Problem ─▶ scheduler ─▶ Plan, with the optimum beside it

Read problem.py (what is asked), cost.py (the equations), provision.py (ranks for a placement),
exact.py (the certified optimum), policy.py (the learned scheduler), rivals.py, explain.py.
"""
