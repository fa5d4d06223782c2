"""Data sheets of common nodes, as YAML; profiling/data_sheets.py turns them into times."""
