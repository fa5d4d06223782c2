"""YAML and JSON of users, read within bounds: a file of a few lines must not take gigabytes.

Aliases let a short YAML text describe a huge value (nine levels of nine aliases are 387 million
nodes), or one that holds itself. So nodes are counted while the text is read, aliases at the size
of what they stand for, before any value is built of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from heterps_hpc.errors import UserError

# a second or two to read: people write these
MAX_YAML_BYTES = 256 << 10
MAX_DEPTH = 60
MAX_NODES = 10_000
MAX_JSON_BYTES = 256 << 20  # manifests and profiles, which programs write

# what YAML 1.1 counts in eights or sixties, to the surprise of who wrote it: 010, 1:30
_SURPRISING = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)$")


def max_bytes(path: Path) -> int:
    """How long a file may be, by its suffix."""
    return MAX_JSON_BYTES if path.suffix == ".json" else MAX_YAML_BYTES


def read_data(path: Path, text: str) -> Any:
    """The plain data of a file: JSON by its suffix, else YAML."""
    is_json = path.suffix == ".json"
    try:
        return json.loads(text) if is_json else load_yaml(text)
    except RecursionError:
        raise UserError(f"{path}: nested too deeply; {MAX_DEPTH} levels are the limit") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ValueError: numbers of thousands of digits, dates such as 2024-13-45
        what = _words(error)
        what = what if len(what) <= 300 else what[:297] + "..."
        raise UserError(f"{path}: not valid {'JSON' if is_json else 'YAML'}: {what}") from None


def _words(error: Exception) -> str:
    """What is wrong, with its place first."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark, began = error.problem_mark, error.context_mark
    since = "" if began is None else f" in line {began.line + 1}"
    context = f" ({error.context}{since})" if error.context else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}{context}"


def load_yaml(text: str) -> Any:
    """YAML's plain types only; ValueError beyond the bounds."""
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_data()
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # PyYAML's own constructors, for text that does not fit its tag: `!!bool maybe`
        raise ValueError(f"a value does not fit its tag ({error}); leave the tag out") from None
    finally:
        loader.dispose()


class _BoundedLoader(yaml.SafeLoader):
    """Counts what it reads, and refuses a key that is there twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_nodes = 0
        self._depth = 0
        self._sizes: dict[str, int] = {}  # nodes below each anchor, aliases resolved

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node of the text with all below it."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in self._sizes:
                raise ValueError(f"alias *{str(anchor)[:40]} is not defined before it is used")
            self._count(self._sizes[anchor])
            return super().compose_node(parent, index)
        before = self._num_nodes
        self._count(1)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"nested too deeply; {MAX_DEPTH} levels are the limit")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes[anchor] = self._num_nodes - before
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """A mapping; of a key that is there twice, PyYAML would take the last without a word."""
        node = super().compose_mapping_node(anchor)
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, count in keys.items():
            if count > 1:
                line = node.start_mark.line + 1
                raise ValueError(f"key {key[:40]!r} is there {count} times, from line {line} on")
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; where there is none, such as of 2024-13-45, says where it stands."""
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int | float) and _SURPRISING.match(str(node.value)):
                raise ValueError(f"YAML reads it as {value}; write the number you mean")
            return value
        except (ValueError, OverflowError) as error:
            if not isinstance(node, yaml.ScalarNode):
                raise
            # of a long number, Python says how its limit could be raised
            why = (
                f"{len(node.value):,} digits are too many" if len(node.value) > 1000 else str(error)
            )
            where = f"line {node.start_mark.line + 1}: {node.value[:40]!r}"
            raise ValueError(f"{where}: {why}; put it in quotes if it is text") from None

    def _count(self, nodes: int) -> None:
        self._num_nodes += nodes
        if self._num_nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values, aliases counted; write less")
