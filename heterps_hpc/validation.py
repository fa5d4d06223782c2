"""Frozen, validated values that travel as YAML or JSON, and errors a user can act on."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.errors import UserError


class Value(BaseModel):
    """Base of every value type: frozen, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, data: object, origin: str) -> Self:
        """Validate plain data; `origin` (a file name) leads every error message."""
        if not isinstance(data, Mapping):
            raise UserError(
                f"{origin}: expected a mapping of keys, got {type(data).__name__}; "
                f"the keys are {', '.join(cls.model_fields)}"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UserError(_explain(error, cls, origin)) from None

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a YAML or JSON file (by its suffix)."""
        path = Path(path)
        text = read_text(path)
        try:
            data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (json.JSONDecodeError, yaml.YAMLError) as error:
            what = " ".join(str(error).split())
            raise UserError(f"{path}: not valid {path.suffix[1:] or 'YAML'}: {what}") from None
        return cls.parse(data, str(path))

    def to_json(self) -> str:
        """JSON text that people can read too."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    def save(self, path: Path | str) -> None:
        """Write as JSON; the file is whole or not there."""
        write_atomically(Path(path), self.to_json())


def read_text(path: Path) -> str:
    """The text of a user's file, with an error that names it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def nearest(word: str, known: list[str]) -> str:
    """A remedy for an unknown word: the nearest known one, else the list."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(sorted(known))}"


def _explain(error: ValidationError, cls: type[BaseModel], origin: str) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
        if problem["type"] == "extra_forbidden":
            known = _fields_at(cls, problem["loc"][:-1])
            lines.append(f"{origin}: {where}: unknown key; {nearest(where.split('.')[-1], known)}")
        elif problem["type"] == "missing":
            lines.append(f"{origin}: {where}: missing; this key is required")
        elif problem["type"] == "value_error":
            lines.append(f"{origin}: {where}: {problem['ctx']['error']}")
        else:
            got = repr(problem["input"])
            got = got if len(got) <= 80 else got[:77] + "..."
            lines.append(f"{origin}: {where}: {problem['msg']}; got {got}")
    return "\n".join(lines)


def _fields_at(cls: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Names of the fields at a location inside nested values."""
    current: Any = cls
    for part in location:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        if part not in fields:
            continue
        current = _value_class(fields[part].annotation) or current
    return list(getattr(current, "model_fields", {}))


def _value_class(annotation: Any) -> type[BaseModel] | None:
    """The value class inside an annotation such as `Train`, `Train | None`, `tuple[Pool, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _value_class(argument)
        if found is not None:
            return found
    return None
