"""All keys of job and cluster files, from the value types themselves: `heterps explain KEY`.

`python -m heterps_hpc.reference > docs/reference.md` writes the page; a test keeps it current. What
a key means is the comment behind its field, or above it where the line is full.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

FILES: dict[str, type[BaseModel]] = {"job": Job, "cluster": Cluster}
_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_NO_LIMIT = 10**9  # what only keeps numbers printable, or quotients, is not worth mentioning
_BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}"}


@dataclass(frozen=True)
class Key:
    """One key of a file: its dotted name, what it may be, its default and its meaning."""

    file: str
    name: str
    kind: str
    default: str
    note: str

    def text(self) -> str:
        """For a terminal."""
        default = self.default if self.default == "required" else f"default: {self.default}"
        lines = [f"{self.name}  ({self.file} file)", f"  {self.kind}; {default}"]
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])


def keys() -> list[Key]:
    """All keys of both files, in the order of the code."""
    return [key for file, kind in FILES.items() for key in _walk(file, kind, "")]


def explain(name: str) -> str:
    """A key, or a section with the keys in it, for a terminal."""
    known, name = keys(), name.rstrip(".")
    found = [key for key in known if key.name == name]
    found = found or [key for key in known if _of_an_entry(key.name, name)]
    found = found or [key for key in known if key.name.rsplit(".", 1)[-1] == name]
    if not found:
        raise UserError(f"no key {name!r}; {nearest(name, [key.name for key in known])}")
    return "\n".join("\n".join([key.text(), *_inside(key, known)]) for key in found)


def _inside(section: Key, known: list[Key]) -> list[str]:
    """One line for each key of a section; a section in it is explained when asked for."""
    name = section.name + ("[]." if section.kind.startswith("list of") else ".")
    inner = [key for key in known if key.name.rpartition(".")[0] == name[:-1]]
    width = max((len(key.name) for key in inner), default=0)
    lines = [f"  {key.name:<{width}}  {key.note}" for key in inner]
    hint = (
        f"`heterps explain {inner[0].name.replace('[]', '')}` tells more of that key"
        if inner
        else ""
    )
    return [*lines, hint] if inner else []


def _of_an_entry(key: str, name: str) -> bool:
    """Whether `name` is the key as files have it (pools.device) or `--set` (pools.gpu.device)."""
    pattern = re.escape(key).replace(r"\[\]", r"(\.[^.]+)??")
    return "[]" in key and re.fullmatch(pattern, name) is not None


def page() -> str:
    """docs/reference.md."""
    lines = [
        "# All keys of job and cluster files",
        "",
        "Made from the code by `python -m heterps_hpc.reference`; `heterps explain train.on_nan`",
        "prints one key. Units are in the names. Keys below a `[]` are those of each list entry.",
    ]
    section = ""
    for key in keys():
        head = f"{key.file}: {key.name.rpartition('.')[0] or 'top level'}"
        if head != section:
            section = head
            lines += [
                "",
                f"## {head}",
                "",
                "| key | value | default | meaning |",
                "|---|---|---|---|",
            ]
        cells = (f"`{key.name.rpartition('.')[2]}`", key.kind, key.default, key.note)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _walk(file: str, kind: type[BaseModel], prefix: str) -> Iterator[Key]:
    notes = _comments(kind)
    inner: list[tuple[str, type[BaseModel]]] = []
    for name, field in kind.model_fields.items():
        nested = _nested(field.annotation)
        doc = inspect.cleandoc(nested.__doc__ or "").split("\n")[0] if nested else ""
        is_list = nested is not None and get_origin(field.annotation) is tuple
        what = (f"list of {name}" if is_list else "section") if nested else _kind(field)
        yield Key(file, f"{prefix}{name}", what, _default(field), notes.get(name) or doc)
        if nested is not None:
            inner.append((f"{prefix}{name}{'[]' if is_list else ''}.", nested))
    for deeper, nested in inner:
        yield from _walk(file, nested, deeper)


def _comments(kind: type[BaseModel]) -> dict[str, str]:
    """The comment behind each field of a class, or above it."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _, _, comment = lines[(node.end_lineno or 1) - 1].partition("  # ")
            above = lines[node.lineno - 2].strip()
            found[node.target.id] = comment.strip() or above.removeprefix("# ") * (above[:1] == "#")
    return found


def _nested(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _nested(argument)
        if found is not None:
            return found
    return None


def _kind(field: FieldInfo) -> str:
    return _words(field.annotation, list(field.metadata))


def _words(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):  # Annotated[int, Field(gt=0)]
        inner = [
            part for item in annotation.__metadata__ for part in getattr(item, "metadata", [item])
        ]
        return _words(annotation.__origin__, inner)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        kinds = [_words(each, metadata) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin is tuple:
        many = arguments[-1] is Ellipsis
        each = _words(arguments[0], [])
        return f"list of {each}" if many else f"list of {len(arguments)}: {each}"
    if origin is dict:
        return "mapping"
    bounds = [
        _bound(name, value)
        for item in metadata
        for name in _BOUNDS
        if (value := getattr(item, name, None)) is not None and value < _NO_LIMIT
    ]
    word = _WORDS.get(annotation, "text")
    return f"{word} {' and '.join(bounds)}" if bounds else word


def _bound(name: str, value: float) -> str:
    return "> 0" if name == "ge" and 0 < value < 1 / _NO_LIMIT else _BOUNDS[name].format(value)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "as below"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(page())
