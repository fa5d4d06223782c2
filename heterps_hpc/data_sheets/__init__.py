"""Shipped data sheets of common nodes, as YAML; see plan/sheets.py for how they become times."""
