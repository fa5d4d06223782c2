"""Keeps booleans and numbers apart: pydantic would take `steps: true` for one step.

Its strict mode would do so too, but also refuse a list for a tuple, and text for a number, which is
what YAML makes of `lr: 1e-3`.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import core_schema


def keep_apart(schema: Any, owner: type) -> Any:
    """The schema of a value class, with a check before every number and boolean in it.

    Value classes inside it have had theirs.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(keep_apart(part, owner) for part in schema)
    if not isinstance(schema, dict) or schema.get("cls", owner) is not owner:
        return schema
    checked = {key: keep_apart(part, owner) for key, part in schema.items()}
    if schema.get("type") == "union":  # errors name the choice: `dict`, not what is inside it
        pairs = zip(checked["choices"], schema["choices"], strict=True)
        checked["choices"] = [(choice, before["type"]) for choice, before in pairs]
    check = _check_of(schema)
    return core_schema.no_info_before_validator_function(check, checked) if check else checked


def _check_of(schema: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "bool":
        return _boolean
    if kind == "literal":
        kind = type(schema["expected"][0]).__name__
    return _number if kind in ("int", "float") else None


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


def _boolean(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("expected true or false, got a number")
    return value
