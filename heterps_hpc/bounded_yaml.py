"""YAML and JSON of users, read within bounds: a file of a few lines must not take gigabytes.

Aliases let a short YAML text describe a huge value (nine levels of nine aliases are 387 million
nodes), or one that holds itself. So the events of the text are counted first, aliases at the size
of what they stand for, and only then is anything built.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from heterps_hpc.errors import UserError

MAX_YAML_BYTES = 4 << 20
MAX_JSON_BYTES = 256 << 20  # manifests and profiles, which programs write
MAX_DEPTH = 60
MAX_NODES = 200_000


def read_data(path: Path, text: str) -> Any:
    """The plain data of a file: JSON by its suffix, else YAML."""
    is_json = path.suffix == ".json"
    limit = MAX_JSON_BYTES if is_json else MAX_YAML_BYTES
    if len(text) > limit:
        raise UserError(f"{path}: {len(text)} characters; {limit} are the limit: is it that file?")
    try:
        return json.loads(text) if is_json else load_yaml(text)
    except RecursionError:
        raise UserError(f"{path}: nested too deeply; {MAX_DEPTH} levels are the limit") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ValueError: numbers of thousands of digits, dates such as 2024-13-45
        what = " ".join(str(error).split())
        what = what if len(what) <= 300 else what[:297] + "..."
        raise UserError(f"{path}: not valid {'JSON' if is_json else 'YAML'}: {what}") from None


def load_yaml(text: str) -> Any:
    """YAML's plain types only; ValueError beyond the bounds."""
    _check_bounds(text)
    return yaml.safe_load(text)


def _check_bounds(text: str) -> None:
    sizes: dict[str, int] = {}  # nodes below each anchor, aliases resolved
    open_nodes: list[
        tuple[str | None, int]
    ] = []  # anchor and nodes before, of each open collection
    nodes = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            anchor = event.anchor or ""
            if anchor not in sizes:
                raise ValueError(f"alias *{anchor[:40]} is not defined before it is used")
            nodes += sizes[anchor]
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
            if len(open_nodes) > MAX_DEPTH:
                raise ValueError(f"nested too deeply; {MAX_DEPTH} levels are the limit")
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_nodes.pop()
            if name:
                sizes[name] = nodes - before
        if nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values, aliases counted; write less")
