"""Frozen, validated values that travel as YAML or JSON, and errors a user can act on."""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TextIO

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.booleans import keep_apart
from heterps_hpc.bounded_yaml import max_bytes, read_data
from heterps_hpc.errors import UserError

_MAX_PROBLEMS = 8
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlong, _REPR.maxstring = 3, 40, 40
_PART = 1 << 20  # characters
_MAX_PATH = 4096  # of a path, as Linux has it


def _checked_path(path: Path) -> Path:
    text = str(path)
    if "\0" in text or len(text) > _MAX_PATH or any(len(part) > 255 for part in path.parts):
        raise ValueError(
            f"path {_short(text)} cannot be a file: it has a NUL character, more than {_MAX_PATH} "
            "characters, or a name of more than 255"
        )
    return path


FilePath = Annotated[Path, AfterValidator(_checked_path)]


def absolute(path: Path, base: Path) -> Path:
    """A path of a user's file, counted from its folder; `~` and `~name` are home directories."""
    try:
        return base / path.expanduser()
    except RuntimeError:
        raise UserError(f"path {str(path)!r}: there is no such user; write the path out") from None


class Value(BaseModel):
    """Base of every value type: frozen, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)  # of a class that is complete: with the checks
        return schema if cls.__pydantic_complete__ else keep_apart(schema, cls)

    @classmethod
    def parse(cls, data: object, origin: str) -> Self:
        """Validate plain data; `origin` (a file name) leads every error message."""
        if not isinstance(data, Mapping):
            what = "nothing" if data is None else type(data).__name__
            raise UserError(
                f"{origin}: expected a mapping of keys, got {what}; "
                f"the keys are {', '.join(cls.model_fields)}"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UserError(_explain(error, cls, origin)) from None
        except RecursionError:
            raise UserError(f"{origin}: nested too deeply") from None

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a YAML or JSON file (by its suffix)."""
        path = Path(path)
        return cls.parse(read_data(path, read_text(path)), str(path))

    def to_json(self) -> str:
        """JSON text that people can read too."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    def save(self, path: Path | str) -> None:
        """Write as JSON; the file is whole or not there."""
        write_atomically(Path(path), self.to_json())


def read_text(path: Path) -> str:
    """The text of a user's file, with an error that names it."""
    limit = max_bytes(path)
    if path.suffix == ".json" and _is_pipe(path):  # of a YAML file: `heterps run <(…)`
        raise UserError(f"{path}: is a pipe, expected a file")
    try:
        with path.open(encoding="utf-8") as file:
            text = _read_at_most(file, limit + 1)  # /dev/zero has no end
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise UserError(
                f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8"
            ) from None
        why = getattr(error, "strerror", None) or error  # without the name, which may be long
        raise UserError(f"{_short(str(path))}: cannot be read: {why}") from None
    if len(text) > limit:
        raise UserError(f"{path}: more than {limit} characters; is it that file?")
    return text


def _is_pipe(path: Path) -> bool:
    try:
        return path.is_fifo()
    except OSError:
        return False  # to open it will tell what is wrong


def _read_at_most(file: TextIO, num_characters: int) -> str:
    """In parts: Python takes memory for all that it is asked for, however small the file is."""
    parts = []
    while num_characters > 0 and (part := file.read(min(num_characters, _PART))):
        parts.append(part)
        num_characters -= len(part)
    return "".join(parts)


def nearest(word: str, known: list[str]) -> str:
    """A remedy for an unknown word: the nearest known one, else the list."""
    close = difflib.get_close_matches(word[:200], known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(sorted(known))}"


def _explain(error: ValidationError, cls: type[BaseModel], origin: str) -> str:
    lines = []
    for problem in _of_the_likelier_kind(error.errors(include_url=False)):
        where = ".".join(str(part)[:60] for part in problem["loc"]) or "(whole file)"
        if problem["type"] == "extra_forbidden":
            known = _fields_at(cls, problem["loc"][:-1])
            lines.append(f"{origin}: {where}: unknown key; {nearest(where.split('.')[-1], known)}")
        elif problem["type"] == "missing":
            lines.append(f"{origin}: {where}: missing; this key is required")
        elif problem["type"] == "value_error":
            why = str(problem["ctx"]["error"])
            lines.append(f"{origin}: {where}: {why if len(why) <= 400 else why[:397] + '...'}")
        else:
            lines.append(f"{origin}: {where}: {problem['msg']}; got {_short(problem['input'])}")
    if len(lines) > _MAX_PROBLEMS:
        more = len(lines) - _MAX_PROBLEMS
        lines = [*lines[:_MAX_PROBLEMS], f"{origin}: and {more} more problems"]
    return "\n".join(lines)


def _of_the_likelier_kind(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Of a number or a mapping, pydantic tells why it is neither: keep what is wrong with it as
    what it is."""
    left = list(problems)
    for problem in problems:
        where = problem["loc"][:-1]
        others = [
            each for each in left if each is not problem and each["loc"][: len(where)] == where
        ]
        if where and others and problem["type"] == f"{problem['loc'][-1]}_type":
            left.remove(problem)
    return left


def _short(value: Any) -> str:
    """At most 80 characters of what was given, without making the text of all of it first."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        text = repr(value[:80])
    elif isinstance(value, dict | list | tuple | set):
        text = _REPR.repr(value)
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
