"""The paper's experiment on nodes that differ: every plan is run, not estimated."""
